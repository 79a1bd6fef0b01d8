//! What was seen, in Prometheus' text format.
//! <https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format>

use std::cmp::Reverse;
use std::fmt::{Display, Write};

use millpond::live::{SeenPool, SeenProcess, Who};
use millpond::{DeviceCalls, SeenBudget, Stats};
use millpond_baselines::name_of;

use super::Sight;
use super::ended::Told;
use super::gpus::Gpu;
use super::shares::{Holder, shares};
use super::users::name_of_user;

/// Pools that are told of, those that hold most first: so many time series that a server takes them without harm.
const MOST_POOLS: usize = 500;

/// Budgets that are told of.
const MOST_BUDGETS: usize = 200;

/// Letters of a label's value.
const LONGEST_VALUE: usize = 100;

/// What is told of each pool, and how.
struct Figure<T> {
    /// Behind `millpond_pool_`.
    name: &'static str,
    help: &'static str,
    of: fn(&Stats) -> T,
}

const fn figure(name: &'static str, help: &'static str, of: fn(&Stats) -> u64) -> Figure<u64> {
    Figure { name, help, of }
}

const GAUGES: [Figure<u64>; 10] = [
    figure("requested_bytes", "Bytes asked for, in live blocks.", |stats| stats.requested.current),
    figure("allocated_bytes", "Bytes in live blocks, as the pool rounds them.", |stats| {
        stats.allocated.current
    }),
    figure("reserved_bytes", "Physical bytes held from the device.", |stats| stats.reserved.current),
    figure("cached_bytes", "Bytes held but in no live block.", |stats| stats.cached()),
    figure("asleep_bytes", "Bytes given back to sleep.", |stats| stats.asleep),
    figure("pinned_bytes", "Bytes of pinned memory kept for evictions.", |stats| stats.pinned),
    figure("requested_peak_bytes", "Most bytes asked for at once.", |stats| stats.requested.high),
    figure("allocated_peak_bytes", "Most bytes in live blocks at once.", |stats| stats.allocated.high),
    figure("reserved_peak_bytes", "Most physical bytes held at once.", |stats| stats.reserved.high),
    figure("blocks", "Live blocks.", |stats| stats.blocks.current),
];

/// The counter that is told of processes that have ended, too.
const OUT_OF_MEMORY: &str = "out_of_memory_total";

const COUNTERS: [Figure<u64>; 9] = [
    figure("allocations_total", "Allocations.", |stats| stats.allocations),
    figure("frees_total", "Frees.", |stats| stats.frees),
    figure("hits_total", "Allocations that found memory ready.", |stats| stats.hits),
    figure("misses_total", "Allocations that had to map, remap or create pages.", |stats| stats.misses),
    figure("stream_waits_total", "Allocations for which a stream had to wait for another.", |stats| {
        stats.stream_waits
    }),
    figure("pages_remapped_total", "Pages taken from a free range for another address.", |stats| {
        stats.pages_remapped
    }),
    figure("retries_total", "Times that memory ran out and was made room for.", |stats| stats.retries),
    figure(OUT_OF_MEMORY, "Requests that ended in an out-of-memory error.", |stats| stats.out_of_memory),
    figure("double_frees_total", "Blocks that two threads freed at once.", |stats| stats.double_frees),
];

macro_rules! define_calls {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Each kind of call with its count.
        fn calls(calls: &DeviceCalls) -> Vec<(&'static str, u64)> {
            vec![$((stringify!($name), calls.$name)),*]
        }
    };
}

millpond::list_of_device_calls!(define_calls);

