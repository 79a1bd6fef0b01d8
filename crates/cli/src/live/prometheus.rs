//! What was seen, in Prometheus' text format.
//! <https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format>

use std::cmp::Reverse;
use std::fmt::{Display, Write};

use millpond::live::{SeenPool, SeenProcess};
use millpond::{DeviceCalls, Stats};
use millpond_baselines::name_of;

use super::Sight;
use super::gpus::Gpu;
use super::shares::{Holder, shares};

/// Pools that are told of, those that hold most first: so many time series that a server takes them without harm.
const MOST_POOLS: usize = 500;

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

const GAUGES: [Figure<u64>; 9] = [
    figure("requested_bytes", "Bytes asked for, in live blocks.", |stats| stats.requested.current),
    figure("allocated_bytes", "Bytes in live blocks, as the pool rounds them.", |stats| {
        stats.allocated.current
    }),
    figure("reserved_bytes", "Physical bytes held from the device.", |stats| stats.reserved.current),
    figure("cached_bytes", "Bytes held but in no live block.", |stats| stats.cached()),
    figure("asleep_bytes", "Bytes given back to sleep.", |stats| stats.asleep),
    figure("requested_peak_bytes", "Most bytes asked for at once.", |stats| stats.requested.high),
    figure("allocated_peak_bytes", "Most bytes in live blocks at once.", |stats| stats.allocated.high),
    figure("reserved_peak_bytes", "Most physical bytes held at once.", |stats| stats.reserved.high),
    figure("blocks", "Live blocks.", |stats| stats.blocks.current),
];

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
    figure("out_of_memory_total", "Requests that ended in an out-of-memory error.", |stats| {
        stats.out_of_memory
    }),
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
    out.one("millpond_processes", "Running programs of this user that have pools.", sight.processes.len());
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
    }
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
        let labels = labels(&[
            ("pid", &process.pid.to_string()),
            ("program", &process.program),
            ("pool", &pool.name),
            ("number", &pool.number.to_string()),
            ("device", &pool.device),
            ("memory", name_of(pool.memory)),
        ]);
        (labels, pool)
    };
    pools.into_iter().map(of).collect()
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
    use std::collections::BTreeSet;
    use std::time::Instant;

    use millpond::device::DeviceIdentity;

    use super::*;

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
        let uuid = DeviceIdentity([1; 16]).to_string();
        let gpu = Gpu {
            number: 0,
            name: "H200".to_owned(),
            uuid,
            total: 1000,
            used: 600,
            processes: vec![(7, 500)],
        };
        Sight { at: Instant::now(), processes: vec![process], gpus: Ok(vec![gpu]) }
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
        let labels = r#"pid="7",program="py\\th\"on",pool="a\nb",number="1",device="cuda:0",memory="device""#;
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
        assert!(text.lines().all(|line| line.len() < 400));
    }
}
