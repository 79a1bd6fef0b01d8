//! The rows that `millpond top` shows, one for each pool, and their columns.

use clap::ValueEnum;
use millpond::HumanBytes;
use millpond::device::MemoryKind;
use millpond::live::SeenPool;
use millpond_baselines::name_of;

use crate::live::{Rates, Sight};

/// A pool at one moment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row<'a> {
    pub(super) pid: u32,
    pub(super) program: &'a str,
    pub(super) pool: &'a SeenPool,
    /// `None` at the first look.
    pub(super) rates: Option<Rates>,
}

/// What rows are sorted by: the largest first, but names and processes from the first on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum SortKey {
    Reserved,
    Requested,
    Cached,
    Hits,
    Misses,
    DeviceTime,
    Name,
    Process,
}

impl SortKey {
    /// The one after this, in a circle.
    pub(super) fn next(self) -> Self {
        let all = Self::value_variants();
        let at = all.iter().position(|key| *key == self).unwrap_or(0);
        all[(at + 1) % all.len()]
    }

    /// As on the command line.
    pub(super) fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// All pools that were seen, in order.
pub(super) fn rows<'a>(sight: &'a Sight, before: Option<&Sight>, by: SortKey) -> Vec<Row<'a>> {
    let of_each = sight.processes.iter().flat_map(|process| {
        process.pools.iter().map(move |pool| Row {
            pid: process.pid,
            program: if process.who.script.is_empty() { &process.program } else { &process.who.script },
            pool,
            rates: sight.rates(before, process.pid, pool),
        })
    });
    let mut rows: Vec<_> = of_each.collect();
    let rate = |row: &Row<'_>, of: fn(&Rates) -> f64| row.rates.as_ref().map_or(0.0, of);
    rows.sort_by(|a, b| match by {
        SortKey::Reserved => b.pool.stats.reserved.current.cmp(&a.pool.stats.reserved.current),
        SortKey::Requested => b.pool.stats.requested.current.cmp(&a.pool.stats.requested.current),
        SortKey::Cached => b.pool.stats.cached().cmp(&a.pool.stats.cached()),
        SortKey::Hits => rate(b, |rates| rates.hits).total_cmp(&rate(a, |rates| rates.hits)),
        SortKey::Misses => rate(b, |rates| rates.misses).total_cmp(&rate(a, |rates| rates.misses)),
        SortKey::DeviceTime => {
            rate(b, |rates| rates.device_time).total_cmp(&rate(a, |rates| rates.device_time))
        }
        SortKey::Name => a.pool.name.cmp(&b.pool.name),
        SortKey::Process => (a.pid, a.pool.number).cmp(&(b.pid, b.pool.number)),
    });
    rows
}

/// A column: its title, and what it says of a pool. The first ones matter most where there is little room.
pub(super) struct Column {
    pub(super) title: &'static str,
    /// Letters of its figures at most.
    pub(super) width: u16,
    pub(super) of: fn(&Row<'_>) -> String,
}

fn bytes(bytes: u64) -> String {
    HumanBytes(bytes).to_string()
}

/// A figure a second, in at most five letters.
fn a_second(rate: Option<f64>) -> String {
    match rate {
        None => "-".to_owned(),
        Some(rate) if rate < 9.95 => format!("{rate:.1}"),
        Some(rate) if rate < 9999.5 => format!("{rate:.0}"),
        Some(rate) if rate < 999_500.0 => format!("{:.0}k", rate / 1e3),
        Some(rate) => format!("{:.1}M", rate / 1e6),
    }
}

/// The device, and which memory of it.
pub(super) fn device(pool: &SeenPool) -> String {
    match pool.memory {
        MemoryKind::Device => pool.device.clone(),
        other => format!("{} {}", pool.device, name_of(other)),
    }
}

/// Those beside the names of process and pool.
pub(super) const COLUMNS: [Column; 15] = [
    Column { title: "reserved", width: 10, of: |row| bytes(row.pool.stats.reserved.current) },
    Column { title: "requested", width: 10, of: |row| bytes(row.pool.stats.requested.current) },
    Column { title: "cached", width: 10, of: |row| bytes(row.pool.stats.cached()) },
    Column { title: "hits/s", width: 6, of: |row| a_second(row.rates.map(|rates| rates.hits)) },
    Column { title: "misses/s", width: 8, of: |row| a_second(row.rates.map(|rates| rates.misses)) },
    Column {
        title: "pages",
        width: 7,
        of: |row| {
            row.rates.map_or_else(|| "-".to_owned(), |rates| format!("{:.1} %", 100.0 * rates.device_time))
        },
    },
    Column { title: "device", width: 12, of: |row| device(row.pool) },
    Column { title: "away", width: 10, of: |row| bytes(row.pool.stats.asleep) },
    Column { title: "pinned", width: 10, of: |row| bytes(row.pool.stats.pinned) },
    Column { title: "most reserved", width: 13, of: |row| bytes(row.pool.stats.reserved.high) },
    Column { title: "most requested", width: 14, of: |row| bytes(row.pool.stats.requested.high) },
    Column { title: "allocated", width: 10, of: |row| bytes(row.pool.stats.allocated.current) },
    Column { title: "waits/s", width: 7, of: |row| a_second(row.rates.map(|rates| rates.stream_waits)) },
    Column { title: "retries", width: 7, of: |row| row.pool.stats.retries.to_string() },
    Column { title: "errors", width: 6, of: |row| row.pool.stats.out_of_memory.to_string() },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_short() {
        let shown = [0.0, 3.12, 9.97, 123.4, 9999.4, 12_345.0, 999_499.0, 43_210_000.0]
            .map(|rate| a_second(Some(rate)));
        assert_eq!(shown, ["0.0", "3.1", "10", "123", "9999", "12k", "999k", "43.2M"]);
        assert_eq!(a_second(None), "-");
    }

    #[test]
    fn every_key_comes_round() {
        let mut key = SortKey::Reserved;
        let names: Vec<_> = SortKey::value_variants()
            .iter()
            .map(|_| {
                key = key.next();
                key.name()
            })
            .collect();
        assert_eq!(
            (names[0].as_str(), names[4].as_str(), key),
            ("requested", "device-time", SortKey::Reserved)
        );
    }
}
