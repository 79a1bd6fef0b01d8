//! What a tool that watches the process hears: ranges for tags, and marks. `cuda_nvtx.rs` has what compute-sanitizer makes of it.

use std::path::Path;
use std::process::Command;

use millpond::Pool;
use millpond::device::sim::SimOptions;
use millpond::record::tag;

use crate::processes::again;
use crate::shared::{Freeing, MIB, sim_with};

const TEST: &str = "a_profiler_hears_of_tags_growth_remaps_waits_and_errors";
const PATH: &str = "NVTX_INJECTION64_PATH";

/// What the tool heard of [`work`], and what the pool counted.
fn heard(tool: &Path, switch: Option<&str>) -> (Vec<String>, String) {
    let mut program = again(TEST);
    program.env(PATH, tool).envs(switch.map(|switch| ("MILLPOND_NVTX", switch)));
    let output = program.output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}");
    let lines = err.lines().filter_map(|line| line.strip_prefix("tool: "));
    let counted = out.lines().find_map(|line| line.split_once("counted: ")).expect("it counted").1;
    (lines.map(str::to_owned).collect(), counted.to_owned())
}

/// A pool grows, remaps, waits for a stream, and runs out of memory.
fn work() {
    let (sim, context, stream) = sim_with(SimOptions::default());
    let pool = Pool::builder(&context).name("watched").hard_limit(64 * MIB).build().unwrap();
    let other = context.create_stream().unwrap();
    let forward = tag("forward");
    let blocks: Vec<_> = (0..16).map(|_| pool.alloc(4 * MIB, &stream).unwrap()).collect();
    blocks.iter().step_by(2).for_each(|block| pool.free_block(*block, &stream).unwrap());
    let attention = tag("atten\0tion");
    let large = pool.alloc(32 * MIB, &stream).unwrap();
    drop(attention);
    let hold = sim.hold(stream.handle()).unwrap();
    pool.free_block(large, &stream).unwrap();
    _ = pool.alloc(32 * MIB, &other).unwrap();
    drop(forward);
    pool.alloc(128 * MIB, &stream).unwrap_err();
    drop(hold);
    let stats = pool.stats();
    assert!(stats.pages_remapped > 0 && stats.stream_waits > 0, "{stats:?}");
    println!("counted: {} {}", stats.pages_remapped, stats.stream_waits);
}

#[test]
fn a_profiler_hears_of_tags_growth_remaps_waits_and_errors() {
    if std::env::var_os(PATH).is_some() {
        return work();
    }
    let folder = tempfile::tempdir().unwrap();
    let tool = folder.path().join("tool.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/nvtx_tool.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&tool).arg(source);
    match compiler.status() {
        Ok(status) => assert!(status.success()),
        Err(_) => {
            assert!(std::env::var_os("MILLPOND_REQUIRE_TOOLS").is_none(), "cc is not installed");
            return eprintln!("not run: cc is not installed");
        }
    }
    let (heard_of, counted) = heard(&tool, None);
    assert_eq!(heard_of[0], "domain millpond");
    let ranges: Vec<_> = heard_of.iter().filter(|line| !line.contains("mark")).skip(1).collect();
    assert_eq!(ranges, ["7 push forward", "7 push atten", "7 pop", "7 pop"]);
    let figures = |what: &str| {
        let start = format!("7 mark {what}: watched = ");
        let figures = heard_of.iter().filter_map(|line| line.strip_prefix(&start)?.parse::<u64>().ok());
        figures.collect::<Vec<_>>()
    };
    assert!(figures("grew").is_sorted() && figures("grew").last() == Some(&(64 * MIB)), "{heard_of:?}");
    let sum = |what| figures(what).iter().sum::<u64>();
    assert_eq!(format!("{} {}", sum("remapped pages"), sum("waits for another stream")), counted);
    assert_eq!(figures("out of memory"), [128 * MIB]);
    assert_eq!(heard(&tool, Some("off")).0, [""; 0]);
    assert_eq!(heard(&folder.path().join("missing.so"), None).0, [""; 0], "the program runs all the same");
}
