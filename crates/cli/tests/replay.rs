//! `millpond replay` as a user calls it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use millpond::{Context, HumanBytes, Pool, record};
use serde_json::{Value, json};

use crate::shared::{command, keys, millpond, read_json, stderr, stdout};

fn trace(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../replay/tests/data").join(name)
}

fn replay(name: &str, args: &[&str]) -> Output {
    let mut command = command();
    command.arg("replay").arg(trace(name)).args(args).output().unwrap()
}

/// Text without its line breaks, which are where a terminal has 80 columns.
fn unwrapped(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The cells of the first line of this name, in the table under this title.
fn cells(text: &str, title: &str, name: &str) -> Vec<String> {
    // A verdict may have a line that begins so, too.
    let is_title = |line: &str| line.starts_with(title) && (title != "allocator" || line.contains("  "));
    let table = text.lines().skip_while(|line| !is_title(line)).take_while(|line| !line.is_empty());
    let line = table.into_iter().find(|line| line.starts_with(&format!("{name} "))).expect("a row");
    line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).map(str::to_owned).collect()
}

const GNN: &str = "gnn_stacks.pickle.gz";
const PIPELINE: &str = "pipeline_streams_stacks.pickle.gz";

#[test]
fn a_replay_tells_held_wasted_and_needed_then_a_verdict() {
    let text = stdout(&replay(PIPELINE, &[]));
    for part in [
        "344 blocks, 6 streams",
        "requested at most 5.75 GiB, reserved in the recorded run 11.17 GiB",
        "other streams",
        "Cards that would do",
        "left to the driver's context and libraries",
        "The job requests 5.75 GiB at most. To run, it needs",
        "Without a limit PyTorch's allocator holds up to 11.17 GiB",
        "PyTorch's allocator gives memory back and tries again",
        "Held at the peak: 5.75 GiB in 112 blocks",
    ] {
        assert!(unwrapped(&text).contains(part), "{part}: {text}");
    }
    for name in millpond_baselines::NAMES {
        assert!(text.lines().any(|line| line.starts_with(name)), "{name}: {text}");
    }
}

#[test]
fn the_first_lines_say_who_held_memory_and_what_grew() {
    let text = stdout(&replay(GNN, &["--allocator", "millpond,caching"]));
    let parts: Vec<&str> = text.split("\n\n").collect();
    assert!(parts[1].starts_with("Held at the peak: 9.78 GiB in 28 blocks\n"), "{text}");
    assert!(parts[1].lines().nth(1).unwrap().contains(" 73 %       10  gnn (t3.py:67)"), "{text}");
    assert!(parts[2].starts_with("Grew from step to step"), "{text}");
    assert!(parts[3].starts_with("The job requests"), "{text}");
    assert!(parts[4].starts_with("allocator "), "{text}");
}

#[test]
fn a_program_that_leaked_and_freed_all_at_its_end_is_told_what_grew() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("leak.mprec");
    let context = Context::host().unwrap();
    let pool = Pool::builder(&context).record(record::Options::new(&path).call_sites(true)).build().unwrap();
    let stream = context.create_stream().unwrap();
    let mut leaked = Vec::new();
    for _ in 0..100 {
        let _step = record::tag("step");
        let short = pool.alloc(4 << 20, &stream).unwrap();
        let _cache = record::tag("cache");
        leaked.push(pool.alloc(64 << 10, &stream).unwrap());
        // SAFETY: the block is this test's, without work.
        unsafe { pool.free(short, &stream) }.unwrap();
    }
    // SAFETY: as above.
    leaked.into_iter().for_each(|block| unsafe { pool.free(block, &stream) }.unwrap());
    pool.stop_recording().unwrap();
    let mut command = command();
    let text = stdout(&command.arg("replay").arg(&path).args(["--allocator", "millpond"]).output().unwrap());
    let grew = text.split("\n\n").find(|part| part.starts_with("Grew from step to step")).unwrap();
    let grew = unwrapped(grew);
    assert!(grew.contains("step/cache: ") && grew.contains("(replay.rs:"), "{text}");
    assert!(!grew.contains("4.00 MiB to"), "{text}");
    assert!(text.contains("\nLive at the end: nothing\n"), "{text}");
    assert!(text.contains("\nby call site\n") && text.contains("  step/cache\n"), "{text}");
}

#[test]
fn a_replay_that_waits_gives_a_sign_of_life_where_there_is_no_terminal() {
    use std::io::{BufRead, BufReader};
    use std::process::Stdio;
    let mut command = command();
    let command = command.args(["replay", "-"]).stdin(Stdio::piped()).stdout(Stdio::null());
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(lines.next().unwrap(), "millpond: working: -: reading");
    drop(child.stdin.take());
    assert!(lines.next().unwrap().starts_with("millpond: -: is empty"));
    assert_eq!(child.wait().unwrap().code(), Some(1));
}

