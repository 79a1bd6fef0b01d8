//! CONTRIBUTING.md lists every crate, and every folder of the library. Its commands are tested with those of the other pages,
//! in the command's tests.

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
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
