//! CONTRIBUTING.md lists every crate, and every folder of the library; docs/walk.md names files that there are. The commands on
//! these pages are tested with those of the other pages, in the command's tests.

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn folders(of: &str) -> Vec<String> {
    let entries = fs::read_dir(root().join(of)).unwrap().map(|entry| entry.unwrap());
    let folders = entries.filter(|entry| entry.path().is_dir());
    folders.map(|entry| entry.file_name().into_string().unwrap()).collect()
}

#[test]
fn the_folders_that_it_lists_are_all_there_are() {
    let text = fs::read_to_string(root().join("CONTRIBUTING.md")).unwrap();
    for crate_ in folders("crates") {
        assert!(text.contains(&format!("`crates/{crate_}`")), "crates/{crate_}");
    }
    for folder in folders("crates/millpond/src") {
        assert!(text.contains(&format!("`{folder}/`")), "src/{folder}");
    }
}

#[test]
fn the_walk_names_files_and_folders_that_there_are() {
    let text = fs::read_to_string(root().join("docs/walk.md")).unwrap();
    let src = root().join("crates/millpond/src");
    let named: Vec<_> = text.split('`').filter(|word| word.ends_with(".rs") || word.ends_with('/')).collect();
    assert!(named.len() > 20, "{named:?}");
    for name in named.into_iter().filter(|name| *name != "mod.rs") {
        assert!(src.join(name).exists() || root().join(name).exists(), "docs/walk.md names {name}");
    }
    for folder in folders("crates/millpond/src") {
        assert!(text.contains(&format!("{folder}/")), "docs/walk.md does not name {folder}/");
    }
}