#[test]
fn json_has_all_that_is_printed() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("out.json");
    let told = |args: &[&str]| {
        let text = stdout(&replay(GNN, &[&["--json", file.to_str().unwrap()], args].concat()));
        let all = read_json(&file);
        assert_eq!(all.as_array().unwrap().len(), 1);
        let of_a_trace = [
            "allocators",
            "blocks",
            "growth",
            "live_at_end",
            "live_at_peak",
            "out_of_memory",
            "phases",
            "possible",
            "recorded_reserved",
            "remarks",
            "streams",
            "trace",
            "verdict",
            "wall_us",
        ];
        assert_eq!(keys(&all[0]), of_a_trace);
        (text, all[0].clone())
    };
    let of_every_device = [
        "allocator",
        "cards",
        "decided",
        "device",
        "device_calls",
        "device_us",
        "events",
        "holds_most",
        "memory",
        "needs",
        "needs_elsewhere",
        "oom",
        "peak_requested",
        "peak_reserved",
        "ratio",
        "replay_s",
        "retries",
        "trace",
        "trace_wall_us",
    ];
    let (text, simulated) = told(&["--allocator", "millpond,caching", "--card", "3080,4090"]);
    let rows = simulated["allocators"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    for row in rows {
        assert_eq!(keys(row), of_every_device);
        assert_eq!(row["peak_requested"].as_u64(), Some(10_499_491_208));
        assert!(row["oom"].is_null() && row["device"] == "sim");
        assert!(row["needs"].as_u64() >= row["peak_requested"].as_u64());
        assert_eq!(row["cards"], serde_json::json!(["4090"]));
        assert!(row["holds_most"].is_null() && row["decided"]["reserved"].as_u64() <= row["needs"].as_u64());
    }
    let lines = simulated["verdict"]["lines"].as_array().unwrap();
    assert!(lines.len() >= 3);
    let possible = &simulated["possible"];
    assert_eq!(possible["planned"], possible["bound"]);
    assert!(possible["reserved"].as_u64() <= rows[0]["peak_reserved"].as_u64());
    assert!(lines.iter().any(|line| line.as_str().unwrap().ends_with("; 1.000 is possible.")), "{lines:?}");
    assert_eq!(cells(&text, "allocator", "(possible)")[4], "1.000");
    assert!(rows[0]["decided"]["holes_beside"].is_array(), "{rows:?}");
    assert!(lines.iter().all(|line| unwrapped(&text).contains(line.as_str().unwrap())), "{text}");
    assert_eq!(simulated["verdict"]["millpond"]["bytes"], rows[0]["needs"]);
    assert_eq!(simulated["live_at_peak"]["bytes"], 10_499_491_208_u64);
    let at_end = &simulated["live_at_end"];
    let (bytes, blocks) = (HumanBytes(at_end["bytes"].as_u64().unwrap()), &at_end["blocks"]);
    assert!(text.contains(&format!("\nLive at the end: {bytes} in {blocks} blocks\n")), "{text}");
    assert!(text.contains(at_end["sites"][0]["site"].as_str().unwrap()), "{text}");
    assert_eq!(simulated["phases"][0]["name"], "Optimizer.zero_grad#Adam.zero_grad");

    let (_, real) = told(&["--allocator", "caching", "--device", "host", "--verify"]);
    assert!(real["verdict"].is_null() && real["possible"].is_null());
    let real = &real["allocators"][0];
    let of_real_devices = ["driver_free_before", "driver_used_after", "driver_used_peak"];
    let mut both = [&of_every_device[..], &of_real_devices].concat();
    both.sort_unstable();
    assert_eq!(keys(real), both);
    assert_eq!(real["driver_used_peak"], real["peak_reserved"]);
    assert!(real["device_us"].as_f64().unwrap() > 0.0);
}

#[test]
fn out_of_memory_fails_where_that_was_asked_for() {
    let small = ["--capacity", "5GiB", "--allocator", "millpond,driver"];
    assert!(replay(GNN, &small).status.success());
    let output = replay(GNN, &[&small[..], &["--fail-if-oom"]].concat());
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(stderr(&output), format!("millpond: out of memory: {GNN} with millpond, driver\n"));
    stdout(&replay(GNN, &["--capacity", "20GiB", "--allocator", "millpond", "--fail-if-oom"]));
    // A card that was named, and of all allocators the one that ran.
    let card = |card: &str| replay(GNN, &["--card", card, "--fail-if-oom"]);
    assert_eq!(stderr(&card("24564MiB,8")), format!("millpond: out of memory: {GNN} with caching on 8\n"));
    stdout(&card("24564MiB"));
    // The job needs 9.80 GiB with the pool, and 9.88 with caching; the context takes 0.5 of it.
    let ran = |args: &[&str]| replay(GNN, &[&["--capacity", "10.35GiB", "--fail-if-oom"], args].concat());
    assert_eq!(stderr(&ran(&[])), format!("millpond: out of memory: {GNN} with caching\n"));
    stdout(&ran(&["--allocator", "millpond"]));
}

#[test]
fn no_card_is_promised_with_the_driver_s_own_pool() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("out.json");
    let args = ["--allocator", "millpond,stream-ordered", "--card", "H100", "--json", file.to_str().unwrap()];
    let text = stdout(&replay(GNN, &args));
    let cards = text.split("\n\n").find(|part| part.starts_with("Cards that would do")).unwrap();
    assert!(cards.contains("\nmillpond ") && !cards.contains("\nstream-ordered "), "{cards}");
    assert!(unwrapped(cards).contains("(stream-ordered is left out: "), "{cards}");
    let row = &read_json(&file)[0]["allocators"][1];
    assert_eq!(row["allocator"], "stream-ordered");
    assert!(
        row["needs"].is_null() && row["cards"].is_null() && row["peak_reserved"].as_u64() > Some(9 << 30)
    );
    let alone = replay(GNN, &["--allocator", "stream-ordered", "--card", "8", "--fail-if-oom"]);
    assert!(stderr(&alone).contains("name another allocator"));
}

const DIED: &str = "gpt_out_of_memory.pickle.gz";

#[test]
fn a_program_that_died_is_told_first_what_held_its_memory() {
    let dir = tempfile::tempdir().unwrap();
    let (page, file) = (dir.path().join("page.html"), dir.path().join("out.json"));
    let limit = ["--capacity", "7.8GiB", "--context", "0", "--allocator", "millpond,caching,expandable"];
    let written = ["--report", page.to_str().unwrap(), "--json", file.to_str().unwrap()];
    let text = stdout(&replay(DIED, &[&limit[..], &written].concat()));
    let first = unwrapped(text.split("\n\n").next().unwrap());
    let died = "It died asking for 500.00 MiB, with 7.03 GiB live and 488.98 MiB reserved but unallocated. The longest \
                free stretch had 420.00 MiB.";
    assert!(
        first.starts_with(&format!(
            "{DIED}: {died} It held 7.51 GiB of the 7.80 GiB that it could have had. "
        ))
    );
    assert!(first.contains("Whose blocks kept it from being used"), "{text}");
    assert!(first.contains("436.00 MiB 89 % 3 forward (gpt.py:28) < forward (gpt.py:36)"), "{text}");
    // The request is one: no allocator runs with less than what was live and what was asked for.
    let told = &read_json(&file)[0];
    let found = &told["out_of_memory"];
    let requested = 8_075_108_742_u64;
    assert_eq!(found["asked"], 500 << 20);
    assert_eq!(found["live"].as_u64().unwrap() + (500 << 20), told["live_at_peak"]["bytes"]);
    assert_eq!(told["live_at_peak"]["refused"], 500 << 20);
    assert_eq!(told["live_at_peak"]["bytes"], requested);
    assert_eq!(found["lines"][0], died);
    assert!(found["would_run"].as_array().unwrap().iter().any(|would| would["allocator"] == "expandable"));
    assert!(found["would_not"].as_array().unwrap().iter().any(|would| would["allocator"] == "caching"));
    for row in told["allocators"].as_array().unwrap() {
        assert!(row["needs"].as_u64().unwrap() >= requested, "{row}");
    }
    let page = std::fs::read_to_string(page).unwrap().replace("&nbsp;", " ");
    assert!(page.contains(died) && page.contains("Whose blocks kept it from being used"));
    // Without the limit, which no recording has.
    let text = unwrapped(&stdout(&replay(DIED, &["--allocator", "caching,expandable"])));
    assert!(
        text.contains("It is from 7.51 GiB to 8.00 GiB; --capacity LIMIT makes the answer exact."),
        "{text}"
    );
    assert!(text.contains("It would have run, if the limit is as large as that, with expandable"), "{text}");
}

