//! What `millpond leaks`, `millpond diff` and a replay of several ranks say of recordings.

use std::path::{Path, PathBuf};

use millpond::device::sim::{SimDevice, SimOptions};
use millpond::{Context, Pool, record};
use serde_json::Value;

use crate::shared::{command, failure, millpond, read_json, stderr, stdout};

fn data(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../replay/tests/data").join(name);
    path.to_str().unwrap().to_owned()
}

const PIPELINE: &str = "pipeline_streams_stacks.pickle.gz";

/// A recording of so many steps on the simulated device, of which each takes gigabytes for a while and keeps `kept` bytes.
fn recorded(folder: &Path, name: &str, steps: u64, kept: u64) -> PathBuf {
    let path = folder.join(name);
    let device = SimDevice::new(SimOptions::default().capacity(64 << 30)).unwrap();
    let context = Context::new(device);
    let options = record::Options::new(&path).call_sites(true);
    let pool = Pool::builder(&context).record(options).build().unwrap();
    let stream = context.create_stream().unwrap();
    let mut blocks = vec![pool.alloc(1 << 30, &stream).unwrap()];
    for step in 0..steps {
        let _step = record::tag("step");
        let short: Vec<_> = {
            let _forward = record::tag("forward");
            let size = |at: u64| (1 + (step * 7 + at * 5) % 11) << 28;
            (0..4).map(|at| pool.alloc(size(at), &stream).unwrap()).collect()
        };
        let _cache = record::tag("cache");
        blocks.push(pool.alloc(kept, &stream).unwrap());
        // SAFETY: the blocks are this test's, without work.
        short.into_iter().for_each(|block| unsafe { pool.free(block, &stream) }.unwrap());
    }
    // SAFETY: as above.
    blocks.into_iter().for_each(|block| unsafe { pool.free(block, &stream) }.unwrap());
    pool.stop_recording().unwrap();
    path
}

/// What `--json` writes.
fn json(arguments: &[&str]) -> Value {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("out.json");
    stdout(&millpond(&[arguments, &["--json", file.to_str().unwrap()]].concat()));
    read_json(&file)
}

/// But for rows of call sites, which are whole where there is no terminal.
fn fits_a_terminal(text: &str) {
    let mut lines = text.lines().filter(|line| !line.contains(" < "));
    assert!(lines.all(|line| line.chars().count() <= 80), "{text}");
}

#[test]
fn a_planted_leak_is_the_first_row_of_leaks() {
    let dir = tempfile::tempdir().unwrap();
    let path = recorded(dir.path(), "leak.mprec", 40, 1 << 20);
    let path = path.to_str().unwrap();
    let text = stdout(&millpond(&["leaks", path]));
    fits_a_terminal(&text);
    let mut rows = text.lines().skip_while(|line| !line.starts_with("Grows from step to step: 1 of "));
    assert!(rows.nth(1).unwrap().ends_with("  who"), "{text}");
    let first = rows.next().unwrap();
    assert!(first.trim().starts_with("+1.00 MiB  1.000 ") && first.contains("  step/cache: "), "{text}");
    assert!(
        text.contains("a step begins with the tag ") && text.contains("Live at the end: nothing"),
        "{text}"
    );
    let told = &json(&["leaks", path, "--step", "forward"])[0];
    assert_eq!((&told["step_by"], &told["step"]), (&"tag".into(), &"forward".into()));
    assert!((told["grown"][0]["bytes_a_step"].as_f64().unwrap() / f64::from(1 << 20) - 1.0).abs() < 1e-6);
    assert_eq!(told["grown"][0]["tag"], "step/cache");
}

