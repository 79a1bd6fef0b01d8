//! What `millpond top --json` writes. Sizes in bytes.

use millpond::live::{SeenHolder, SeenPool, SeenProcess, SeenSizes, SizeRow};
use millpond::{DeviceCalls, Level, Stats};
use millpond_baselines::name_of;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::blocks::{PATIENCE_FOR_ALL, ask};
use crate::live::gpus::Gpu;
use crate::live::shares::{Share, shares};
use crate::live::{Rates, Sight};

#[derive(Debug, Serialize)]
pub(super) struct Told {
    processes: Vec<ToldProcess>,
    gpus: Vec<ToldGpu>,
    /// Why nothing is known of GPUs.
    no_gpus: Option<String>,
}

#[derive(Debug, Serialize)]
struct ToldProcess {
    pid: u32,
    program: String,
    answers: bool,
    pools: Vec<ToldPool>,
}

#[derive(Debug, Serialize)]
struct ToldPool {
    number: u64,
    name: String,
    device: String,
    memory: &'static str,
    uuid: Option<String>,
    device_seconds: f64,
    /// Since the look before; `null` at the first.
    a_second: Option<ToldRates>,
    /// Where they were asked for.
    #[serde(flatten)]
    live_blocks: Option<ToldBlocks>,
    #[serde(flatten)]
    stats: Map<String, Value>,
}

/// Of the two one is `null`.
#[derive(Debug, Serialize)]
struct ToldBlocks {
    live_blocks: Option<Value>,
    /// Why nothing is known of them.
    no_live_blocks: Option<String>,
}

impl From<Result<SeenSizes, String>> for ToldBlocks {
    fn from(answer: Result<SeenSizes, String>) -> Self {
        match answer {
            Ok(sizes) => Self { live_blocks: Some(told_blocks(&sizes)), no_live_blocks: None },
            Err(why) => Self { live_blocks: None, no_live_blocks: Some(why) },
        }
    }
}

#[derive(Debug, Serialize)]
struct ToldRates {
    hits: f64,
    misses: f64,
    stream_waits: f64,
    retries: f64,
    device_seconds: f64,
}

#[derive(Debug, Serialize)]
struct ToldGpu {
    #[serde(flatten)]
    gpu: Gpu,
    shares: Vec<Share>,
}

/// `blocks` says whether live blocks are asked for.
pub(super) fn told(sight: &Sight, before: Option<&Sight>, blocks: bool) -> Told {
    let processes = sight.processes.iter().map(|process| told_of(process, (sight, before), blocks)).collect();
    let gpu = |gpu: &Gpu| ToldGpu { gpu: gpu.clone(), shares: shares(gpu, &sight.processes) };
    let (gpus, no_gpus) = match &sight.gpus {
        Ok(gpus) => (gpus.iter().map(gpu).collect(), None),
        Err(why) => (Vec::new(), Some(why.clone())),
    };
    Told { processes, gpus, no_gpus }
}

fn told_of(process: &SeenProcess, (sight, before): (&Sight, Option<&Sight>), blocks: bool) -> ToldProcess {
    let pool = |pool: &SeenPool| ToldPool {
        number: pool.number,
        name: pool.name.clone(),
        device: pool.device.clone(),
        memory: name_of(pool.memory),
        uuid: pool.identity.map(|identity| identity.to_string()),
        device_seconds: pool.device_time.as_secs_f64(),
        a_second: sight.rates(before, process.pid, pool).map(ToldRates::from),
        live_blocks: blocks.then(|| ask(process, pool, PATIENCE_FOR_ALL).into()),
        stats: all(&pool.stats),
    };
    let SeenProcess { pid, program, answers, .. } = process;
    ToldProcess {
        pid: *pid,
        program: program.clone(),
        answers: *answers,
        pools: process.pools.iter().map(pool).collect(),
    }
}

/// By holder it is empty where the pool does not track its blocks.
fn told_blocks(sizes: &SeenSizes) -> Value {
    let size = |row: &SizeRow| json!({ "from": row.from, "blocks": row.blocks, "bytes": row.bytes });
    let holder = |holder: &SeenHolder| {
        json!({
            "tag": holder.tag,
            "stack": holder.stack,
            "bytes": holder.bytes,
            "blocks": holder.blocks,
            "oldest_seconds": holder.oldest.as_secs_f64(),
        })
    };
    json!({
        "by_size": sizes.rows.iter().map(size).collect::<Vec<_>>(),
        "by_holder": sizes.holders.iter().map(holder).collect::<Vec<_>>(),
    })
}

impl From<Rates> for ToldRates {
    fn from(Rates { hits, misses, stream_waits, retries, device_time }: Rates) -> Self {
        Self { hits, misses, stream_waits, retries, device_seconds: device_time }
    }
}

/// A figure, or several that go together.
trait Shown {
    fn shown(&self) -> Value;
}

impl Shown for u64 {
    fn shown(&self) -> Value {
        (*self).into()
    }
}

impl Shown for f64 {
    fn shown(&self) -> Value {
        (*self).into()
    }
}

impl Shown for Level {
    fn shown(&self) -> Value {
        json!({ "current": self.current, "high": self.high })
    }
}

macro_rules! define_calls {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        impl Shown for DeviceCalls {
            fn shown(&self) -> Value {
                json!({ $(stringify!($name): self.$name),* })
            }
        }
    };
}

millpond::list_of_device_calls!(define_calls);

macro_rules! define_all {
    (
        fields { $($(#[$doc:meta])* $name:ident: $type:ident,)* }
        methods { $($(#[$method_doc:meta])* $method:ident: $method_type:ident,)* }
        later { $($(#[$later_doc:meta])* $later:ident: $later_type:ident,)* }
    ) => {
        /// All that a pool counts, by the names that the library has.
        fn all(stats: &Stats) -> Map<String, Value> {
            [
                $((stringify!($name).to_owned(), stats.$name.shown()),)*
                $((stringify!($method).to_owned(), stats.$method().shown()),)*
                $((stringify!($later).to_owned(), stats.$later.shown()),)*
            ]
            .into_iter()
            .collect()
        }
    };
}

millpond::list_of_stats!(define_all);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_why_nothing_is_known_of_live_blocks() {
        // Nobody answers for it.
        let mut process = SeenProcess::default();
        process.pools.push(SeenPool::default());
        let gpus = Err("none".to_owned());
        let sight = Sight::of(vec![process], gpus);
        let pool = |blocks| {
            let mut told = serde_json::to_value(told(&sight, None, blocks)).unwrap();
            told["processes"][0]["pools"][0].take()
        };
        let asked = pool(true);
        assert_eq!(asked["no_live_blocks"], "the process is gone");
        assert!(asked["live_blocks"].is_null());
        let not_asked = pool(false);
        assert!(
            ["live_blocks", "no_live_blocks"].iter().all(|key| not_asked.get(key).is_none()),
            "{not_asked}"
        );
    }
}
