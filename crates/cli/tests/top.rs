//! `millpond top` and `millpond metrics`, of a running program: this one.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use millpond::device::sim::{SimDevice, SimOptions};
use millpond::record::{self, Tracking};
use millpond::{Context, Pool, Stream};
use serde_json::Value;

use crate::shared::{command, failure, keys, millpond, stdout};

/// A pool that holds memory, 1000 bytes of it live.
struct Held {
    pool: Pool,
    stream: Stream,
}

impl Held {
    fn new(name: &str) -> Self {
        let context = Context::new(SimDevice::new(SimOptions::default()).unwrap());
        let pool = Pool::builder(&context).name(name).build().unwrap();
        let stream = context.create_stream().unwrap();
        _ = pool.alloc(1000, &stream).unwrap();
        pool.reserve(64 << 20, &stream).unwrap();
        Self { pool, stream }
    }
}

/// What the command's JSON tells of a pool of this process.
fn of_pool<'a>(told: &'a Value, name: &str) -> &'a Value {
    let processes = told["processes"].as_array().unwrap();
    let own = processes.iter().find(|process| process["pid"] == std::process::id()).unwrap();
    assert_eq!(own["answers"], true);
    own["pools"].as_array().unwrap().iter().find(|pool| pool["name"] == name).unwrap()
}

