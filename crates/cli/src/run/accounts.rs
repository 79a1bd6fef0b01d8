//! What the program's processes told, and what is said of it. Sizes in bytes.

use millpond::HumanBytes;
use serde::{Deserialize, Serialize};

use super::program::Ended;
use crate::terminal::{count, remark};

/// Of one process, as the preloaded library writes it (`crates/entry-points/src/report.rs`), which this command cannot link.
#[derive(Debug, Serialize, Deserialize)]
struct Account {
    pid: u32,
    program: String,
    mode: String,
    /// Those of Python that have the pools; none where the program itself has.
    #[serde(default)]
    libraries: Vec<String>,
    pools: Vec<Pool>,
    outside: Outside,
    said: Vec<String>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Pool {
    /// `None` for the pool that there would have been.
    gpu: Option<usize>,
    held: u64,
    held_peak: u64,
    allocated_peak: u64,
    requested: u64,
    requested_peak: u64,
    allocations: u64,
    frees: u64,
    hits: u64,
    device_calls: u64,
    out_of_memory: u64,
}

/// What the driver gave.
#[derive(Debug, Serialize, Deserialize)]
struct Outside {
    plain: Figures,
    managed: Figures,
    pages: Figures,
    pinned: Figures,
    /// Of all but pinned memory.
    peak: u64,
    refused: u64,
    /// What CUDA itself took at most, where the limit counts it.
    #[serde(default)]
    overhead: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct Figures {
    allocations: u64,
    bytes: u64,
    peak: u64,
}

/// What all processes told.
#[derive(Debug)]
pub(super) struct Told(Vec<Account>);

impl Told {
    /// From the file of accounts, which has a slot for each.
    pub(super) fn read(file: &[u8]) -> Self {
        let mut accounts: Vec<_> = file.chunks(SLOT_BYTES).filter_map(Account::of).collect();
        // A process with Python's libraries has two.
        accounts.sort_by_key(|account| (account.pid, !account.libraries.is_empty()));
        Self(accounts)
    }

    /// The processes that told something.
    pub(super) fn processes(&self) -> Vec<u32> {
        self.0.iter().map(|account| account.pid).collect()
    }

    /// Whether a pool served one of them, or was watched to have.
    pub(super) fn has_pools(&self) -> bool {
        self.0.iter().any(|account| !account.pools.is_empty())
    }
}

/// What `--json` writes.
#[derive(Debug, Serialize)]
pub(super) struct Json<'a> {
    program: &'a str,
    status: u8,
    processes: &'a [Account],
}

impl<'a> Json<'a> {
    pub(super) fn new(program: &'a str, ended: &Ended, told: &'a Told) -> Self {
        Self { program, status: ended.status, processes: &told.0 }
    }
}

/// Says what was held, process by process.
pub(super) fn say(told: &Told, program: &str) {
    if told.0.is_empty() {
        // What is not reached is not seen. Whether there is a driver is not asked: that would start it, which takes 100 ms and more.
        let why = "it allocated no CUDA memory, unless in a process that is out of reach: one with other rights, or started \
                   without this environment (env -i, sudo)";
        return remark(&format!("millpond: {program}: {why}"));
    }
    for account in &told.0 {
        // What they map themselves, they tell themselves.
        let has_libraries = |other: &Account| other.pid == account.pid && !other.libraries.is_empty();
        account
            .lines(told.0.iter().any(has_libraries))
            .iter()
            .for_each(|line| remark(&format!("millpond: {line}")));
    }
    // They are in the order of their ids.
    let processes = told.0.chunk_by(|one, next| one.pid == next.pid).count();
    if processes > 1 {
        let pools = || told.0.iter().flat_map(|account| &account.pools);
        let [held, requested] =
            [pools().map(|pool| pool.held_peak).sum(), pools().map(|pool| pool.requested_peak).sum()];
        let [held, requested] = [held, requested].map(HumanBytes);
        remark(&format!(
            "millpond: {processes} processes in all: {held} held, {requested} requested, as the sum of their peaks"
        ));
    }
}

/// As the preloaded library writes them: which of two texts is whole, and both, each with a zero at its end.
const SLOT_BYTES: usize = 16 << 10;
const FIRST_TEXT: usize = 64;

impl Account {
    /// `None` where the process has not told anything.
    fn of(slot: &[u8]) -> Option<Self> {
        let number = u32::from_ne_bytes(slot.get(..4)?.try_into().ok()?);
        let whole = usize::try_from(number).ok()?.checked_sub(1)?;
        let text = slot.get(FIRST_TEXT + whole.checked_mul((SLOT_BYTES - FIRST_TEXT) / 2)?..)?;
        serde_json::from_slice(text.split(|byte| *byte == 0).next()?).ok()
    }