/// The text.
pub(crate) fn text(sight: &Sight) -> String {
    let mut out = Text::default();
    let all = |process: &SeenProcess| process.pools.len();
    let pools: usize = sight.processes.iter().map(all).sum();
    let told = largest(&sight.processes);
    let silent = sight.processes.iter().filter(|process| !process.answers).count();
    out.one("millpond_processes", "Running programs that have pools.", sight.processes.len());
    out.one("millpond_processes_hidden", "Those that this user may not look at.", sight.hidden);
    out.one("millpond_processes_silent", "Those that do not answer: they may be stopped.", silent);
    out.one("millpond_pools", "Pools of all programs.", pools);
    out.one(
        "millpond_pools_left_out",
        "Pools that are not told of: those that hold least.",
        pools - told.len(),
    );
    for Figure { name, help, of } in &GAUGES {
        out.family(&format!("millpond_pool_{name}"), help, "gauge");
        told.iter().for_each(|(labels, pool)| out.sample(labels, of(&pool.stats)));
    }
    for Figure { name, help, of } in &COUNTERS {
        out.family(&format!("millpond_pool_{name}"), help, "counter");
        told.iter().for_each(|(labels, pool)| out.sample(labels, of(&pool.stats)));
        if *name == OUT_OF_MEMORY {
            of_ended(&mut out, sight);
        }
    }
    of_errors(&mut out, sight);
    of_budgets(&mut out, &sight.budgets);
    out.family(
        "millpond_pool_device_seconds_total",
        "Time that finding, mapping and giving back pages took.",
        "counter",
    );
    told.iter().for_each(|(labels, pool)| out.sample(labels, pool.device_time.as_secs_f64()));
    out.family("millpond_pool_device_calls_total", "Calls of the device, by kind.", "counter");
    for (labels, pool) in &told {
        for (call, count) in calls(&pool.stats.calls) {
            out.sample(&format!("{labels},call=\"{call}\""), count);
        }
    }
    if let Ok(gpus) = &sight.gpus {
        of_gpus(&mut out, gpus, &sight.processes);
    }
    out.lines
}

fn of_gpus(out: &mut Text, gpus: &[Gpu], processes: &[SeenProcess]) {
    let labels =
        |gpu: &Gpu| labels(&[("gpu", &gpu.number.to_string()), ("uuid", &gpu.uuid), ("name", &gpu.name)]);
    out.family("millpond_gpu_memory_bytes", "Memory of the GPU.", "gauge");
    gpus.iter().for_each(|gpu| out.sample(&labels(gpu), gpu.total));
    out.family("millpond_gpu_memory_used_bytes", "Of it, what programs and the driver use.", "gauge");
    gpus.iter().for_each(|gpu| out.sample(&labels(gpu), gpu.used));
    let help = "Who holds what is used: pools, the same processes outside their pools, other processes, and what is not listed.";
    out.family("millpond_gpu_memory_share_bytes", help, "gauge");
    for gpu in gpus {
        // Those of the processes that hold most. The last ones are of all others.
        for share in shares(gpu, processes).iter().rev().take(MOST_POOLS) {
            let holder = match share.holder {
                Holder::Pools => "pools",
                Holder::OutsideThePools => "outside_the_pools",
                Holder::OtherProcesses => "other_processes",
                Holder::NotListed => "not_listed",
            };
            let (pid, program) = (share.pid.map(|pid| pid.to_string()), share.program.as_deref());
            let of = self::labels(&[
                ("holder", holder),
                ("pid", &pid.unwrap_or_default()),
                ("program", program.unwrap_or("")),
            ]);
            out.sample(&format!("{},{of}", labels(gpu)), share.bytes);
        }
    }
}

/// The pools that hold most, with their labels.
fn largest(processes: &[SeenProcess]) -> Vec<(String, &SeenPool)> {
    let mut pools: Vec<_> =
        processes.iter().flat_map(|process| process.pools.iter().map(move |pool| (process, pool))).collect();
    pools.sort_by_key(|(process, pool)| (Reverse(pool.stats.reserved.current), process.pid, pool.number));
    pools.truncate(MOST_POOLS);
    let of = |(process, pool): (&SeenProcess, _)| -> (String, &SeenPool) {
        let pool: &SeenPool = pool;
        (of_pool((process.pid, &process.program, &process.who), pool), pool)
    };
    pools.into_iter().map(of).collect()
}

/// The same as long as a process runs, and when it has ended.
fn of_pool((pid, program, who): (u32, &str, &Who), pool: &SeenPool) -> String {
    let of = labels(&[
        ("pool", &pool.name),
        ("number", &pool.number.to_string()),
        ("device", &pool.device),
        ("memory", name_of(pool.memory)),
    ]);
    format!("{},{of}", of_process(pid, program, who))
}

