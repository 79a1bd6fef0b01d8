//! The commands of the users' pages can be run as they stand there. (Rust in the pages is tested with the library, as
//! documentation.)
//!
//! What takes long, or needs a GPU, is only read: its flags and values are those that the command knows.

mod shared;

use std::fs;
use std::path::{Path, PathBuf};

use shared::{command, stderr};

/// Those whose shell blocks are tested here.
const PAGES: [&str; 3] = ["CONTRIBUTING.md", "docs/pages.md", "docs/speed.md"];

/// What `TRACE` stands for.
const TRACE: &str = "crates/replay/tests/data/pipeline_streams_stacks.pickle.gz";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The lines of the page's blocks that are marked `sh`, without comments.
fn commands(page: &str) -> Vec<String> {
    let text = fs::read_to_string(root().join(page)).unwrap();
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

#[test]
fn the_commands_on_pages_run() {
    for page in PAGES {
        let commands = commands(page);
        assert!(!commands.is_empty(), "{page} has no shell block");
        for line in commands {
            let of_ours = ["millpond ", "cargo run --release -- ", "cargo run -- "];
            match of_ours.iter().find_map(|start| line.strip_prefix(start)) {
                Some(arguments) => run(arguments),
                None => assert!(is_there(&line), "{page}: {line}"),
            }
        }
    }
}