#[test]
fn a_history_that_is_not_whole_is_said_first_and_promises_no_card() {
    let dir = tempfile::tempdir().unwrap();
    let event = |action: &str, addr: u64| json!({"action": action, "addr": addr, "size": 1 << 20, "stream": 0, "time_us": addr});
    let live = json!({"device": 0, "address": 0, "total_size": 4 << 20, "stream": 0,
        "blocks": [{"address": 0, "size": 1 << 20, "requested_size": 1 << 20, "state": "active_allocated"}]});
    let late = [event("free_completed", 4096), event("alloc", 8192)];
    for (name, events, settings, said) in [
        (
            "ring",
            &late[..1],
            json!({"trace_alloc_overflowed": true, "trace_alloc_max_entries": 5000}),
            "only the last 5000 are in the file. Pass a larger max_entries",
        ),
        (
            "late",
            &late[..],
            json!({}),
            "the history began late, when 2 blocks of 2.00 MiB were live already: call torch",
        ),
        (
            "none",
            &[],
            json!({}),
            "there is no history, only what was live when the file was written, 1.00 MiB in 1 block",
        ),
    ] {
        let snapshot = json!({"device_traces": [events], "segments": [live], "allocator_settings": settings});
        let (path, file) = (dir.path().join(name), dir.path().join("out.json"));
        let bytes = serde_pickle::to_vec(&snapshot, serde_pickle::SerOptions::new()).unwrap();
        std::fs::write(&path, bytes).unwrap();
        let (path, file) = (path.to_str().unwrap(), file.to_str().unwrap());
        let text = stdout(&millpond(&[
            "replay",
            path,
            "--allocator",
            "millpond",
            "--json",
            file,
            "--card",
            "8,H100",
        ]));
        let first = unwrapped(text.split("\n\n").next().unwrap());
        assert!(first.contains(said) && first.ends_with("no card is promised."), "{text}");
        assert_eq!(cells(&text, "Cards that would do", "millpond"), ["millpond", "?", "?"], "{text}");
        let told = &read_json(Path::new(file))[0];
        assert!(told["remarks"][0].as_str().unwrap().contains(said), "{told}");
        assert!(told["allocators"][0]["cards"].is_null());
        let asked = millpond(&["replay", path, "--allocator", "millpond", "--card", "H100", "--fail-if-oom"]);
        assert_eq!(asked.status.code(), Some(1));
        assert!(
            stderr(&asked).contains("nothing is promised") && stderr(&asked).contains(said),
            "{}",
            stderr(&asked)
        );
    }
}

#[test]
fn a_trace_comes_from_standard_input() {
    let mut command = command();
    let command = command.args(["replay", "-", "--allocator", "driver"]);
    let output = command.stdin(std::fs::File::open(trace(GNN)).unwrap()).output().unwrap();
    assert!(stdout(&output).starts_with("-: "), "{}", stdout(&output));
    let output = command.stdin(std::process::Stdio::null()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).starts_with("millpond: -: is empty"), "{}", stderr(&output));
}

#[test]
fn a_bad_trace_does_not_cost_the_others() {
    let dir = tempfile::tempdir().unwrap();
    let bad = dir.path().join("bad.pickle");
    std::fs::write(&bad, "no trace").unwrap();
    let json = dir.path().join("out.json");
    let mut command = command();
    let command = command.arg("replay").arg(&bad).arg(trace(GNN)).arg("/no/such.pickle");
    let output = command.args(["--allocator", "driver", "--json"]).arg(&json).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = stderr(&output);
    assert!(
        said.contains("bad.pickle: not a trace") && said.contains("/no/such.pickle: cannot be read"),
        "{said}"
    );
    let all: Value = read_json(&json);
    assert_eq!(all[0]["trace"], GNN);
}

#[test]
fn a_capacity_tells_who_fits_and_where_the_others_end() {
    let text =
        stdout(&replay(GNN, &["--capacity", "9.85GiB", "--context", "0", "--allocator", "millpond,bfc"]));
    assert!(text.contains("in 9.85 GiB: fits with millpond; not with bfc"), "{text}");
    assert!(text.contains("out of memory at event"), "{text}");
}

#[test]
fn a_run_writes_over_none_of_its_files() {
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("copy.gz");
    std::fs::copy(trace(GNN), &copy).unwrap();
    let before = std::fs::read(&copy).unwrap();
    let path = copy.to_str().unwrap();
    for flag in ["--json", "--report", "--export-snapshot", "--export-counters"] {
        let output = millpond(&["replay", path, flag, path]);
        assert_eq!(output.status.code(), Some(2));
        assert_eq!(stderr(&output), format!("millpond: {path}: is read; name another file\n"));
        assert_eq!(std::fs::read(&copy).unwrap(), before, "{flag}");
        let mut piped = command();
        piped.args(["replay", "-", flag, path]).stdin(std::fs::File::open(&copy).unwrap());
        assert_eq!(piped.output().unwrap().status.code(), Some(2));
        assert_eq!(std::fs::read(&copy).unwrap(), before, "{flag}");
    }
    let page = dir.path().join("page");
    let page = page.to_str().unwrap();
    let output = replay(GNN, &["--json", page, "--report", page]);
    assert_eq!(stderr(&output), format!("millpond: {page}: is written to already; name another file\n"));
}

#[test]
fn a_recording_that_the_environment_names_is_not_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run.mprec");
    let millpond = |args: &[&str]| {
        let mut command = command();
        stdout(&command.args(args).env("MILLPOND_RECORD", &run).output().unwrap())
    };
    millpond(&["train", "--device", "host", "--epochs", "1", "--feat-dim", "8"]);
    let recorded = std::fs::read(&run).unwrap();
    let path = run.to_str().unwrap();
    assert!(millpond(&["replay", path, "--allocator", "millpond"]).contains("1 stream"));
    millpond(&[
        "bench",
        "--device",
        "sim",
        "--suite",
        "throughput",
        "--allocator",
        "millpond",
        "--time",
        "1",
    ]);
    assert_eq!(std::fs::read(&run).unwrap(), recorded);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn call_sites_are_whole_where_nobody_has_a_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("long.mprec");
    let context = Context::host().unwrap();
    let pool = Pool::builder(&context).record(record::Options::new(&path)).build().unwrap();
    let stream = context.create_stream().unwrap();
    let name = "layer".repeat(12);
    let tags = (record::tag(&name), record::tag(&name));
    let block = pool.alloc(4 << 20, &stream).unwrap();
    drop(tags);
    // SAFETY: the block is this test's, without work.
    unsafe { pool.free(block, &stream) }.unwrap();
    pool.stop_recording().unwrap();
    let mut command = command();
    let text = stdout(&command.arg("replay").arg(&path).args(["--allocator", "millpond"]).output().unwrap());
    assert!(text.lines().any(|line| line.ends_with(&format!("  {name}/{name}"))), "{text}");
}

