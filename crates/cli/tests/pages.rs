//! The commands of the users' pages can be run as they stand there. (Rust in the pages is tested with the library, as
//! documentation.)
//!
//! What takes long, or needs a GPU, is only read: its flags and values are those that the command knows.

mod shared;

use std::fs;
use std::path::{Path, PathBuf};

use shared::{command, stderr};

/// Those of `docs/` whose shell blocks are tested here.
const PAGES: [&str; 2] = ["pages.md", "speed.md"];

/// What `TRACE` stands for.
const TRACE: &str = "crates/replay/tests/data/pipeline_streams_stacks.pickle.gz";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The lines of the page's blocks that are marked `sh`, without comments.
fn commands(page: &str) -> Vec<String> {
    let text = fs::read_to_string(root().join("docs").join(page)).unwrap();
    let mut inside = false;
    let mut found = Vec::new();
    for line in text.lines() {
        match line.strip_prefix("```") {
            Some(language) => inside = language == "sh",
            None if inside => found.push(line.split(" #").next().unwrap().trim().to_owned()),
            None => {}
        }
    }
    found.retain(|line| !line.is_empty());
    found
}

/// Runs the command with these arguments, in the repository's root. A bench, and what needs a GPU, is only read.
fn run(arguments: &str) {
    let mut arguments: Vec<&str> = arguments.split_whitespace().collect();
    arguments.iter_mut().filter(|argument| **argument == "TRACE").for_each(|argument| *argument = TRACE);
    if arguments[0] == "bench" || arguments.contains(&"cuda") {
        arguments.push("--help");
    }
    let output = command().args(&arguments).current_dir(root()).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
}

#[test]
fn the_commands_on_pages_run() {
    for page in PAGES {
        let commands = commands(page);
        assert!(!commands.is_empty(), "{page} has no shell block");
        for line in commands {
            if let Some(arguments) =
                line.strip_prefix("millpond ").or_else(|| line.strip_prefix("cargo run --release -- "))
            {
                run(arguments);
            } else if let Some(example) =
                line.strip_prefix("cargo run --release -p millpond-replay --example ")
            {
                // CI runs each example.
                let name = example.split(' ').next().unwrap();
                assert!(root().join(format!("crates/replay/examples/{name}.rs")).is_file(), "{page}: {line}");
            } else {
                // CI runs the scripts that need no GPU.
                let script = line.split(' ').next().unwrap();
                assert!(script.starts_with("scripts/") && root().join(script).is_file(), "{page}: {line}");
            }
        }
    }
}
