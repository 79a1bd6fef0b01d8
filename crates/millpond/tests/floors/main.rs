//! The order of the house: no file uses another in a circle, and no floor one above it. For all crates of the workspace;
//! which crate may use which, their Cargo.toml says.

mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use source::Uses;

/// The floors of this crate, from the ground up: files and folders of `src/`. Each may use those before it.
const FLOORS: [&[&str]; 13] = [
    &["host.rs", "lock.rs", "process.rs", "stats.rs", "counters.rs"],
    &["device/"],
    &["out_of_memory.rs", "error.rs"],
    &["order/"],
    &["physical/"],
    &["policy/"],
    &["extents/"],
    &["cache/"],
    &["record/", "no_record.rs"],
    &["pool/"],
    &["buffer.rs", "workspace.rs", "cudarc/"],
    &["testing/"],
    &["bindings.rs", "lib.rs"],
];

/// Circles that are known: the files, below `crates/`, and why they may stand. One that is gone has to go from here.
const KNOWN_CIRCLES: &[(&[&str], &str)] = &[];

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a folder of crates").to_owned()
}

/// Whether `file` is the `mod.rs` (or the root) of a folder in which `used` lies.
fn is_below(used: &str, file: &str) -> bool {
    ["mod.rs", "lib.rs"]
        .iter()
        .any(|root| file.strip_suffix(root).is_some_and(|folder| used.starts_with(folder)))
}

/// Each file of the workspace, below `crates/`, with what it uses. That a `mod.rs` uses what lies in its folder does not
/// count: it may define what the files there share, and put them together.
fn house() -> BTreeMap<String, Uses> {
    let mut house = BTreeMap::new();
    for folder in fs::read_dir(crates()).expect("crates/ can be read") {
        let src = folder.expect("crates/ can be read").path().join("src");
        let prefix = src.strip_prefix(crates()).expect("below crates/").to_str().expect("UTF-8").to_owned();
        let full = |file: String| format!("{prefix}/{file}");
        for (file, uses) in source::read(&src) {
            let uses = uses.into_iter().filter(|(used, _)| !is_below(used, &file));
            house.insert(full(file.clone()), uses.map(|(used, names)| (full(used), names)).collect());
        }
    }
    house
}

/// The files that `from` leads to.
fn reached<'a>(house: &'a BTreeMap<String, Uses>, from: &str) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut next: Vec<&str> = house[from].keys().map(String::as_str).collect();
    while let Some(file) = next.pop() {
        if reached.insert(file) {
            next.extend(house[file].keys().map(String::as_str));
        }
    }
    reached
}

/// The largest sets of files each of which leads to all others.
fn circles(house: &BTreeMap<String, Uses>) -> BTreeSet<BTreeSet<&str>> {
    let all: BTreeMap<_, _> = house.keys().map(|file| (file.as_str(), reached(house, file))).collect();
    let circle_of =
        |file: &str| all[file].iter().copied().filter(|other| all[other].contains(file)).collect();
    all.keys().map(|file| circle_of(file)).filter(|circle: &BTreeSet<_>| !circle.is_empty()).collect()
}

fn arrows_within(house: &BTreeMap<String, Uses>, circle: &BTreeSet<&str>) -> String {
    let mut text = String::new();
    for file in circle {
        for (used, names) in house[*file].iter().filter(|(used, _)| circle.contains(used.as_str())) {
            let names: Vec<_> = names.iter().map(String::as_str).collect();
            writeln!(text, "  {file} uses {used}: {}", names.join(", ")).expect("a String takes all");
        }
    }
    text
}

#[test]
fn no_file_uses_another_in_a_circle() {
    let house = house();
    let found = circles(&house);
    let known: BTreeSet<BTreeSet<_>> =
        KNOWN_CIRCLES.iter().map(|(files, _)| files.iter().copied().collect()).collect();
    let mut text = String::new();
    for circle in found.difference(&known) {
        writeln!(
            text,
            "{} files use each other in a circle:\n{}",
            circle.len(),
            arrows_within(&house, circle)
        )
        .expect("a String takes all");
    }
    for circle in known.difference(&found) {
        writeln!(text, "KNOWN_CIRCLES names a circle that is not there: take it out, or name what is left of it: {circle:?}")
            .expect("a String takes all");
    }
    assert!(text.is_empty(), "\n{text}");
}

fn floor_of(file: &str) -> usize {
    let holds = |place: &&str| file == *place || place.ends_with('/') && file.starts_with(*place);
    FLOORS
        .iter()
        .position(|places| places.iter().any(holds))
        .unwrap_or_else(|| panic!("src/{file} stands on no floor: give it one in FLOORS, {}", file!()))
}

#[test]
fn no_floor_uses_one_above_it() {
    let mut text = String::new();
    let house = source::read(&crates().join("millpond/src"));
    for (file, uses) in &house {
        for (used, names) in uses {
            if floor_of(used) > floor_of(file) {
                let names: Vec<_> = names.iter().map(String::as_str).collect();
                writeln!(text, "src/{file} uses src/{used}, which stands above it: {}", names.join(", "))
                    .expect("a String takes all");
            }
        }
    }
    assert!(text.is_empty(), "\n{text}");
}