#[test]
fn a_log_of_rmm_is_replayed_with_rmms_own_pool_too() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("rmm.csv");
    let mut lines = "Thread,Time,Action,Pointer,Size,Stream\n".to_owned();
    for (at, (action, pointer, mib)) in
        [("allocate", 1, 8), ("allocate", 2, 4), ("free", 1, 8), ("allocate", 3, 6)].into_iter().enumerate()
    {
        lines += &format!("1,10:00:00:00000{at},{action},0x{pointer}0000000,{},0x0\n", mib << 20);
    }
    std::fs::write(&log, lines).unwrap();
    let json = folder.path().join("out.json");
    let rows = |args: &[&str]| {
        let mut command = command();
        let output = command.arg("replay").args(args).arg("--json").arg(&json).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        read_json(&json)[0]["allocators"].as_array().unwrap().clone()
    };
    let of_rmm = |name, rows: &[serde_json::Value]| {
        let row = rows.iter().find(|row| row["allocator"] == name)?;
        let mib = |key: &str| row[key].as_u64().unwrap() >> 20;
        Some((mib("needs"), mib("peak_reserved")))
    };
    let path = log.to_str().unwrap();
    // It doubles from 8 MiB to 16, and needs no more than 12.
    assert_eq!(of_rmm("rmm-pool", &rows(&[path])), Some((12, 16)));
    // The third block goes to where the first was.
    assert_eq!(of_rmm("rmm-arena", &rows(&[path])), Some((12, 12)));
    assert_eq!(of_rmm("rmm-pool", &rows(&[path, "--allocator", "millpond"])), None);
    let gnn = Path::new(env!("CARGO_MANIFEST_DIR")).join("../replay/tests/data").join(GNN);
    let gnn = gnn.to_str().unwrap();
    assert_eq!(of_rmm("rmm-pool", &rows(&[gnn])), None);
    for name in ["rmm-pool", "rmm-arena"] {
        assert!(of_rmm(name, &rows(&[gnn, "--allocator", name])).is_some());
    }
}

#[test]
fn with_a_capacity_figures_without_a_limit_say_so() {
    let text =
        stdout(&replay(GNN, &["--capacity", "9.85GiB", "--context", "0", "--allocator", "millpond,caching"]));
    assert!(text.contains("At the request that decides, reserved and not requested"), "{text}");
    assert!(text.contains("\nWithout a limit:\nThe job requests 9.78 GiB at most."), "{text}");
}

#[test]
fn where_there_is_no_verdict_it_says_why() {
    let last = |args: &[&str]| {
        let text = stdout(&replay(GNN, args));
        unwrapped(text.split("\n\n").find(|part| part.starts_with("(no verdict")).unwrap())
    };
    let alone = last(&["--allocator", "millpond"]);
    assert!(alone.starts_with("(no verdict: ") && alone.ends_with("add --allocator caching)"), "{alone}");
    assert!(last(&["--allocator", "bfc,caching"]).ends_with("add --allocator millpond)"));
    assert!(
        last(&["--allocator", "bfc", "--capacity", "20GiB"]).ends_with("add --allocator millpond,caching)")
    );
    assert!(last(&["--device", "host", "--allocator", "millpond,caching"]).ends_with("leave --device out)"));
}

#[test]
fn who_fits_is_said_in_whole_sentences() {
    let last = |capacity: &str| {
        let text = stdout(&replay(GNN, &["--capacity", capacity, "--allocator", "millpond,driver"]));
        unwrapped(text.split("\n\n").find(|part| part.starts_with("in ")).unwrap())
    };
    assert_eq!(last("20"), "in 20.00 GiB, 512.00 MiB of it for the context: fits with millpond, driver");
    assert!(last("5GiB").ends_with(": does not fit with millpond, driver"));
    // The job requests 9.78 GiB.
    assert!(last("10GiB").ends_with(": does not fit with millpond, driver"));
}

#[test]
fn options_change_what_is_replayed() {
    let reserved = |args: &[&str]| {
        let text = stdout(&replay(GNN, &[&["--capacity", "100GiB"], args].concat()));
        cells(&text, "allocator", args[1])[1].clone()
    };
    assert_ne!(
        reserved(&["--allocator", "caching"]),
        reserved(&["--allocator", "caching", "--alloc-conf", "roundup_power2_divisions:2"])
    );
    assert_ne!(
        reserved(&["--allocator", "millpond"]),
        reserved(&["--allocator", "millpond", "--page-sizes", "256MiB..256MiB"])
    );
    let all_fit = stdout(&replay(GNN, &["--allocator", "driver", "--context", "0"]));
    assert!(all_fit.contains("(cards by the GiB that they are sold with; 0 B of"), "{all_fit}");
}

#[test]
fn files_that_were_asked_for_are_written() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (page, snapshot, counters) = (path("r.html"), path("s.pickle"), path("c.json"));
    let args = ["--report", &page, "--export-snapshot", &snapshot, "--export-counters", &counters];
    stdout(&replay(PIPELINE, &[&args[..], &["--allocator", "millpond"]].concat()));
    assert!(std::fs::read_to_string(page).unwrap().contains("pipeline_streams_stacks"));
    assert!(std::fs::read(snapshot).unwrap().starts_with(&[0x80]));
    let counters: Value = read_json(counters.as_ref());
    assert!(counters["traceEvents"].as_array().unwrap().len() > 100);
}

