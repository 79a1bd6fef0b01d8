//! docs/environment.md has every variable that the code reads, and no other.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// What tests and builds set, and no user does.
const OF_TESTS: [&str; 2] = ["MILLPOND_TEST", "MILLPOND_VERSION"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The names in a text that stand behind this mark.
fn names(text: &str, mark: char) -> impl Iterator<Item = String> {
    text.match_indices("MILLPOND_").filter_map(move |(at, _)| {
        let is_marked = text[..at].ends_with(mark);
        let end = text[at..].find(|c: char| !c.is_ascii_uppercase() && c != '_')?;
        (is_marked && text[at + end..].starts_with(mark)).then(|| text[at..at + end].to_owned())
    })
}

/// All files below a folder whose name ends so.
fn files(folder: &Path, endings: &[&str]) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path());
    entries
        .flat_map(|path| if path.is_dir() { files(&path, endings) } else { vec![path] })
        .filter(|path| endings.iter().any(|ending| path.extension().is_some_and(|is| is == *ending)))
        .collect()
}

#[test]
fn the_page_has_every_variable_that_is_read() {
    let crates = fs::read_dir(root().join("crates")).unwrap().map(|entry| entry.unwrap().path());
    let sources = crates.flat_map(|of| [of.join("src"), of.join("python")]);
    let read: BTreeSet<_> = sources
        .flat_map(|folder| files(&folder, &["rs", "py"]))
        .flat_map(|file| names(&fs::read_to_string(file).unwrap(), '"').collect::<Vec<_>>())
        .filter(|name| !OF_TESTS.iter().any(|of| name.starts_with(of)))
        .collect();
    let page = fs::read_to_string(root().join("docs/environment.md")).unwrap();
    let told: BTreeSet<_> = names(&page, '`').collect();
    let missing: Vec<_> = read.difference(&told).collect();
    let unknown: Vec<_> = told.difference(&read).collect();
    assert!(missing.is_empty() && unknown.is_empty(), "not told: {missing:?}; not read: {unknown:?}");
    assert!(read.len() > 30 && read.contains("MILLPOND_LIMIT") && read.contains("MILLPOND_TORCH"));
}
