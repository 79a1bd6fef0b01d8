//! The commands of the users' pages can be run as they stand there. (Rust in the pages is tested with the library, as
//! documentation.)
//!
//! They run in a folder with the files that the pages speak of, and a training is a small one. What takes long, needs a GPU or
//! a network, is only read: its flags and values are those that the command knows.

use std::fs;
use std::path::{Path, PathBuf};

use crate::shared::{command, stderr};

/// Those whose shell blocks are tested here.
const PAGES: [&str; 7] = [
    "CONTRIBUTING.md",
    "docs/benchmarks.md",
    "docs/devices.md",
    "docs/pages.md",
    "docs/probe.md",
    "docs/speed.md",
    "docs/train.md",
];

/// What `TRACE` stands for.
const TRACE: &str = "crates/replay/tests/data/pipeline_streams_stacks.pickle.gz";

/// Added to a training where it does not say so itself.
const SMALL: [&str; 10] =
    ["--device", "host", "--num-layers", "1", "--feat-dim", "16", "--batch-size", "500", "--epochs", "1"];

/// What starts the command.
const LAUNCHERS: [&str; 3] = ["torchrun", "mpirun", "srun"];

/// What is another tool's.
const OTHERS: [&str; 2] = ["apt install ", "export MILLPOND_SECRET="];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn text(page: &str) -> String {
    fs::read_to_string(root().join(page)).unwrap()
}

/// The lines of the page's blocks in this language, without comments.
fn block(page: &str, language: &str) -> Vec<String> {
    let mut inside = false;
    let mut found = Vec::new();
    for line in text(page).lines() {
        match line.strip_prefix("```") {
            Some(of) => inside = of == language,
            None if inside => found.push(line.split(" #").next().unwrap().trim().to_owned()),
            None => {}
        }
    }
    found.retain(|line| !line.is_empty());
    found
}

/// Runs the command with these arguments, or has it read them.
fn run(arguments: &str, folder: &Path) {
    let trace = root().join(TRACE);
    let mut arguments: Vec<&str> = arguments.split_whitespace().collect();
    arguments.iter_mut().filter(|word| **word == "TRACE").for_each(|word| *word = trace.to_str().unwrap());
    let needs_more = |word: &&str| {
        word.starts_with("cuda") || ["fetch", "data/mnist", "bench", "probe", "pytorch"].contains(word)
    };
    if arguments.iter().any(needs_more) {
        arguments.push("--help");
    } else if arguments[0] == "train" {
        let missing = SMALL.chunks(2).filter(|flag| !arguments.contains(&flag[0]));
        let missing: Vec<_> = missing.flatten().copied().collect();
        arguments.extend(missing);
    }
    let output = command().args(&arguments).current_dir(folder).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
}

/// Whether what a line runs is there: a script, a crate's tests, an example. CI runs these.
fn is_there(line: &str) -> bool {
    let words: Vec<&str> = line.split_whitespace().collect();
    let after = |flag: &str| {
        let at = words.iter().position(|word| *word == flag)?;
        words.get(at + 1).copied()
    };
    let folder = match after("-p") {
        Some("millpond") => root().join("crates/millpond"),
        Some(name) => root().join("crates").join(name.trim_start_matches("millpond-")),
        None => root(),
    };
    let has_tests = |name| {
        folder.join(format!("tests/{name}.rs")).is_file()
            || folder.join(format!("tests/{name}/main.rs")).is_file()
    };
    match words[0] {
        "cargo" => {
            folder.join("Cargo.toml").is_file()
                && after("--test").is_none_or(has_tests)
                && after("--example").is_none_or(|name| folder.join(format!("examples/{name}.rs")).is_file())
        }
        script => root().join(script).is_file(),
    }
}

/// A folder with the files that the pages speak of.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("run.toml"), block("docs/train.md", "toml").join("\n")).unwrap();
    fs::write(folder.path().join("this.toml"), block("docs/probe.md", "toml").join("\n")).unwrap();
    folder
}

#[test]
fn the_commands_on_pages_run() {
    for page in PAGES {
        let (commands, folder) = (block(page, "sh"), folder());
        let expected = if page == "CONTRIBUTING.md" { 9 } else { 1 };
        assert!(commands.len() >= expected, "{page}: {commands:?}");
        for line in commands {
            let of_ours = ["millpond ", "cargo run --release -- ", "cargo run -- "];
            match of_ours.iter().find_map(|start| line.strip_prefix(start)) {
                Some(arguments) => run(arguments, folder.path()),
                None if LAUNCHERS.iter().any(|launcher| line.starts_with(launcher)) => {
                    let (_, arguments) =
                        line.split_once(" millpond ").unwrap_or_else(|| panic!("{page}: {line}"));
                    run(&format!("{arguments} --help"), folder.path());
                }
                None if OTHERS.iter().any(|other| line.starts_with(other)) => {}
                None => assert!(is_there(&line), "{page}: {line}"),
            }
        }
    }
}

#[test]
fn commands_within_sentences_are_known() {
    for page in PAGES {
        let text = text(page);
        for code in text.split('`').skip(1).step_by(2) {
            let arguments = code.strip_prefix("millpond ").or(code.strip_prefix("cargo run --release -- "));
            if let Some(arguments) = arguments.filter(|_| !code.contains('\n')) {
                let words = arguments.split_whitespace().chain(["--help"]);
                let output = command().args(words).output().unwrap();
                assert!(output.status.success(), "{page}: {code}: {}", stderr(&output));
            }
        }
    }
}

#[test]
fn the_settings_shown_are_the_defaults() {
    let shown = block("docs/train.md", "toml").join("\n");
    let folder = folder();
    let read = millpond_mlp::Config::read(&folder.path().join("run.toml")).unwrap();
    assert_eq!(read, millpond_mlp::Config::default(), "{shown}");
}

#[test]
fn the_keys_shown_are_those_of_json() {
    let folder = folder();
    run("train --json run.json", folder.path());
    let written = crate::shared::read_json(&folder.path().join("run.json"));
    let shown: serde_json::Value = serde_json::from_str(&block("docs/train.md", "json").join("\n")).unwrap();
    assert_eq!(crate::shared::keys(&written), crate::shared::keys(&shown));
    assert_eq!(crate::shared::keys(&written["epochs"][0]), crate::shared::keys(&shown["epochs"][0]));
}