#[test]
fn a_file_named_by_a_dash_is_alone_on_stdout() {
    let dir = tempfile::tempdir().unwrap();
    let replayed = |args: &[&str]| {
        let mut command = command();
        let command = command.arg("replay").arg(trace(GNN)).args(["--allocator", "driver"]).args(args);
        let output = command.current_dir(&dir).output().unwrap();
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0, "no file is made");
        output
    };
    let output = replayed(&["--json", "-"]);
    let rows: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(rows[0]["allocators"][0]["allocator"], "driver");
    assert!(stderr(&output).contains("Device calls by kind"), "{}", stderr(&output));
    // The same by its other names.
    for name in ["/dev/stdout", "/proc/self/fd/1"] {
        let same: Value = serde_json::from_str(&stdout(&replayed(&["--json", name]))).unwrap();
        assert_eq!(same[0]["possible"], rows[0]["possible"]);
    }

    let page = stdout(&replayed(&["--report", "-"]));
    assert!(page.starts_with("<!doctype html>") && page.trim_end().ends_with("</html>"));
    assert!(!page.contains("wrote -"));

    let counters = stdout(&replayed(&["--export-counters", "-"]));
    assert!(serde_json::from_str::<Value>(&counters).unwrap()["traceEvents"].is_array());

    let there = tempfile::NamedTempFile::new().unwrap();
    replayed(&["--export-snapshot", there.path().to_str().unwrap()]);
    let snapshot = replayed(&["--export-snapshot", "-"]);
    assert!(snapshot.status.success());
    assert_eq!(snapshot.stdout, std::fs::read(there.path()).unwrap());

    let both = replayed(&["--json", "-", "--report", "-"]);
    assert_eq!((both.status.code(), both.stdout.len()), (Some(2), 0));
    assert_eq!(stderr(&both), "millpond: - (standard output): is written to already; name another file\n");
    let both = replayed(&["--json", "-", "--report", "/dev/stdout"]);
    let expected = "millpond: /dev/stdout (standard output): is written to already; name another file\n";
    assert_eq!((both.stdout.len(), &*stderr(&both)), (0, expected));
}

#[test]
fn a_file_that_has_stdout_has_nothing_else() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let (path, open) = (file.path(), || file.reopen().unwrap());
    let mut command = command();
    let command = command.arg("replay").arg(trace(GNN)).args(["--allocator", "driver", "--json"]).arg(path);
    let output = command.stdout(open()).output().unwrap();
    assert!(
        output.status.success() && stderr(&output).contains("Device calls by kind"),
        "{}",
        stderr(&output)
    );
    let rows: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    assert_eq!(rows[0]["allocators"][0]["allocator"], "driver");
}

#[test]
fn device_calls_are_told_by_kind() {
    let text = stdout(&replay(GNN, &["--allocator", "millpond,driver", "--capacity", "100GiB"]));
    let table: Vec<&str> =
        text.lines().skip_while(|line| *line != "Device calls by kind").skip(1).take(3).collect();
    let cells = |line: &str| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).count();
    let kinds = ["create", "map", "access", "alloc", "free"];
    assert!(kinds.iter().all(|kind| table[0].contains(kind)), "{text}");
    assert!(table[1].starts_with("millpond") && table[2].starts_with("driver"), "{text}");
    assert_eq!(cells(table[1]), cells(table[0]), "{text}");
}

#[test]
fn exports_of_several_traces_say_whose_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let snapshot = dir.path().join("s.pickle");
    let args = ["--export-snapshot", snapshot.to_str().unwrap(), "--allocator", "driver"];
    let other = trace(PIPELINE);
    let output = replay(GNN, &[&args[..], &[other.to_str().unwrap()]].concat());
    assert!(stdout(&output).contains("wrote "));
    assert!(stderr(&output).contains("exports have the first trace only: gnn_stacks.pickle.gz"));
    assert_eq!(stderr(&replay(GNN, &args)), "");
}

#[test]
fn files_that_cannot_be_written_are_found_before_the_replay() {
    let dir = tempfile::tempdir().unwrap();
    let json = dir.path().join("out.json");
    let args = ["--allocator", "driver", "--json", json.to_str().unwrap()];
    for flag in ["--report", "--export-snapshot", "--export-counters"] {
        let output = replay(GNN, &[&args[..], &[flag, "/no/such/page.html"]].concat());
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "nothing was replayed");
        assert!(stderr(&output).starts_with("millpond: /no/such/page.html: cannot write it"));
        assert!(!json.exists());
    }
    std::fs::write(&json, "what was there").unwrap();
    assert_eq!(replay("nosuch", &args).status.code(), Some(1));
    assert_eq!(std::fs::read_to_string(&json).unwrap(), "what was there");
    stdout(&replay(GNN, &args));
    assert!(std::fs::read_to_string(&json).unwrap().starts_with('['));
}

#[test]
fn what_was_said_to_a_full_disk_is_an_error() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    // A snapshot does not end in a newline, so that its end waits to be flushed.
    for args in [&[][..], &["--json", "-"], &["--export-snapshot", "-"]] {
        let mut command = command();
        let command = command.arg("replay").arg(trace(GNN)).args(["--allocator", "driver"]).args(args);
        let output = command.stdout(full.try_clone().unwrap()).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let said = stderr(&output);
        let last = said.lines().last().unwrap();
        assert!(last.starts_with("millpond: stdout: cannot write to it"), "{said}");
    }
}

