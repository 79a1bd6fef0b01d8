//! docs/walk.md is true: the functions that it names are where it says, a real miss takes its way, and each file that it enters is
//! named.

#[cfg(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu", not(miri)))]
mod stepping;

use std::backtrace::Backtrace;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use millpond::device::sim::{SimDevice, SimOptions};
use millpond::device::{Device, DevicePtr, DeviceResult, Forward, PageHandle};
use millpond::{Context, Pool};

#[cfg(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu", not(miri)))]
use crate::processes::{MEASURED, alone};
use crate::shared::{Freeing, MIB};

fn src() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// The numbered steps of one allocation.
fn steps() -> Vec<String> {
    let text = fs::read_to_string(src().join("../../../docs/walk.md")).unwrap();
    let section = text.split("\n## ").find(|section| section.starts_with("One allocation")).unwrap();
    let mut steps: Vec<String> = Vec::new();
    for line in section.lines() {
        if line.starts_with(|first: char| first.is_ascii_digit()) {
            steps.push(line.to_owned());
        } else if line.starts_with(' ') {
            *steps.last_mut().unwrap() += line;
        }
    }
    steps
}

/// What stands between backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

fn files(steps: &[String]) -> Vec<&str> {
    let mut files: Vec<_> =
        steps.iter().flat_map(|step| quoted(step)).filter(|name| name.ends_with(".rs")).collect();
    files.sort_unstable();
    files.dedup();
    files
}

#[test]
fn one_allocation_is_told_in_few_steps() {
    let steps = steps();
    assert!((10..=20).contains(&steps.len()), "{} steps", steps.len());
}

#[test]
fn each_function_is_in_a_file_of_its_step() {
    let text = |name: &str| fs::read_to_string(src().join(name)).unwrap();
    for step in steps() {
        for name in quoted(&step)
            .filter(|name| name.chars().all(|letter| letter.is_ascii_lowercase() || letter == '_'))
        {
            let named = quoted(&step).filter(|name| name.ends_with(".rs"));
            let mut places = named.chain(["core/allocating.rs"]);
            let found = places.any(|file| {
                text(file).contains(&format!("fn {name}(")) || text(file).contains(&format!("fn {name}<"))
            });
            assert!(found, "docs/walk.md: no `fn {name}` in the files of: {step}");
        }
    }
}

/// Notes the way by which it is asked to map a page.
#[derive(Debug)]
struct Traced {
    below: Arc<SimDevice>,
    ways: Mutex<Vec<String>>,
}

// SAFETY: each call goes to the device below, and its answer is given back.
unsafe impl Forward for Traced {
    fn below(&self) -> &dyn Device {
        &*self.below
    }

    unsafe fn map(&self, at: DevicePtr, bytes: u64, page: PageHandle) -> DeviceResult<()> {
        self.ways.lock().unwrap().push(Backtrace::force_capture().to_string());
        // SAFETY: the caller's promise.
        unsafe { self.below.map(at, bytes, page) }
    }
}

#[test]
fn a_real_miss_takes_the_way_of_the_walk() {
    let below = SimDevice::new(SimOptions::default()).unwrap();
    let device = Arc::new(Traced { below, ways: Mutex::default() });
    let context = Context::new(device.clone());
    let stream = context.create_stream().unwrap();
    let pool = Pool::builder(&context).build().unwrap();
    let block = pool.alloc(3 * MIB, &stream).unwrap();
    let ways = std::mem::take(&mut *device.ways.lock().unwrap());
    assert!(!ways.is_empty());
    let steps = steps();
    // The first one is named before the steps, most of which are its functions.
    let named = [vec!["core/allocating.rs"], files(&steps)].concat();
    for way in ways {
        // From the program to the device, each file once; the frames come the other way round.
        let mut taken: Vec<&str> = Vec::new();
        for frame in way.lines().rev() {
            let file = frame.split("/src/").nth(1).and_then(|rest| rest.split(':').next());
            let is_ours =
                frame.contains("crates/millpond/src/") || frame.trim_start().starts_with("at ./src/");
            if let Some(file) = file.filter(|file| is_ours && taken.last() != Some(file)) {
                taken.push(file);
            }
        }
        let core: Vec<_> = taken.iter().filter(|file| named.contains(file)).copied().collect();
        let expected =
            ["core/allocating.rs", "extents/allocation.rs", "extents/commit.rs", "physical/pages.rs"];
        assert_eq!(core, expected, "{taken:?}");
    }
    pool.free_block(block, &stream).unwrap();
}

/// What a step of a debugger shows, from the program's call to the pages.
#[cfg(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu", not(miri)))]
#[test]
fn a_first_miss_enters_few_files_and_the_walk_names_each() {
    alone("a_first_miss_enters_few_files_and_the_walk_names_each", || {
        let context = Context::new(SimDevice::new(SimOptions::default()).unwrap());
        let stream = context.create_stream().unwrap();
        let pool = Pool::builder(&context).build().unwrap();
        let mut block = None;
        let mut entered =
            stepping::files_entered(&src(), || block = Some(pool.alloc(64 << 10, &stream).unwrap()));
        // The simulated device stands for the hardware.
        entered.retain(|file, _| !file.starts_with("device/"));
        assert!(entered.contains_key("extents/commit.rs"), "no lines are known of what ran: {entered:?}");
        println!("{MEASURED}a first miss enters {} files", entered.len());
        assert!(entered.len() <= 30, "{} files: {entered:#?}", entered.len());
        let steps = steps();
        let named = [vec!["core/allocating.rs"], files(&steps)].concat();
        entered.retain(|file, _| !named.contains(&&**file));
        assert!(entered.is_empty(), "no step of docs/walk.md names {entered:#?}");
        pool.free_block(block.unwrap(), &stream).unwrap();
    });
}
