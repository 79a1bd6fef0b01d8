//! What CONTRIBUTING.md tells to run is there: scripts, tests and examples. CI runs those that need no GPU.

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The lines of the page's blocks that are marked `sh`, without comments.
fn commands() -> Vec<String> {
    let text = fs::read_to_string(root().join("CONTRIBUTING.md")).unwrap();
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

/// Whether the script, or the crate with the test or the example, is there.
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
    let has_test = |name| {
        let files = [format!("tests/{name}.rs"), format!("tests/{name}/main.rs")];
        files.iter().any(|file| folder.join(file).is_file())
    };
    match words[0] {
        "cargo" => {
            folder.join("Cargo.toml").is_file()
                && after("--test").is_none_or(has_test)
                && after("--example").is_none_or(|name| folder.join(format!("examples/{name}.rs")).is_file())
        }
        script => root().join(script).is_file(),
    }
}

#[test]
fn what_contributors_are_told_to_run_is_there() {
    let commands = commands();
    assert!(commands.len() > 8, "{commands:?}");
    for line in commands {
        assert!(is_there(&line), "{line}");
    }
}

#[test]
fn the_folders_that_it_lists_are_all_there_are() {
    let text = fs::read_to_string(root().join("CONTRIBUTING.md")).unwrap();
    let folders = |of: &str| {
        let entries = fs::read_dir(root().join(of)).unwrap().map(|entry| entry.unwrap());
        let folders = entries.filter(|entry| entry.path().is_dir());
        folders.map(|entry| entry.file_name().into_string().unwrap()).collect::<Vec<_>>()
    };
    for crate_ in folders("crates") {
        assert!(text.contains(&format!("`crates/{crate_}`")), "crates/{crate_}");
    }
    for folder in folders("crates/millpond/src") {
        assert!(text.contains(&format!("`{folder}/`")), "src/{folder}");
    }
}