#[test]
fn flags_that_clash_and_unreadable_traces_are_one_line() {
    let said = |args: &[&str]| {
        let output = replay(GNN, args);
        assert_eq!(output.status.code(), Some(2));
        let text = stderr(&output);
        assert_eq!(text.lines().count(), 1, "{text}");
        text
    };
    assert!(said(&["--verify"]).contains("--verify needs real memory"));
    assert!(said(&["--allocator", "binned", "--alloc-conf", "max_split_size_mb:64"]).contains("caching"));
    assert!(said(&["--allocator", "caching", "--page-sizes", "2MiB..4MiB"]).contains("is for millpond"));
    let refused = said(&["--allocator", "millpond", "--page-sizes", "3MiB..4MiB"]);
    assert!(refused.starts_with("millpond: --page-sizes: ") && refused.contains("power of two"), "{refused}");
    for args in [["--capacity", "24GiB"], ["--device", "host"]] {
        assert!(
            said(&[&["--card", "H100"], &args[..]].concat()).contains("--card is for the table of cards")
        );
    }
    assert!(said(&["--offload", "optimizer", "--device", "host"]).contains("--offload is for device memory"));
    assert!(said(&["--offload", "weights"]).contains("nothing under the tag 'weights'; it has no tags"));
    assert!(said(&["--offload", "optimizer", "--bandwidth", "0"]).contains("no number of GB/s above 0"));
    assert!(said(&["--context", "1GiB", "--device", "host"]).contains("--context is for --device sim"));
    assert!(
        said(&["--context", "9GiB", "--capacity", "8"])
            .contains("leaves nothing beside the context's 9.00 GiB")
    );
    let wrong = replay(GNN, &["--capacity", "16EiB"]);
    assert_eq!(wrong.status.code(), Some(2));
    let wrong = replay(GNN, &["--capacity", "18446744073709551615"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(stderr(&wrong).contains("16TiB are the most that can be simulated"));
    let wrong = stderr(&replay(GNN, &["--card", "H100,voodoo"]));
    assert!(
        wrong.contains("--card: 'voodoo' is no card that Millpond knows")
            && wrong.contains("such as RTX 4090"),
        "{wrong}"
    );
    let wrong = replay(GNN, &["--alloc-conf", "splendid:1"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(stderr(&wrong).contains("'splendid' is no option"));
}

#[test]
fn what_is_offloaded_is_told_with_its_copies() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("out.json");
    let fast = ["--allocator", "millpond", "--offload", "optimizer", "--json", file.to_str().unwrap()];
    let text = unwrapped(&stdout(&replay(GNN, &fast)));
    for part in [
        "With 'optimizer' offloaded: 5.26 MiB that leave 6 times",
        "and needs 9.80 GiB with millpond",
        "each time 10.52 MiB travel, both ways together: 201 µs at 55 GB/s, as pinned copies over PCIe 5.0 are",
        "so there is time for that",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let told = &read_json(&file)[0]["offloaded"];
    assert_eq!((&told["tag"], &told["times"]), (&"optimizer".into(), &6.into()));
    assert_eq!(told["bytes_a_time"].as_u64().unwrap(), 2 * told["bytes"].as_u64().unwrap());
    let slow = [&fast[..4], &["--bandwidth", "0.5"]].concat();
    let text = unwrapped(&stdout(&replay(GNN, &slow)));
    assert!(text.contains("22 ms at 0.5 GB/s it is away") && text.contains("longer at least"), "{text}");
}

/// An optimizer of 96 MiB that is away while activations of 160 MiB are there, twice.
#[test]
fn what_was_evicted_is_away_with_millpond_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.mprec");
    let (json, chrome) = (dir.path().join("out.json"), dir.path().join("chrome.json"));
    let context = Context::host().unwrap();
    let stream = context.create_stream().unwrap();
    let pool = Pool::builder(&context).name("job").record(path.as_path()).build().unwrap();
    let tag = pool.tagged("optimizer").unwrap();
    let state = tag.alloc(96 << 20, &stream).unwrap();
    for _ in 0..2 {
        tag.evict(&stream).unwrap();
        let activations = pool.alloc(160 << 20, &stream).unwrap();
        // SAFETY: the block is this test's, without work.
        unsafe { pool.free(activations, &stream) }.unwrap();
        tag.restore(&stream).unwrap();
    }
    // SAFETY: as above.
    unsafe { tag.free(state, &stream) }.unwrap();
    [&pool, &tag].iter().for_each(|pool| _ = pool.stop_recording().unwrap());
    let mut command = command();
    command.arg("replay").arg(&path).args(["--allocator", "millpond,caching"]);
    command.arg("--json").arg(&json).arg("--export-counters").arg(&chrome);
    let text = stdout(&command.output().unwrap());
    let row = cells(&text, "tag ", "optimizer");
    assert_eq!(row[..5], ["optimizer", "2 times", "192.00 MiB", "2 times", "192.00 MiB"], "{text}");
    let said = unwrapped(&text);
    assert!(said.contains("The job requests 160.00 MiB at most."), "{text}");
    assert!(said.contains("other allocators hold them all the time"), "{text}");
    let told = &read_json(&json)[0];
    assert_eq!((&told["evicted"][0]["tag"], &told["evicted"][0]["left"]), (&"optimizer".into(), &2.into()));
    let needs = |at: usize| told["allocators"][at]["needs"].as_u64().unwrap();
    assert!(needs(0) < 180 << 20 && needs(1) >= 256 << 20, "{told:?}");
    let chrome = read_json(&chrome);
    let chrome = chrome["traceEvents"].as_array().unwrap();
    let away = chrome.iter().filter(|event| event["name"] == "evicted: optimizer" && event["ph"] == "X");
    assert_eq!(away.count(), 2);
}

#[test]
fn other_memory_is_replayed_at_its_costs() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("out.json");
    let told = |args: &[&str]| {
        let output = replay(GNN, &[&["--json", file.to_str().unwrap()], args].concat());
        (stdout(&output), stderr(&output), read_json(&file)[0].clone())
    };
    let (_, _, device) = told(&["--allocator", "millpond"]);
    let (text, said, pinned) = told(&["--memory", "pinned"]);
    assert!(text.contains("replayed in pinned host memory"), "{text}");
    assert!(unwrapped(&text).contains("leave --memory out"), "{text}");
    assert!(!text.contains("Cards that would do"), "{text}");
    assert!(
        said.contains("left out, since pinned host memory does not carry it: stream-ordered\n"),
        "{said}"
    );
    let rows = pinned["allocators"].as_array().unwrap();
    assert_eq!(rows.len(), millpond_baselines::NAMES.len() - 1);
    assert!(rows.iter().all(|row| row["memory"] == "pinned" && row["oom"].is_null()), "{pinned:#}");
    let [device, pinned] = [&device, &pinned].map(|told| &told["allocators"][0]);
    assert_eq!(device["memory"], "device");
    assert_eq!(device["peak_requested"], pinned["peak_requested"]);
    // A page of pinned memory takes a hundred times as long, since the driver clears it.
    assert!(pinned["device_us"].as_f64() > device["device_us"].as_f64().map(|us| us * 10.0), "{pinned:#}");
    let (text, said, managed) = told(&["--memory", "managed"]);
    assert!(said.contains("does not carry it: expandable, stream-ordered\n"), "{said}");
    assert!(text.contains("replayed in managed memory") && text.contains("a card that has room\n"), "{text}");
    assert_eq!(managed["allocators"][0]["moves"]["bytes_to_host"], 0, "{managed:#}");
    assert!(managed["allocators"].as_array().unwrap().iter().all(|row| row["memory"] == "managed"));
    let (text, _, small) = told(&["--memory", "managed", "--capacity", "8GiB", "--allocator", "millpond"]);
    assert!(text.contains("Moves between the host and a card of 8.00 GiB\n"), "{text}");
    let moves = &small["allocators"][0]["moves"];
    assert!(
        moves["bytes_to_host"].as_u64() > Some(0) && small["allocators"][0]["oom"].is_null(),
        "{small:#}"
    );
    let real = ["--memory", "pinned", "--device", "host", "--verify", "--allocator", "millpond,caching"];
    let (text, _, real) = told(&real);
    assert!(text.contains("found as written"), "{text}");
    for row in real["allocators"].as_array().unwrap() {
        assert_eq!(row["driver_used_peak"], row["peak_reserved"], "{row:#}");
    }
    let short = ["--memory", "pinned", "--capacity", "8GiB", "--fail-if-oom", "--allocator", "millpond"];
    let short = replay(GNN, &short);
    assert_eq!(short.status.code(), Some(1), "{}", stderr(&short));
}

#[test]
fn what_is_about_cards_is_not_for_other_memory() {
    for (args, expected) in [
        (&["--card", "4090"][..], "--card is for device memory: leave --memory pinned out"),
        (&["--context", "1GiB"], "--context is for device memory"),
        (&["--report", "x.html"], "--report is for device memory"),
        (&["--export-counters", "x.json"], "--export-counters is for device memory"),
        (&["--device", "cuda"], "--memory pinned is for --device sim or host"),
        (&["--allocator", "stream-ordered"], "--memory pinned does not carry stream-ordered: name another"),
        (&["--memory", "fast"], "--memory: "),
    ] {
        let output = replay(GNN, &[&["--memory", "pinned"], args].concat());
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(stderr(&output).contains(expected), "{args:?}: {}", stderr(&output));
    }
}

/// Every recording of `data/traces`, and one of a Rust program.
fn recordings(dir: &Path) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/traces");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut traces: Vec<_> =
        files.filter(|path| path.extension().is_some_and(|name| name == "zst")).collect();
    assert!(traces.len() >= 9);
    let ours = dir.join("train.mprec");
    let train = ["train", "--device", "host", "--epochs", "1", "--feat-dim", "64", "--batch-size", "500"];
    let output = command().args(train).arg("--record").arg(&ours).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    traces.push(ours);
    traces
}

#[test]
fn no_verdict_claims_more_than_its_tables() {
    let dir = tempfile::tempdir().unwrap();
    let traces = recordings(dir.path());
    std::thread::scope(|scope| {
        // Two at once: each is a program of one thread.
        for half in traces.chunks(traces.len().div_ceil(2)) {
            scope.spawn(|| half.iter().for_each(|trace| compare_verdict(trace)));
        }
    });
}

fn compare_verdict(trace: &Path) {
    let json = tempfile::NamedTempFile::new().unwrap();
    let replayed = |args: &[&str]| {
        let mut command = command();
        let output =
            command.arg("replay").arg(trace).args(args).arg("--json").arg(json.path()).output().unwrap();
        (stdout(&output), read_json(json.path())[0].clone())
    };
    let (text, told) = replayed(&["--allocator", "millpond,caching"]);
    let of = |name: &str| {
        told["allocators"].as_array().unwrap().iter().find(|row| row["allocator"] == name).unwrap()
    };
    let bytes = |value: &Value| HumanBytes(value.as_u64().unwrap()).to_string();
    let is_pytorchs = trace.extension().is_some_and(|name| name == "zst");
    let [(name, first), (other, second)] = match is_pytorchs {
        true => [("PyTorch's allocator", "caching"), ("Millpond", "millpond")],
        false => [("Millpond", "millpond"), ("PyTorch's allocator", "caching")],
    };
    let [mine, its] = [first, second].map(|name| cells(&text, "allocator", name));
    let lines: Vec<_> =
        told["verdict"]["lines"].as_array().unwrap().iter().map(|line| line.as_str().unwrap()).collect();
    let verdict = lines.join("\n");
    let say = |part: String| assert!(verdict.contains(&part), "{part}:\n{text}");

    // Needs, and how far they are apart.
    say(format!("The job requests {} at most. To run, it needs", bytes(&of(first)["peak_requested"])));
    let needs = [first, second].map(|name| of(name)["needs"].as_u64().unwrap());
    let apart = HumanBytes(needs[0].abs_diff(needs[1]));
    let compared = match needs[1].cmp(&needs[0]) {
        _ if lines[0].ends_with(": about as much.") => {
            assert!(needs[0].abs_diff(needs[1]) <= (needs[0] / 1000).next_multiple_of(2 << 20).max(2 << 20));
            "about as much".to_owned()
        }
        std::cmp::Ordering::Less => format!("{apart} less"),
        _ => format!("{apart} more"),
    };
    let named = |name: &str| name.replace("allocator", "allocator (caching)");
    let (name_first, other_first) = (named(name), named(other));
    say(format!("needs {} with {name_first}, and {} with {other_first}: {compared}.\n", mine[1], its[1]));

    // What is held without a limit, and what a shortage saves.
    say(format!("Without a limit {name} holds up to {}, {other} {}.", mine[3], its[3]));
    for (row, allocator) in [(&mine, first), (&its, second)] {
        let (need, held) =
            (of(allocator)["needs"].as_u64(), of(allocator)["peak_reserved"].as_u64().unwrap());
        let saved = HumanBytes(held.saturating_sub(need.unwrap()));
        if let Some((_, rest)) = verdict.split_once(&format!(
            "On a device of {} {}",
            row[1],
            if allocator == first { name } else { other }
        )) {
            let (said, _) = rest.split_once('.').unwrap();
            let said = if row[2] == "0" {
                rest.starts_with(&format!(" holds {saved} less"))
            } else {
                said.contains(&format!("with {} retr", row[2])) && rest.contains(&format!("saves {saved}."))
            };
            assert!(said, "{saved}, {row:?}: {verdict}");
        }
    }
    assert!(verdict.matches("cache").count() <= 2 && !verdict.contains("are cache:"), "{verdict}");

    // One moment, with the parts of its own row.
    let waste = &of(first)["decided"];
    let decides = format!(" decides what {name} needs:");
    if let Some(line) = lines.iter().find(|line| line.contains(&decides)) {
        let moment = format!(
            "A request for {} decides what {name} needs: it then holds {}, of which {} are requested.",
            bytes(&waste["asked"]),
            bytes(&waste["reserved"]),
            bytes(&waste["requested"])
        );
        assert!(line.starts_with(&moment), "{moment}: {line}");
        assert!(waste["reserved"].as_u64() <= of(first)["needs"].as_u64(), "{waste}");
        let parts = cells(&text, "At the request that decides", first);
        let words = ["are rounding", "are holes beside", "are cached without", "were last used on other"];
        for (part, words) in parts[2..].iter().zip(words) {
            assert!(
                !line.contains(words) || line.contains(&format!("{part} {words}")),
                "{part} {words}: {line}"
            );
        }
    }

    // A setting needs what a replay with it needs.
    assert!(is_pytorchs || !verdict.contains("ALLOC_CONF") && !verdict.contains("setting"), "{verdict}");
    if let Some((_, rest)) = verdict.split_once("PYTORCH_CUDA_ALLOC_CONF=") {
        let (setting, rest) = rest.split_once(' ').unwrap();
        let allocator = if setting.starts_with("expandable") { "expandable" } else { "caching" };
        let (text, _) = replayed(&["--allocator", allocator, "--alloc-conf", setting]);
        let row = cells(&text, "allocator", allocator);
        assert!(rest.starts_with(&format!("it needs {}: ", row[1])), "{rest}: {row:?}");
        assert!(rest.contains(&format!("with {} retr", row[2])), "{rest}: {row:?}");
    }
}

#[test]
fn all_that_is_said_fits_eighty_columns_and_commands_no_terminal() {
    let cards =
        "3060,3080,3090,4060,4070,4080,4090,5080,5090,T4,V100-32,A10,A40,A100-40,A100,L4,L40S,H100,H200,B200";
    for args in
        [&[][..], &["--card", cards], &["--capacity", "5GiB"], &["--device", "host"], &["-h"], &["--help"]]
    {
        for name in [GNN, PIPELINE] {
            let mut command = command();
            let output =
                command.arg("replay").arg(trace(name)).args(args).env("COLUMNS", "80").output().unwrap();
            assert!(output.status.success());
            for line in [stdout(&output), stderr(&output)].concat().lines() {
                assert!(line.chars().count() <= 80, "{args:?}: {line}");
                assert!(!line.contains(char::is_control), "{args:?}: {line}");
            }
        }
    }
    assert_eq!(stderr(&replay(GNN, &[])), "", "no progress in a pipe");
}

#[test]
fn names_of_a_recording_make_no_lines_and_command_no_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("evil.pickle");
    let name = "f\u{1b}]0;mine\u{7}\nmillpond: all is well\u{202e}";
    let frames = json!([{"name": name, "filename": name, "line": 3}]);
    let alloc = |at: u64| json!({"action": "alloc", "addr": 4096 * at, "size": 1000, "stream": 0, "frames": frames, "time_us": at});
    let events: Vec<_> = (1..20).map(alloc).collect();
    let snapshot = json!({"device_traces": [events], "segments": []});
    std::fs::write(&path, serde_pickle::to_vec(&snapshot, serde_pickle::SerOptions::new()).unwrap()).unwrap();
    let path = path.to_str().unwrap();
    for args in [&["replay", path, "--allocator", "driver"][..], &["leaks", path], &["diff", path, path]] {
        let said = stdout(&millpond(args));
        assert!(!said.contains(|c: char| c.is_control() && c != '\n' || c == '\u{202e}'), "{args:?}: {said}");
        assert!(!said.lines().any(|line| line.starts_with("millpond: all")), "{args:?}: {said}");
    }
    assert!(stdout(&millpond(&["leaks", path])).contains("mine"));
}

