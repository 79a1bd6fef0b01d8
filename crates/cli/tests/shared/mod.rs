//! What the tests of the command share: running it, and what it said.
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// The command that was built with the tests. On a machine where they were brought to, `MILLPOND_COMMAND` names it.
pub(crate) fn command() -> Command {
    let brought = std::env::var_os("MILLPOND_COMMAND");
    Command::new(brought.unwrap_or_else(|| env!("CARGO_BIN_EXE_millpond").into()))
}

pub(crate) fn millpond(args: &[&str]) -> Output {
    command().args(args).output().unwrap()
}

/// What a command that went well said.
pub(crate) fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", stderr(output));
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// What a command said on stderr, without the signs of life that a busy machine makes it give.
pub(crate) fn stderr(output: &Output) -> String {
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    text.split_inclusive('\n').filter(|line| !line.starts_with("millpond: working: ")).collect()
}

/// The one line on stderr of a command that failed with exit code 1, or 2 for wrong usage.
pub(crate) fn failure(output: &Output) -> String {
    let text = stderr(output);
    assert!(matches!(output.status.code(), Some(1 | 2)), "{:?}: {text}", output.status);
    assert_eq!(text.lines().count(), 1, "{text}");
    text.trim_end().strip_prefix("millpond: ").expect("the error says who speaks").to_owned()
}

pub(crate) fn read_json(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// The keys of an object.
pub(crate) fn keys(object: &Value) -> Vec<&str> {
    object.as_object().unwrap().keys().map(String::as_str).collect()
}