    fn lines(&self, without_pages: bool) -> Vec<String> {
        let mut who = format!("{} ({})", self.program, self.pid);
        if !self.libraries.is_empty() {
            who += &format!(", {}", self.libraries.join(" and "));
        }
        let mut lines: Vec<_> = self.pools.iter().map(|pool| format!("{who}{}", pool.line())).collect();
        lines.extend(
            self.outside.line(self.mode == "pool", without_pages).map(|line| format!("{who}: {line}")),
        );
        lines
    }
}

impl Pool {
    fn line(&self) -> String {
        let [held, requested] = [self.held_peak, self.requested_peak].map(HumanBytes);
        let allocations = count(self.allocations, "allocation");
        let Some(gpu) = self.gpu else {
            return format!(": {allocations}, at most {requested} at once; a pool would have held {held}");
        };
        let ready = 100.0 * self.hits as f64 / self.allocations.max(1) as f64;
        let mut line = format!(
            ", GPU {gpu}: the pool held {held} at most, for {requested} requested; {allocations}, {ready:.2} % without a device call"
        );
        if self.out_of_memory > 0 {
            line += &format!("; {} out of memory", self.out_of_memory);
        }
        line
    }
}

impl Outside {
    /// `None` where there is nothing to say.
    fn line(&self, beside_a_pool: bool, without_pages: bool) -> Option<String> {
        let peak = if without_pages { self.plain.peak + self.managed.peak } else { self.peak };
        if [peak, self.refused, self.pinned.peak, self.overhead] == [0; 4] {
            return None;
        }
        let mut kinds = vec![(&self.plain, "plain"), (&self.managed, "managed")];
        if !without_pages {
            kinds.push((&self.pages, "in pages of its own"));
        }
        let kinds = kinds.iter().filter(|(figures, _)| figures.peak > 0);
        let kinds: Vec<_> =
            kinds.map(|(figures, kind)| format!("{} {kind}", HumanBytes(figures.peak))).collect();
        let beside = if beside_a_pool { " beside the pool" } else { "" };
        let mut gave = Vec::new();
        if peak > 0 || self.refused > 0 {
            gave.push(format!("{} at most{beside} ({})", HumanBytes(peak), kinds.join(", ")));
        }
        if self.pinned.peak > 0 {
            gave.push(format!("{} of pinned host memory", HumanBytes(self.pinned.peak)));
        }
        if self.overhead > 0 {
            gave.push(format!("CUDA itself took {} at most", HumanBytes(self.overhead)));
        }
        let gives =
            if peak == 0 && self.refused == 0 && self.pinned.peak == 0 { "" } else { "the driver gave " };
        let mut line = format!("{gives}{}", gave.join(", and "));
        if self.refused > 0 {
            line += &format!("; the limit refused {}", count(self.refused, "allocation"));
        }
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(peak: u64) -> Figures {
        Figures { allocations: 1, bytes: 0, peak }
    }

    fn outside(plain: u64, pages: u64, refused: u64) -> Outside {
        let [plain, managed, pages, pinned] = [plain, 0, pages, 0].map(figures);
        let peak = plain.peak + pages.peak;
        Outside { plain, managed, pages, pinned, peak, refused, overhead: 0 }
    }

    #[test]
    fn what_the_driver_gave_is_said_by_kind() {
        let said = outside(1 << 20, 2 << 20, 0).line(true, false).unwrap();
        assert_eq!(
            said,
            "the driver gave 3.00 MiB at most beside the pool (1.00 MiB plain, 2.00 MiB in pages of its own)"
        );
        assert_eq!(outside(0, 0, 0).line(true, false), None);
        let pinned =
            |plain| Outside { pinned: figures(3 << 20), ..outside(plain, 0, 0) }.line(true, false).unwrap();
        assert_eq!(pinned(0), "the driver gave 3.00 MiB of pinned host memory");
        assert!(pinned(1 << 20).ends_with(" (1.00 MiB plain), and 3.00 MiB of pinned host memory"));
        let with_overhead =
            |plain| Outside { overhead: 512 << 20, ..outside(plain, 0, 0) }.line(false, false).unwrap();
        assert_eq!(with_overhead(0), "CUDA itself took 512.00 MiB at most");
        assert_eq!(
            with_overhead(1 << 20),
            "the driver gave 1.00 MiB at most (1.00 MiB plain), and CUDA itself took 512.00 MiB at most"
        );
        assert!(
            outside(1 << 20, 0, 1).line(false, false).unwrap().ends_with("; the limit refused 1 allocation")
        );
    }

    #[test]
    fn pages_that_a_library_tells_of_are_said_once() {
        assert_eq!(outside(0, 2 << 20, 0).line(true, true), None);
        let said = outside(1 << 20, 2 << 20, 0).line(true, true).unwrap();
        assert_eq!(said, "the driver gave 1.00 MiB at most beside the pool (1.00 MiB plain)");
    }
}