#[test]
fn a_terminal_shows_what_is_being_done() {
    let typescript = tempfile::NamedTempFile::new().unwrap();
    let run = format!(
        "{} replay {} --allocator millpond,caching",
        env!("CARGO_BIN_EXE_millpond"),
        trace(GNN).display()
    );
    let mut script = Command::new("script");
    script.args(["-q", "-e", "-c", &run]).arg(typescript.path()).env("TERM", "xterm").env("NO_COLOR", "1");
    let Ok(output) = script.stdin(std::process::Stdio::null()).output() else {
        eprintln!("skipped: there is no `script` (util-linux)");
        return;
    };
    assert!(output.status.success());
    let text = std::fs::read_to_string(typescript.path()).unwrap();
    assert!(text.contains("replaying with 2 allocators"), "{text:?}");
    assert!(!text.contains("\u{1b}[3"), "NO_COLOR: {text:?}");
}

#[test]
fn what_leaks_is_told_by_tag_and_call_site() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("leak.mprec");
    let context = Context::host().unwrap();
    let options = record::Options::new(&path).call_sites(true);
    let pool = Pool::builder(&context).record(options).build().unwrap();
    let stream = context.create_stream().unwrap();
    let leaked: Vec<_> = {
        let _step = record::tag("step");
        let _forward = record::tag("forward");
        (0..3).map(|_| pool.alloc(1 << 20, &stream).unwrap()).collect()
    };
    let freed = pool.alloc(4 << 20, &stream).unwrap();
    // SAFETY: the block is this test's, without work.
    unsafe { pool.free(freed, &stream) }.unwrap();
    pool.stop_recording().unwrap();
    // SAFETY: as above.
    leaked.into_iter().for_each(|block| unsafe { pool.free(block, &stream) }.unwrap());

    let json = dir.path().join("out.json");
    let mut command = command();
    let output =
        command.arg("replay").arg(&path).args(["--allocator", "millpond", "--json"]).arg(&json).output();
    let text = stdout(&output.unwrap());
    assert!(text.contains("\nLive at the end: 3.00 MiB in 3 blocks\n"), "{text}");
    assert!(text.contains("step/forward: "), "{text}");
    let site = read_json(&json)[0]["live_at_end"]["sites"][0].clone();
    assert_eq!((&site["tag"], &site["blocks"]), (&Value::from("step/forward"), &Value::from(3)));
    assert!(site["site"].as_str().unwrap().contains("(replay.rs:"), "{site}");
}

