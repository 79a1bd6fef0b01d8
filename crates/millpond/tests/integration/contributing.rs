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
fn the_index_of_measurements_is_whole_and_true() {
    let text = fs::read_to_string(root().join("CONTRIBUTING.md")).unwrap();
    let index = text.split("\n## ").find(|part| part.starts_with("Where performance is measured")).unwrap();
    let named: Vec<_> = index.split('`').skip(1).step_by(2).filter(|name| name.contains('/')).collect();
    for path in named.iter().filter_map(|name| name.split(' ').next()) {
        assert!(root().join(path).exists(), "the index names {path}");
    }
    for folder in ["crates/bench/examples", "crates/millpond/benches", "crates/capi/benches"] {
        for file in fs::read_dir(root().join(folder)).unwrap() {
            let name = file.unwrap().file_name().into_string().unwrap();
            assert!(index.contains(&name), "the index does not name {folder}/{name}");
        }
    }
}

/// An error that cannot be planted any more proves nothing: it has to follow the code.
#[test]
fn each_planted_error_has_one_place_in_the_code() {
    let text = fs::read_to_string(root().join("scripts/planted-errors")).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let errors: Vec<[&str; 4]> =
        lines.map(|line| line.split('\t').collect::<Vec<_>>().try_into().expect(line)).collect();
    assert!(errors.len() > 60, "{}", errors.len());
    for [by, file, stands, planted] in errors {
        let of = if by.starts_with("capi::") { "crates/capi/src" } else { "crates/millpond/src" };
        let code = fs::read_to_string(root().join(of).join(file)).unwrap();
        let stands = stands.replace("\\n", "\n");
        assert_eq!(code.matches(&stands).count(), 1, "in {file}: {stands}");
        assert_ne!(stands, planted.replace("\\n", "\n"), "in {file}");
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

/// The pages that users read.
fn pages() -> Vec<PathBuf> {
    let in_folder = |folder: &str| {
        let entries = fs::read_dir(root().join(folder)).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.extension().is_some_and(|end| end == "md")).collect::<Vec<_>>()
    };
    ["", "docs", "docs/lab", "docs/upstream"]
        .into_iter()
        .filter(|folder| root().join(folder).exists())
        .flat_map(in_folder)
        .collect()
}

/// The lines of a page that are no code.
fn prose(page: &Path) -> String {
    let text = fs::read_to_string(page).unwrap();
    let parts = text.split("```").step_by(2);
    parts.collect()
}

/// What GitHub makes of a heading.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text.chars().filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
    kept.map(|letter| if letter == ' ' { '-' } else { letter }).collect()
}

#[test]
fn links_between_pages_lead_to_headings_that_there_are() {
    let mut seen = 0;
    for page in pages() {
        let text = prose(&page);
        let targets =
            text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target);
        for target in targets.filter(|target| !target.contains("://")) {
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let to = if file.is_empty() { page.clone() } else { page.parent().unwrap().join(file) };
            assert!(to.exists(), "{} links to {target}", page.display());
            if !heading.is_empty() && to.extension().is_some_and(|end| end == "md") {
                let has = prose(&to).lines().any(|line| line.starts_with('#') && anchor(line) == heading);
                assert!(has, "{} links to {target}, and there is no such heading", page.display());
            }
            seen += 1;
        }
    }
    assert!(seen > 100, "{seen} links");
}