#[test]
fn leaks_of_a_snapshot_are_told_by_call_site() {
    let text = stdout(&millpond(&["leaks", &data(PIPELINE)]));
    fits_a_terminal(&text);
    assert!(
        text.contains("16 parts: no step was found") && text.contains("  pipeline_streams (t3.py:76)"),
        "{text}"
    );
    let (recording, given) = (json(&["leaks", &data(PIPELINE)]), &data(PIPELINE));
    let live = &recording[0]["live_at_end"];
    assert_eq!(live["blocks"], 76, "{given}");
    // Four streams still use most of it.
    assert!(text.contains("   4.06 GiB  97 %       68  (freed, waiting for streams)\n"), "{text}");
    assert_eq!((&live["waiting_blocks"], &live["sites"][1]["blocks"]), (&68.into(), &8.into()));
    let row = json(&["diff", &data(PIPELINE)]);
    let rows = row[0]["changes"].as_array().unwrap();
    let waiting = rows.iter().find(|row| row["site"] == "(freed, waiting for streams)").unwrap();
    assert_eq!((&waiting["after"], &waiting["blocks_after"]), (&live["waiting"], &68.into()));
    let all: i64 = rows.iter().map(|row| row["change"].as_i64().unwrap()).sum();
    assert_eq!(all, row[0]["requested"].as_i64().unwrap());
}

#[test]
fn a_step_that_there_is_not_is_refused_with_those_that_there_are() {
    let dir = tempfile::tempdir().unwrap();
    let path = recorded(dir.path(), "run.mprec", 12, 512);
    let said = failure(&millpond(&["leaks", path.to_str().unwrap(), "--step", "epoch"]));
    assert!(
        said.contains("no phase and no tag 'epoch'") && said.ends_with("those that do: cache, forward"),
        "{said}"
    );
    let said = failure(&millpond(&["leaks", &data(PIPELINE), "--step", "epoch"]));
    assert!(said.ends_with("none does: leave --step out"), "{said}");
}

#[test]
fn two_runs_differ_by_rows_that_sum_up() {
    let dir = tempfile::tempdir().unwrap();
    let [one, other] = [("one.mprec", 20, 1 << 20), ("other.mprec", 24, 4 << 20)]
        .map(|(name, steps, kept)| recorded(dir.path(), name, steps, kept).to_str().unwrap().to_owned());
    let text = stdout(&millpond(&["diff", &one, &other]));
    fits_a_terminal(&text);
    assert!(
        text.starts_with("from  one.mprec at its peak (")
            && text.contains("\nto    other.mprec at its peak ("),
        "{text}"
    );
    assert!(text.contains("  step/cache\n") && text.contains("  held, in all\n"), "{text}");
    let told = &json(&["diff", &one, &other])[0];
    let sum = |rows: &Value| {
        rows.as_array().unwrap().iter().map(|row| row["change"].as_i64().unwrap()).sum::<i64>()
    };
    assert_eq!(sum(&told["changes"]), told["requested"].as_i64().unwrap());
    assert_eq!(sum(&told["tags"]), sum(&told["changes"]));
    assert_eq!(
        sum(&told["changes"]) + told["not_requested"].as_i64().unwrap(),
        told["held"].as_i64().unwrap(),
        "{told}"
    );
}

#[test]
fn two_moments_of_a_run_are_compared() {
    let dir = tempfile::tempdir().unwrap();
    let run = recorded(dir.path(), "run.mprec", 20, 1 << 20);
    let run = run.to_str().unwrap();
    let told = &json(&["diff", run, "--from", "step:5", "--to", "step:15", "--step", "forward"])[0];
    assert_eq!(
        (&told["requested"], told["changes"].as_array().unwrap().len()),
        (&(10 << 20).into(), 1),
        "{told}"
    );
    assert_eq!(
        (&told["changes"][0]["tag"], &told["changes"][0]["became"]),
        (&"step/cache".into(), &"grew".into())
    );
    let text = stdout(&millpond(&["diff", &data(PIPELINE), "--from", "100ms", "--to", "peak"]));
    fits_a_terminal(&text);
    assert!(text.contains("pipeline_streams (t3.py:74)"), "{text}");
}