/// What is known of whose a process is.
fn of_process(pid: u32, program: &str, who: &Who) -> String {
    let (pid, user) = (pid.to_string(), name_of_user(who.user));
    let all = [
        ("pid", &*pid),
        ("program", program),
        ("script", &who.script),
        ("user", &user),
        ("container", &who.container),
        ("pod", &who.pod),
        ("slurm_job", &who.job),
        ("rank", &who.rank),
    ];
    // To a server, an empty label is one that is not there.
    let known: Vec<_> =
        all.into_iter().filter(|(name, value)| !value.is_empty() || *name == "program").collect();
    labels(&known)
}

/// Pools of processes that have ended: the series go on.
fn of_ended(out: &mut Text, sight: &Sight) {
    let ended = sight.errors.told.iter().filter(|told| told.has_ended);
    let pools = ended.flat_map(|Told { seen, .. }| seen.pools.iter().map(move |pool| (seen, pool)));
    for (seen, pool) in pools.take(MOST_POOLS) {
        out.sample(&of_pool((seen.pid, &seen.program, &seen.who), pool), pool.stats.out_of_memory);
    }
}

fn of_errors(out: &mut Text, sight: &Sight) {
    let help = "Out-of-memory errors of all processes, also of those that have ended.";
    out.family("millpond_out_of_memory_errors_total", help, "counter");
    out.line(format_args!("millpond_out_of_memory_errors_total {}", sight.errors.total));
    let help = "When a process last had an out-of-memory error, in seconds since 1970; it may have ended.";
    out.family("millpond_last_out_of_memory_timestamp_seconds", help, "gauge");
    for Told { seen, has_ended } in &sight.errors.told {
        let labels = of_process(seen.pid, &seen.program, &seen.who);
        out.sample(&format!("{labels},ended=\"{has_ended}\""), seen.last_at);
    }
}

fn of_budgets(out: &mut Text, budgets: &[SeenBudget]) {
    let labels = |budget: &SeenBudget| {
        let folder = budget.path.parent().map(|folder| folder.display().to_string()).unwrap_or_default();
        labels(&[("budget", &budget.name), ("folder", &folder)])
    };
    let told = &budgets[..budgets.len().min(MOST_BUDGETS)];
    out.family("millpond_budget_limit_bytes", "Bytes that all processes with the budget may hold.", "gauge");
    told.iter().for_each(|budget| out.sample(&labels(budget), budget.limit));
    out.family("millpond_budget_held_bytes", "Bytes that they hold.", "gauge");
    told.iter().for_each(|budget| out.sample(&labels(budget), budget.held()));
    out.family("millpond_budget_processes", "Processes that have the budget.", "gauge");
    told.iter().for_each(|budget| out.sample(&labels(budget), budget.tenants.len()));
}

/// Without braces.
fn labels(labels: &[(&str, &str)]) -> String {
    let of = |(name, value): &(&str, &str)| {
        let value: String = value.chars().take(LONGEST_VALUE).collect();
        let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        format!("{name}=\"{value}\"")
    };
    labels.iter().map(of).collect::<Vec<_>>().join(",")
}

/// Lines, and the family that the next samples are of.
#[derive(Default)]
struct Text {
    lines: String,
    family: String,
}

impl Text {
    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        // Writing to a string does not fail.
        writeln!(self.lines, "{line}").unwrap_or_default();
    }

    fn family(&mut self, name: &str, help: &str, kind: &str) {
        self.line(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}"));
        name.clone_into(&mut self.family);
    }

    fn sample(&mut self, labels: &str, value: impl Display) {
        let name = std::mem::take(&mut self.family);
        self.line(format_args!("{name}{{{labels}}} {value}"));
        self.family = name;
    }

    fn one(&mut self, name: &str, help: &str, value: usize) {
        self.family(name, help, "gauge");
        self.line(format_args!("{name} {value}"));
    }
}

#[cfg(test)]
mod tests {
    use millpond::device::DeviceIdentity;
    use millpond::live::SeenErrors;
    use std::collections::BTreeSet;

    use super::*;
    use crate::live::ended::Errors;

    fn pool(number: u64, name: &str, reserved: u64) -> SeenPool {
        let mut pool = SeenPool::default();
        (pool.number, pool.name, pool.device) = (number, name.to_owned(), "cuda:0".to_owned());
        pool.identity = Some(DeviceIdentity([1; 16]));
        pool.stats.reserved.current = reserved;
        pool
    }