/// The commands of a page's blocks that are marked `sh`.
fn commands(page: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(page);
    let text = std::fs::read_to_string(path).unwrap();
    let blocks = text.split("```sh\n").skip(1).map(|rest| rest.split_once("```").unwrap().0);
    blocks.flat_map(str::lines).filter(|line| line.contains("millpond ")).map(str::to_owned).collect()
}

#[test]
fn the_commands_of_the_docs_run() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["snapshot.pickle", "other.pickle", "run.mprec"] {
        let file = std::fs::File::create(dir.path().join(name)).unwrap();
        assert!(Command::new("gzip").arg("-dc").arg(trace(GNN)).stdout(file).status().unwrap().success());
    }
    std::fs::write(dir.path().join("this.toml"), "map = 1200\n").unwrap();
    let bin = Path::new(env!("CARGO_BIN_EXE_millpond")).parent().unwrap().to_owned();
    let path = std::env::join_paths(
        [bin].into_iter().chain(std::env::split_paths(&std::env::var_os("PATH").unwrap())),
    );
    let path = path.unwrap();
    let mut count = 0;
    for line in ["replay.md", "plan.md", "predict.md", "recording.md", "trace-format.md"]
        .iter()
        .flat_map(|page| commands(page))
    {
        let mut shell = Command::new("sh");
        let output = shell.args(["-ec", &line]).current_dir(&dir).env("PATH", &path).output().unwrap();
        assert!(output.status.success(), "{line}: {}", stderr(&output));
        count += 1;
    }
    assert!(count >= 8, "{count} commands");
}