#[test]
fn json_has_the_figures_of_a_running_program() {
    let held = Held::new("json");
    let mut top = command()
        .args(["top", "--once", "--json", "--interval", "2s"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // Between its two looks.
    while top.try_wait().unwrap().is_none() {
        let block = held.pool.alloc(1000, &held.stream).unwrap();
        // SAFETY: the block is this test's, without work.
        unsafe { held.pool.free(block, &held.stream) }.unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut text = String::new();
    top.stdout.unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text.lines().count(), 1, "a line a look: {text}");
    let told: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(keys(&told), ["gpus", "no_gpus", "processes"]);
    let (pool, stats) = (of_pool(&told, "json"), held.pool.stats());
    assert_eq!((pool["device"].as_str(), pool["memory"].as_str()), (Some("sim"), Some("device")));
    let level =
        |name: &str| [&pool[name]["current"], &pool[name]["high"]].map(|figure| figure.as_u64().unwrap());
    assert_eq!(level("reserved"), [stats.reserved.current, stats.reserved.high]);
    assert_eq!((level("requested")[1], level("blocks")[1]), (stats.requested.high, stats.blocks.high));
    assert!(pool["cached"].as_u64().unwrap() >= 64 << 20 && pool["calls"]["create"].as_u64() > Some(0));
    assert!(pool["a_second"]["hits"].as_f64().unwrap() > 1.0, "{pool}");
    assert!(pool["device_seconds"].as_f64().unwrap() > 0.0, "{pool}");
}

#[test]
fn a_tag_that_is_evicted_is_told_with_its_pinned_memory() {
    let held = Held::new("whole");
    let tag = held.pool.tagged("optimizer").unwrap();
    let block = tag.alloc(4 << 20, &held.stream).unwrap();
    let told = || {
        let text = stdout(&millpond(&["top", "--once", "--interval", "50ms"]));
        text.lines().filter(|line| line.contains("whole/optimizer")).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(told().len(), 1, "its row");
    tag.evict(&held.stream).unwrap();
    let lines = told();
    let said = lines.last().unwrap();
    assert!(lines.len() == 2 && said.starts_with("4.00 MiB of whole/optimizer of "), "{lines:?}");
    assert!(said.ends_with("are away; 4.00 MiB of pinned memory are kept for it"), "{said}");
    tag.restore(&held.stream).unwrap();
    assert!(told().last().unwrap().starts_with("0 B of whole/optimizer"), "what is pinned is kept");
    tag.trim_staging().unwrap();
    assert_eq!(told().len(), 1);
    // SAFETY: the block is this test's, without work.
    unsafe { tag.free(block, &held.stream) }.unwrap();
}

#[test]
fn text_has_a_line_for_each_pool() {
    let _held = [Held::new("a pool"), Held::new("b\u{1b}[2J\npool")];
    let text = stdout(&millpond(&["top", "--once", "--interval", "50ms", "--sort", "name"]));
    let line = |name: &str| text.lines().find(|line| line.contains(name)).unwrap_or_else(|| panic!("{text}"));
    assert!(line("reserved").starts_with("process"));
    assert!(line("total").contains(" pools, ") && line("total").contains("iB"), "{text}");
    let filtered = stdout(&millpond(&["top", "--once", "--interval", "50ms", "--filter", "a pool"]));
    assert!(filtered.contains("a pool") && !filtered.contains("2Jpool"), "{filtered}");
    assert!(line("a pool").starts_with(&std::process::id().to_string()));
    assert!(line("b\u{fffd}[2J\u{fffd}pool").contains("66.00 MiB"), "{text}");
    assert!(text.contains("GPU"), "{text}");
}

#[test]
fn live_blocks_are_told_by_size_and_by_holder() {
    let held = Held::new("tracked");
    held.pool.start_tracking(Tracking::all()).unwrap();
    let tag = record::tag("step");
    let block = held.pool.alloc(5 << 20, &held.stream).unwrap();
    drop(tag);
    let text = stdout(&millpond(&["top", "--once", "--interval", "50ms", "--blocks"]));
    let part = text.split("live blocks of ").find(|part| part.starts_with("tracked of ")).unwrap();
    assert!(part.contains("5.00 MiB  in 1, for ") && part.contains(" s: step\n"), "{text}");
    assert!(part.contains("live_blocks_are_told_by_size_and_by_holder (top.rs:"), "{text}");
    assert!(part.contains("5.00 MiB  in 1 of 4.00 MiB or more"), "{text}");
    let told = stdout(&millpond(&["top", "--once", "--interval", "50ms", "--blocks", "--json"]));
    let told: Value = serde_json::from_str(&told).unwrap();
    let blocks = &of_pool(&told, "tracked")["live_blocks"];
    assert_eq!(keys(blocks), ["by_holder", "by_size"]);
    assert_eq!(keys(&blocks["by_size"][0]), ["blocks", "bytes", "from"]);
    assert_eq!(blocks["by_size"][1]["bytes"], 5 << 20);
    let holder = &blocks["by_holder"][0];
    assert_eq!(keys(holder), ["blocks", "bytes", "oldest_seconds", "stack", "tag"]);
    assert_eq!((holder["tag"].as_str(), holder["bytes"].as_u64()), (Some("step"), Some(5 << 20)));
    // SAFETY: the block is this test's, without work.
    unsafe { held.pool.free(block, &held.stream) }.unwrap();
}

#[test]
fn looks_follow_each_other_until_nobody_reads() {
    let _held = Held::new("looks");
    let mut top =
        command().args(["top", "--json", "--interval", "50ms"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(top.stdout.take().unwrap()).lines();
    let mut next = || serde_json::from_str::<Value>(&lines.next().unwrap().unwrap()).unwrap();
    assert_eq!(of_pool(&next(), "looks")["a_second"], Value::Null);
    assert_eq!(of_pool(&next(), "looks")["a_second"]["misses"], 0.0);
    drop(lines);
    assert!(ends(&mut top).success());
}

fn ends(child: &mut Child) -> std::process::ExitStatus {
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if began.elapsed() > Duration::from_secs(20) {
            child.kill().unwrap();
            panic!("it does not end");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Says that a tool is missing; fails where all must be there.
fn is_missing(tool: &str) {
    assert!(std::env::var_os("MILLPOND_REQUIRE_TOOLS").is_none(), "{tool} is not installed");
    eprintln!("not run: {tool} is not installed");
}

fn has(tool: &str, argument: &str) -> bool {
    let found = Command::new(tool).arg(argument).stdout(Stdio::null()).stderr(Stdio::null()).status();
    found.is_ok_and(|status| status.success())
}

#[test]
fn what_the_gpu_says_is_told_by_holder() {
    if !has("cc", "--version") {
        return is_missing("cc");
    }
    let held = Held::new("on a gpu");
    let dir = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/nvml.c");
    let mut compiler = Command::new("cc");
    compiler
        .args(["-shared", "-fPIC", "-Wall", "-Wextra", "-o"])
        .arg(dir.path().join("libnvidia-ml.so.1"))
        .arg(source);
    assert!(compiler.status().unwrap().success());
    let uuid = held.pool.device().identity().unwrap().to_string();
    let reserved = held.pool.reserved().current;
    let top = |arguments: &[&str]| {
        let mut top = command();
        top.args(arguments).env("LD_LIBRARY_PATH", dir.path());
        top.env("NVML_UUID", format!("GPU-{uuid}")).env("NVML_PID", std::process::id().to_string());
        top.env("NVML_USED", (20_u64 << 30).to_string())
            .env("NVML_PROCESS", (reserved + (1 << 30)).to_string());
        stdout(&top.output().unwrap())
    };
    let told: Value = serde_json::from_str(&top(&["top", "--once", "--json", "--interval", "50ms"])).unwrap();
    assert_eq!(told["no_gpus"], Value::Null);
    let gpu = &told["gpus"][0];
    assert_eq!((gpu["name"].as_str(), gpu["used"].as_u64()), (Some("Planted"), Some(20 << 30)));
    let shares = gpu["shares"].as_array().unwrap();
    let share = |holder: &str| {
        let share = shares.iter().find(|share| share["holder"] == holder);
        share.unwrap_or_else(|| panic!("{holder}: {gpu}"))["bytes"].as_i64().unwrap()
    };
    assert_eq!((share("pools") as u64, share("outside_the_pools")), (reserved, 1 << 30));
    assert_eq!(shares.iter().map(|share| share["bytes"].as_i64().unwrap()).sum::<i64>(), 20 << 30);
    let text = top(&["top", "--once", "--interval", "50ms"]);
    assert!(text.contains("GPU 0 Planted: 20.00 GiB of 128.00 GiB used"), "{text}");
    let metrics = top(&["metrics"]);
    assert!(
        metrics.contains("holder=\"outside_the_pools\"") && metrics.contains("name=\"Planted\""),
        "{metrics}"
    );
}

#[test]
fn a_terminal_shows_the_pools_opens_one_and_trims_it() {
    if !has("tmux", "-V") {
        return is_missing("tmux");
    }
    let held = Held::new("seen");
    let program = command().get_program().to_str().unwrap().to_owned();
    let run = format!("{program} top --interval 100ms --sort name; echo ended: $?; sleep 60");
    let top = Tmux::new(&run);
    let screen = top.until("seen", |screen| screen.contains("seen"));
    assert!(screen.contains("millpond top") && screen.contains("66.00 MiB"), "{screen}");
    // Other tests have pools, too, which come and go.
    let title = format!("seen  of {}", std::process::id());
    top.until(&title, |screen| {
        let is_open = screen.contains("Live blocks by size");
        if is_open && screen.contains(&title) {
            return true;
        }
        top.press(if is_open { "Down" } else { "Enter" });
        std::thread::sleep(Duration::from_millis(200));
        false
    });
    let shows = |what: &str| top.until(what, |screen| screen.contains(what));
    let reserved = held.pool.reserved().current;
    top.press("t");
    shows("Give back what seen of");
    top.press("y");
    shows("seen gave 64.00 MiB back");
    assert_eq!(held.pool.reserved().current, reserved - (64 << 20));
    top.press("Escape");
    shows("Enter open");
    top.press("q");
    shows("ended: 0");
}

/// A terminal of 80 columns, which ends when this is dropped.
struct Tmux(String);

impl Tmux {
    fn new(run: &str) -> Self {
        let tmux = Self(format!("millpond-{}", std::process::id()));
        tmux.call(&["new-session", "-d", "-x", "80", "-y", "30", "-s", "top", run]);
        tmux
    }

    fn call(&self, arguments: &[&str]) -> String {
        let mut tmux = Command::new("tmux");
        let output = tmux.args(["-L", &self.0, "-f", "/dev/null"]).args(arguments).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn press(&self, key: &str) {
        self.call(&["send-keys", "-t", "top", key]);
    }

    /// The screen, once it is as it should be.
    fn until(&self, what: &str, is_so: impl Fn(&str) -> bool) -> String {
        let began = Instant::now();
        loop {
            let screen = self.call(&["capture-pane", "-p", "-t", "top"]);
            if is_so(&screen) {
                return screen;
            }
            assert!(began.elapsed() < Duration::from_secs(30), "{what} is not on the screen:\n{screen}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        self.call(&["kill-server"]);
    }
}

#[test]
fn metrics_are_what_promtool_takes() {
    let _held = Held::new("me\"tr\\ics");
    let text = stdout(&millpond(&["metrics"]));
    let pid = std::process::id();
    assert!(text.contains(&format!("millpond_pool_requested_bytes{{pid=\"{pid}\"")), "{text}");
    assert!(text.contains(r#"pool="me\"tr\\ics""#), "{text}");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("millpond.prom");
    millpond(&["metrics", "--textfile", file.to_str().unwrap()]);
    let written = std::fs::read_to_string(&file).unwrap();
    assert!(written.contains("millpond_pool_hits_total{") && written.ends_with('\n'));
    if !has("promtool", "--version") {
        return is_missing("promtool (package prometheus)");
    }
    let mut promtool = Command::new("promtool");
    promtool.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut promtool = promtool.spawn().unwrap();
    promtool.stdin.take().unwrap().write_all(written.as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{said}");
}

fn get(address: &str, request: &str) -> String {
    let mut socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    write!(socket, "{request} HTTP/1.0\r\nHost: {address}\r\n\r\n").unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn metrics_are_served_until_a_signal_comes() {
    let _held = Held::new("served");
    let mut server =
        command().args(["metrics", "--listen", "127.0.0.1:0"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let address =
        line.trim().strip_prefix("listening: http://").and_then(|rest| rest.strip_suffix("/metrics"));
    let address = address.unwrap_or_else(|| panic!("{line}"));
    assert!(get(address, "GET /healthz").ends_with("\r\n\r\nok\n"));
    for _ in 0..2 {
        let answer = get(address, "GET /metrics");
        assert!(
            answer.starts_with("HTTP/1.0 200") && answer.contains("text/plain; version=0.0.4"),
            "{answer}"
        );
        assert!(answer.contains("pool=\"served\""), "{answer}");
    }
    assert!(get(address, "GET /").starts_with("HTTP/1.0 404"));
    assert!(get(address, "DELETE /metrics").starts_with("HTTP/1.0 405"));
    let pid = rustix::process::Pid::from_child(&server);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(ends(&mut server).code(), Some(0));
}

/// A server, and the address that it says.
fn served(folder: &Path) -> (Child, String) {
    let mut server = command();
    server.args(["metrics", "--listen", "localhost:0"]).env("MILLPOND_BUDGET_DIR", folder);
    let mut server = server.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("listening: http://").unwrap().strip_suffix("/metrics").unwrap();
    (server, address.to_owned())
}

/// Not a test: a program that runs out of memory, and waits to be killed.
#[test]
fn doomed_program() {
    let Ok(allocations) = std::env::var("MILLPOND_TEST_DOOMED") else { return };
    let held = Held::new("doomed");
    for _ in 0..allocations.parse().unwrap() {
        held.pool.alloc(1 << 60, &held.stream).unwrap_err();
    }
    println!("out of memory");
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

#[test]
fn what_kills_a_job_is_counted_and_said_after_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let (mut server, address) = served(folder.path());
    let begin = |errors: u32| {
        let mut doomed = Command::new(std::env::current_exe().unwrap());
        doomed
            .args(["top::doomed_program", "--exact", "--nocapture"])
            .env("MILLPOND_TEST_DOOMED", errors.to_string());
        doomed.env("MILLPOND_BUDGET_DIR", folder.path()).env("SLURM_JOB_ID", "17").env("RANK", "3");
        let mut doomed = doomed.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(doomed.stdout.take().unwrap()).lines();
        while errors > 0 && !lines.next().unwrap().unwrap().contains("out of memory") {}
        doomed
    };
    let figure = |name: &str, label: &str| {
        let text = get(&address, "GET /metrics");
        let mut lines = text.lines().filter(|line| line.starts_with(name) && line.contains(label));
        lines.next().map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
    };
    let mut doomed = begin(2);
    let of_it = format!("pid=\"{}\"", doomed.id());
    let (total, of_pool) = ("millpond_out_of_memory_errors_total", "millpond_pool_out_of_memory_total{");
    assert_eq!((figure(of_pool, &of_it), figure(of_pool, "slurm_job=\"17\",rank=\"3\"")), (Some(2), Some(2)));
    let before = figure(total, "").unwrap();
    doomed.kill().unwrap();
    doomed.wait().unwrap();
    // The series go on, and one that nobody saw before its end is counted.
    assert_eq!((figure(of_pool, &of_it), figure(total, "")), (Some(2), Some(before)));
    let mut unseen = begin(3);
    unseen.kill().unwrap();
    unseen.wait().unwrap();
    assert_eq!(figure(total, ""), Some(before + 3));
    assert!(figure("millpond_last_out_of_memory_timestamp_seconds", "ended=\"true\"") > Some(1_700_000_000));
    let pid = rustix::process::Pid::from_child(&server);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let mut said = String::new();
    server.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    let ended = format!("millpond: {} ", doomed.id());
    let line = said.lines().find(|line| line.starts_with(&ended) && line.contains("has ended after"));
    let line = line.unwrap_or_else(|| panic!("{said}"));
    assert!(
        line.contains("(Slurm job 17, rank 3) has ended after 2 out-of-memory errors; the last: out of"),
        "{line}"
    );
    ends(&mut server);
}

#[test]
fn wrong_usage_says_what_to_do() {
    let remote = failure(&millpond(&["metrics", "--listen", "0.0.0.0:0"]));
    assert!(remote.contains("use 127.0.0.1, or add --allow-remote"), "{remote}");
    let interval = failure(&millpond(&["top", "--once", "--interval", "1ms"]));
    assert!(interval.contains("from 50ms to 1day"), "{interval}");
}
