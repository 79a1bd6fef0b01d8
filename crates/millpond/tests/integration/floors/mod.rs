//! The order of the house: no file uses another in a circle, and no floor one above it. For all crates of the workspace;
//! which crate may use which, their Cargo.toml says.

mod source;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};

use source::Uses;

/// The floors of this crate, from the ground up: files and folders of `src/`. Each may use those before it.
const FLOORS: [&[&str]; 17] = [
    &["policy/"],
    &["log.rs", "system/", "figures/"],
    &["nvtx/"],
    &["device/"],
    &["out_of_memory.rs", "error.rs"],
    &["budgets/"],
    &["order/"],
    &["physical/"],
    &["extents/"],
    &["cache/"],
    &["record/"],
    &["core/"],
    &["capture.rs", "decay/", "evict/", "guard/", "live/", "managed.rs", "peers.rs", "sharing/", "sleep/"],
    &["pool/"],
    &["typed/", "cudarc/"],
    &["testing/"],
    &["bindings.rs", "lib.rs"],
];

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a folder of crates").to_owned()
}

/// The `mod.rs` files that may still use what lies in their folders, though that uses them: they define what the files
/// there share. In `pool/` that is how it is meant: Pool, PoolBuilder and Context are one thing.
const EXCUSED: [&str; 2] = ["millpond/src/device/sim/mod.rs", "millpond/src/pool/mod.rs"];

/// Whether `used` lies in the folder of which `file` is the `mod.rs`.
fn is_below(used: &str, file: &str) -> bool {
    file.strip_suffix("mod.rs").is_some_and(|folder| used.starts_with(folder))
}

/// Each file of the workspace, below `crates/`, with what it uses.
fn house() -> BTreeMap<String, Uses> {
    let mut house = BTreeMap::new();
    for folder in fs::read_dir(crates()).expect("crates/ can be read") {
        let src = folder.expect("crates/ can be read").path().join("src");
        let prefix = src.strip_prefix(crates()).expect("below crates/").to_str().expect("UTF-8").to_owned();
        let full = |file: String| format!("{prefix}/{file}");
        for (file, uses) in source::read(&src) {
            house.insert(full(file), uses.into_iter().map(|(used, names)| (full(used), names)).collect());
        }
    }
    house
}

/// Takes out what the files use that are excused.
fn excuse(house: &mut BTreeMap<String, Uses>, excused: &[&str]) {
    for file in excused {
        house.get_mut(*file).expect("a file that there is").retain(|used, _| !is_below(used, file));
    }
}

/// A shortest way from a file back to it, with the file at its end; `None` where there is none.
fn circle_of<'a>(house: &'a BTreeMap<String, Uses>, start: &'a str) -> Option<Vec<&'a str>> {
    let mut seen = BTreeSet::new();
    let mut ways = VecDeque::from([vec![start]]);
    while let Some(way) = ways.pop_front() {
        for used in house[*way.last().expect("a way has a start")].keys() {
            let longer = [way.as_slice(), &[used.as_str()]].concat();
            if used == start {
                return Some(longer);
            }
            if seen.insert(used) {
                ways.push_back(longer);
            }
        }
    }
    None
}

fn joined(names: &BTreeSet<String>) -> String {
    names.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
}

#[test]
fn no_file_uses_another_in_a_circle() {
    let mut house = house();
    excuse(&mut house, &EXCUSED);
    let circles: Vec<_> = house.keys().filter_map(|file| circle_of(&house, file)).collect();
    let in_circles: Vec<_> = circles.iter().map(|circle| circle[0]).collect();
    let Some(shortest) = circles.iter().min_by_key(|circle| circle.len()) else { return };
    let arrows = shortest.windows(2).map(|arrow| {
        let [user, used] = [arrow[0], arrow[1]];
        format!("  {user} uses {used}: {}\n", joined(&house[user][used]))
    });
    panic!(
        "files use each other in a circle:\n{}in this or another circle: {}",
        arrows.collect::<String>(),
        in_circles.join(", ")
    );
}

#[test]
fn no_file_is_excused_that_need_not_be() {
    for file in EXCUSED {
        let mut house = house();
        let others: Vec<_> = EXCUSED.into_iter().filter(|other| *other != file).collect();
        excuse(&mut house, &others);
        assert!(circle_of(&house, file).is_some(), "{file} is in no circle: take it out of EXCUSED");
    }
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
                text += &format!("src/{file} uses src/{used}, which stands above it: {}\n", joined(names));
            }
        }
    }
    assert!(text.is_empty(), "\n{text}");
}

#[test]
fn only_one_file_sends_events() {
    let src = crates().join("millpond/src");
    let mut found = Vec::new();
    let mut folders = vec![src.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder of sources") {
            let path = entry.expect("src/ can be read").path();
            if path.is_dir() {
                folders.push(path);
            } else if fs::read_to_string(&path).expect("a text").contains("tracing::") {
                found.push(path);
            }
        }
    }
    assert_eq!(found, [src.join("log.rs")], "others use `log`, which waits until no lock is held");
}

#[test]
fn methods_away_from_their_type_close_a_circle() {
    let folder = tempfile::tempdir().expect("a folder");
    let files = [
        ("lib.rs", "mod tower; mod wing;"),
        ("tower.rs", "pub struct Tower; impl Tower { pub fn enter(&self) { self.climb() } }"),
        ("wing.rs", "use super::tower::Tower; impl Tower { pub fn climb(&self) {} }"),
    ];
    for (name, text) in files {
        fs::write(folder.path().join(name), text).expect("a file");
    }
    let house = source::read(folder.path());
    assert_eq!(circle_of(&house, "tower.rs"), Some(vec!["tower.rs", "wing.rs", "tower.rs"]));
    assert_eq!(joined(&house["tower.rs"]["wing.rs"]), "climb()");
}