    fn sight(pools: Vec<SeenPool>) -> Sight {
        let mut process = SeenProcess::default();
        (process.pid, process.program, process.answers, process.pools) =
            (7, "py\\th\"on".to_owned(), true, pools);
        (process.who.script, process.who.rank) = ("python train.py".to_owned(), "3".to_owned());
        let uuid = DeviceIdentity([1; 16]).to_string();
        let gpu = Gpu {
            number: 0,
            name: "H200".to_owned(),
            uuid,
            total: 1000,
            used: 600,
            processes: vec![(7, 500)],
        };
        Sight { hidden: 2, ..Sight::of(vec![process], Ok(vec![gpu])) }
    }

    /// What a server reads: each family begins with its help and type, once, and its samples follow.
    fn check(text: &str) {
        let (mut families, mut samples) = (BTreeSet::new(), BTreeSet::new());
        let mut family = "";
        for line in text.lines() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                family = help.split(' ').next().unwrap();
                assert!(families.insert(family), "{family} comes twice");
                continue;
            }
            if let Some(of) = line.strip_prefix("# TYPE ") {
                let (name, kind) = of.split_once(' ').unwrap();
                assert_eq!((name, name.ends_with("_total")), (family, kind == "counter"), "{line}");
                continue;
            }
            let (series, value) = line.rsplit_once(' ').unwrap();
            value.parse::<f64>().unwrap();
            assert!(samples.insert(series), "{series} comes twice");
            let name = series.split('{').next().unwrap();
            assert_eq!(name, family, "{line}");
            assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{line}");
        }
        assert!(families.len() > 20 && text.ends_with('\n'));
    }

    #[test]
    fn the_text_is_one_that_prometheus_reads() {
        let text = text(&sight(vec![pool(1, "a\nb", 300), pool(2, "c", 100)]));
        check(&text);
        let labels = r#"pid="7",program="py\\th\"on",script="python train.py",user="root",rank="3",pool="a\nb",number="1",device="cuda:0",memory="device""#;
        assert!(text.contains(&format!("millpond_pool_reserved_bytes{{{labels}}} 300\n")), "{text}");
        assert!(
            text.contains(&format!("millpond_pool_device_calls_total{{{labels},call=\"create\"}} 0\n")),
            "{text}"
        );
        assert!(text.contains(r#"name="H200",holder="pools",pid="7",program="py\\th\"on"} 400"#), "{text}");
        assert!(text.contains(r#"holder="outside_the_pools",pid="7",program="py\\th\"on"} 100"#), "{text}");
        assert!(text.contains(r#"holder="not_listed",pid="",program=""} 100"#), "{text}");
    }

    #[test]
    fn the_number_of_series_is_bounded() {
        let many = (0..2000).map(|number| pool(number, &"x".repeat(1000), number)).collect();
        let text = text(&sight(many));
        check(&text);
        assert_eq!(text.matches("\nmillpond_pool_blocks{").count(), MOST_POOLS);
        assert!(text.contains("millpond_pools_left_out 1500\n") && text.contains("number=\"1999\""));
        assert!(text.lines().all(|line| line.len() < 500));
    }

    #[test]
    fn errors_are_told_when_their_process_has_ended() {
        let mut sight = sight(vec![pool(1, "a", 300)]);
        let mut seen = SeenErrors::default();
        (seen.pid, seen.errors, seen.last_at) = (9, 3, 1_700_000_000);
        (seen.who.job, seen.program) = ("17".to_owned(), "python".to_owned());
        let mut doomed = pool(2, "doomed", 0);
        doomed.stats.out_of_memory = 3;
        seen.pools.push(doomed);
        sight.errors = Errors { told: vec![Told { seen, has_ended: true }], total: 5, events: Vec::new() };
        let text = text(&sight);
        check(&text);
        let of = r#"pid="9",program="python",user="root",slurm_job="17""#;
        let pool = r#"pool="doomed",number="2",device="cuda:0",memory="device""#;
        for line in [
            format!("millpond_pool_out_of_memory_total{{{of},{pool}}} 3\n"),
            format!("millpond_last_out_of_memory_timestamp_seconds{{{of},ended=\"true\"}} 1700000000\n"),
            "millpond_out_of_memory_errors_total 5\n".to_owned(),
            "millpond_processes_hidden 2\n".to_owned(),
        ] {
            assert!(text.contains(&line), "{line}: {text}");
        }
    }
}