#[test]
fn a_moment_that_there_is_not_is_refused() {
    for (moment, said) in [
        ("later", "--to: expected start, end, peak"),
        ("1h", "name an earlier moment"),
        ("step:3", "nothing in pipeline_streams_stacks.pickle.gz says what a step is"),
        ("in:forward", "has no phase and no tag 'forward'; it has none at all"),
    ] {
        let error = failure(&millpond(&["diff", &data(PIPELINE), "--to", moment]));
        assert!(error.contains(said), "{error}");
    }
    let error = failure(&millpond(&["diff", "-", "-"]));
    assert!(error.contains("name a file for the other"), "{error}");
}

#[test]
fn the_peak_is_written_by_call_stack_in_three_formats() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str| {
        let path = dir.path().join(name);
        let flag = ["--export-stacks", path.to_str().unwrap()];
        millpond(&[&["replay", &data(PIPELINE), "--allocator", "millpond"], &flag[..]].concat())
    };
    for (name, begins) in [
        ("peak.svg", &b"<svg xmlns=\"http://www.w3.org/2000/svg\""[..]),
        ("peak.folded", b"_"),
        ("peak.pb.gz", b"\x1f\x8b"),
    ] {
        let said = stdout(&write(name));
        let written = std::fs::read(dir.path().join(name)).unwrap();
        assert!(written.starts_with(begins) || begins == b"_", "{name}: {said}");
        assert!(written.len() > 100, "{name}");
    }
    let said = failure(&write("peak.png"));
    assert!(said.starts_with("--export-stacks: ") && said.contains(".svg (flame graph)"), "{said}");
}

#[test]
fn ranks_are_told_side_by_side_with_what_the_worst_holds_more() {
    let dir = tempfile::tempdir().unwrap();
    let ranks = [("rank0.mprec", 1 << 20), ("rank1.mprec", 64 << 20), ("rank2.mprec", 2 << 20)];
    let ranks = ranks.map(|(name, kept)| recorded(dir.path(), name, 12, kept).to_str().unwrap().to_owned());
    let arguments = ["replay", &ranks[0], &ranks[1], &ranks[2], "--allocator", "millpond"];
    let text = stdout(&millpond(&arguments));
    fits_a_terminal(&text);
    let (_, text) = text.split_once("Side by side, at most\n").unwrap();
    let above: Vec<bool> = text.lines().skip(1).take(3).map(|line| line.contains("+0 B")).collect();
    assert_eq!(above, [true, false, false], "{text}");
    assert!(text.contains("\nrank1.mprec requests most, and "), "{text}");
    assert!(text.contains("from  rank0.mprec at its peak") && text.contains("  step/cache\n"), "{text}");
}

#[test]
fn the_commands_of_the_page_run() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["run", "yesterday", "today", "rank0", "rank1", "rank2", "oom"] {
        recorded(dir.path(), &format!("{name}.mprec"), 40, 1 << 20);
    }
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/seeing.md");
    let page = std::fs::read_to_string(page).unwrap();
    let blocks = page.split("```sh\n").skip(1).map(|rest| rest.split_once("```").unwrap().0);
    let in_table =
        page.lines().filter(|line| line.starts_with('|')).filter_map(|line| line.split('`').nth(1));
    let mut count = 0;
    for line in blocks.flat_map(str::lines).chain(in_table) {
        let Some(arguments) = line.strip_prefix("millpond ") else { continue };
        // These two do not end by themselves.
        let more = match arguments.split_whitespace().collect::<Vec<_>>()[..] {
            ["top"] => &["--once", "--interval", "50ms"][..],
            ["metrics", ..] => &["--help"],
            _ => &[],
        };
        let mut run = command();
        let output = run.args(arguments.split_whitespace()).args(more).current_dir(&dir).output().unwrap();
        assert!(output.status.success(), "{line}: {}", stderr(&output));
        count += 1;
    }
    assert!(count >= 15, "{count} commands");
}
