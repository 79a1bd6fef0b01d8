//! How much memory a trace needs with an allocator: found by replaying it on smaller and smaller devices.

use std::str::FromStr;

use millpond::HumanBytes;
use serde::Serialize;

use crate::replay::{Choose, Outcome, Program, Ran, ReplayError, SegmentOrder, about_needed, run_with};

/// A card that a job may have to fit on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Card {
    /// What people call it.
    pub name: String,
    /// What a program finds as its memory, in bytes.
    pub bytes: u64,
}

/// Memory of the cards that people have, in GiB, as they are sold.
const CARDS_GIB: [u64; 10] = [8, 12, 16, 24, 32, 40, 48, 80, 96, 141];

/// What a card has at least of what it is sold with, in percent, where nobody has looked: the driver keeps 1 to 3 % of the cards
/// of [`NAMED`] whose memory has no ECC of its own, and 3.3 % of the RTX 5080.
const USABLE_PERCENT: u64 = 96;

/// Cards by name, with the GiB that they are sold with, and the MiB that a program finds. The latter is what PyTorch said in
/// reports of errors ("GPU 0 has a total capacity of 23.64 GiB"), the least of several; 0 where none was found. Cards whose ECC takes
/// part of the memory (T4, L4, A10, A40, L40, RTX Ada) have what is left with ECC on. Of cards that are sold with more than one size
/// it is the most, or the most common; a size behind the name replaces it.
const NAMED: [(&str, u64, u64); 40] = [
    ("2080 Ti", 11, 0),
    ("3060", 12, 0),
    ("3070", 8, 7966),
    ("3080", 10, 10014),
    ("3080 Ti", 12, 0),
    ("3090", 24, 24248),
    ("3090 Ti", 24, 0),
    ("4060", 8, 0),
    ("4060 Ti", 8, 0),
    ("4070", 12, 0),
    ("4070 Super", 12, 0),
    ("4070 Ti", 12, 0),
    ("4070 Ti Super", 16, 0),
    ("4080", 16, 0),
    ("4080 Super", 16, 0),
    ("4090", 24, 24207),
    ("5060", 8, 0),
    ("5070", 12, 0),
    ("5070 Ti", 16, 0),
    ("5080", 16, 0),
    ("5090", 32, 32122),
    ("A2000", 12, 0),
    ("A4000", 16, 15984),
    ("A5000", 24, 0),
    ("A6000", 48, 0),
    ("6000 Ada", 48, 45465),
    ("T4", 16, 14909),
    ("A10", 24, 22517),
    ("A10G", 24, 22517),
    ("A16", 16, 14909),
    ("A30", 24, 24094),
    ("A40", 48, 45465),
    ("A100", 80, 81152),
    ("L4", 24, 22558),
    ("L40", 48, 45465),
    ("L40S", 48, 45465),
    ("H100", 80, 81000),
    ("H100 NVL", 94, 95232),
    ("H200", 141, 0),
    ("B200", 180, 0),
];

/// Cards of which nobody knows the size by the name.
const OF_TWO_SIZES: [(&str, [u64; 2]); 1] = [("V100", [16, 32])];

/// What stands in cards' names and says nothing of their memory: makers, families, and how a card is connected.
const BESIDE_THE_NAME: [&str; 14] = [
    "nvidia", "geforce", "rtx", "gtx", "tesla", "quadro", "sxm", "sxm2", "sxm3", "sxm4", "sxm5", "pcie",
    "hbm3", "hbm3e",
];

/// A bare number up to this is a size in GiB, not a card's name.
const MOST_GIB_WITHOUT_UNIT: u64 = 512;

impl Card {
    /// The sizes that cards have, by size.
    pub fn all() -> Vec<Self> {
        CARDS_GIB.map(|gib| Self { name: gib.to_string(), bytes: usable(gib) }).into()
    }

    /// Whether it is one of [`all`](Self::all): a size and no model.
    pub fn is_a_size(&self) -> bool {
        self.name.parse::<u64>().is_ok()
    }

    /// Whether a trace that needs `capacity` bytes fits, where the driver's context takes `context` bytes.
    pub fn fits(&self, capacity: u64, context: u64) -> bool {
        capacity.saturating_add(context) <= self.bytes
    }
}

impl FromStr for Card {
    type Err = String;

    /// Reads a name as people write it, such as "4090", "RTX 4090" or "A100-SXM4-40GB", or the memory that a program finds, such as
    /// "24GiB", "23.5GiB", "24564MiB" or "24".
    fn from_str(text: &str) -> Result<Self, String> {
        let named = |bytes| Ok(Self { name: text.trim().to_owned(), bytes });
        let (name, size) = name_and_size(text);
        let is = |known: &str| known.replace(' ', "").eq_ignore_ascii_case(&name);
        let sane = |gib: &u64| (1..1 << 20).contains(gib);
        match (NAMED.iter().find(|(known, ..)| is(known)), size.filter(sane)) {
            (Some((_, sold, mib)), size) if size.is_none_or(|size| size == *sold) && *mib > 0 => {
                return named(mib << 20);
            }
            (Some((_, sold, _)), size) => return named(usable(size.unwrap_or(*sold))),
            (None, _) => {}
        }
        match (OF_TWO_SIZES.iter().find(|(known, _)| is(known)), size.filter(sane)) {
            (Some((_, sizes)), Some(size)) if sizes.contains(&size) => return named(usable(size)),
            (Some((known, [one, other])), _) => {
                return Err(format!(
                    "'{text}' is sold with {one} and with {other} GiB; which? Say {known}-{one} or {known}-{other}"
                ));
            }
            (None, _) => {}
        }
        match bytes_of(text) {
            Some(bytes) => named(bytes),
            None => Err(format!(
                "'{text}' is no card that Millpond knows; give its size, such as 24GiB, or a name such as RTX 4090, \
                 A100-40 or H100"
            )),
        }
    }
}

/// What a card that is sold with so many GiB has at least, in bytes.
const fn usable(gib: u64) -> u64 {
    (gib << 30) / 100 * USABLE_PERCENT
}

/// A size as nvidia-smi and people write it, in bytes: "24564MiB", "23.5 GiB", "24GB", "24". Not "RTX 12", which is no card: its name
/// is not its size.
fn bytes_of(text: &str) -> Option<u64> {
    const UNITS: [(&str, f64); 6] = [
        ("gib", (1u64 << 30) as f64),
        ("gb", (1u64 << 30) as f64),
        ("g", (1u64 << 30) as f64),
        ("mib", (1u64 << 20) as f64),
        ("mb", (1u64 << 20) as f64),
        ("m", (1u64 << 20) as f64),
    ];
    let lower = text.trim().to_ascii_lowercase();
    let with_unit = UNITS.iter().find_map(|(unit, each)| Some((lower.strip_suffix(unit)?, *each)));
    let (number, each) = with_unit.unwrap_or((&lower, (1u64 << 30) as f64));
    let number: f64 = number.trim().parse().ok()?;
    let is_bare = with_unit.is_none();
    if is_bare && number > MOST_GIB_WITHOUT_UNIT as f64 {
        return None;
    }
    let bytes = number * each;
    // A card has a GiB at least: "24MiB" is a mistake.
    ((1u64 << 30) as f64..=(1u64 << 50) as f64).contains(&bytes).then_some(bytes as u64)
}

/// What a card is called without what stands beside it, and its size in GiB where that is said: "4090", and 24.
fn name_and_size(text: &str) -> (String, Option<u64>) {
    let lower = text.to_ascii_lowercase().replace(" gib", "gib").replace(" gb", "gb");
    let words = lower.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let (mut name, mut size) = (String::new(), None);
    for word in words.filter(|word| !BESIDE_THE_NAME.contains(word)) {
        let number = ["gib", "gb", "g"].iter().find_map(|unit| word.strip_suffix(unit)?.parse().ok());
        // As in A100-40.
        let number = number.or_else(|| word.parse().ok().filter(|_| !name.is_empty()));
        match number {
            Some(gib) => size = Some(gib),
            None => {
                name += ["rtx", "gtx"].iter().find_map(|family| word.strip_prefix(family)).unwrap_or(word)
            }
        }
    }
    (name, size)
}

/// What a process takes of a card before it allocates anything: the driver's context and the libraries' kernels.
/// An assumption, for where nobody says better: it depends on the card and on the libraries that a job loads.
pub const CONTEXT_BYTES: u64 = 512 << 20;

/// Capacities are tried in steps of this: the granularity of device memory.
const STEP: u64 = 2 << 20;

/// What an allocator needs of a device for a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Need {
    /// The smallest capacity, in bytes, on which the whole trace runs; to one part in a thousand, or 2 MiB where that
    /// is more.
    pub bytes: u64,
    /// The same where the device puts segments at other addresses, by which some allocators choose blocks: in the other order.
    pub elsewhere: u64,
    /// What the allocator holds at most where nothing limits it, in bytes.
    pub unlimited: u64,
    /// Allocations on that smallest capacity that found no memory at first: the allocator gave cache back to the device,
    /// and tried again.
    pub retries: u64,
    /// The step whose request finds no memory on a device that has less: it decides what is needed.
    pub decided_at: usize,
}

impl Need {
    /// Looks for it on smaller and smaller devices. `unlimited` is the outcome without a limit. `None` where that
    /// ended early.
    ///
    /// # Errors
    /// [`ReplayError`].
    pub fn of(
        program: &Program,
        choose: &Choose<'_>,
        unlimited: &Outcome,
    ) -> Result<Option<Self>, ReplayError> {
        if unlimited.oom.is_some() {
            return Ok(None);
        }
        let has_segments = unlimited.device_calls.alloc > 1;
        let unlimited = unlimited.peak_reserved;
        let (peak, at_peak) = program.peak_requested();
        // Nothing fits in less than what is requested; what was reserved without a limit is enough.
        let mut search = Search {
            too_small: peak.saturating_sub(1) / STEP * STEP,
            enough: unlimited.next_multiple_of(STEP),
            resolution: resolution(peak),
        };
        let mut next = Next::At(search.enough);
        if search.is_open() {
            let range = (search.too_small + STEP, search.enough);
            next = Next::At(about_needed(program, choose, range, STEP)?.next_multiple_of(STEP));
        }
        let mut retries = None;
        let decided_at =
            search.run((program, choose), next, SegmentOrder::Rising, |ran| retries = Some(ran.retries))?;
        let bytes = search.enough;
        let retries = match retries {
            Some(retries) => retries,
            None => run_with(program, choose, (bytes, SegmentOrder::Rising))?.map_or(0, |ran| ran.retries),
        };
        let decided_at = match decided_at {
            Some(step) => step,
            // What has less than is requested was not tried.
            None if search.too_small > 0 => {
                run_with(program, choose, (search.too_small, SegmentOrder::Rising))?.err().unwrap_or(at_peak)
            }
            None => at_peak,
        };
        let elsewhere = if has_segments { elsewhere((program, choose), peak, bytes)? } else { bytes };
        Ok(Some(Self { bytes, elsewhere, unlimited, retries, decided_at }))
    }

    /// The least and the most, where the addresses that the driver gives move what is needed by more than that is worth telling.
    pub fn range(&self) -> Option<(u64, u64)> {
        let (least, most) = (self.bytes.min(self.elsewhere), self.most());
        (most - least > WORTH_TELLING).then_some((least, most))
    }

    /// What is enough with the addresses that were tried.
    pub fn most(&self) -> u64 {
        self.bytes.max(self.elsewhere)
    }

    /// In words: `8.00 GiB`, or `28.82 GiB to 29.31 GiB`.
    pub fn said(&self) -> String {
        match self.range() {
            Some((least, most)) => format!("{} to {}", HumanBytes(least), HumanBytes(most)),
            None => HumanBytes(self.bytes).to_string(),
        }
    }
}

/// Bytes from which on a range is told.
const WORTH_TELLING: u64 = 10 << 20;

/// How often what is enough is doubled, where it was not.
const MOST_DOUBLED: u32 = 4;

/// What is needed where the device puts segments in the other order, starting from what is needed in the first.
fn elsewhere(what: (&Program, &Choose<'_>), peak: u64, bytes: u64) -> Result<u64, ReplayError> {
    let (program, choose) = what;
    let too_small = peak.saturating_sub(1) / STEP * STEP;
    let mut search = Search { too_small, enough: bytes, resolution: resolution(peak) };
    let next = match run_with(program, choose, (bytes, SegmentOrder::Falling))? {
        Ok(_) => Next::Below(1),
        Err(_) => {
            search.too_small = bytes;
            for _ in 0..MOST_DOUBLED {
                search.enough = (search.enough + search.enough / 8).next_multiple_of(STEP);
                if run_with(program, choose, (search.enough, SegmentOrder::Falling))?.is_ok() {
                    break;
                }
                search.too_small = search.enough;
            }
            Next::Above(1)
        }
    };
    search.run(what, next, SegmentOrder::Falling, |_| {})?;
    Ok(search.enough)
}

/// What is known of the smallest capacity. All in bytes.
#[derive(Debug, Clone, Copy)]
struct Search {
    too_small: u64,
    enough: u64,
    resolution: u64,
}

/// Where to look next: at a guess, then further and further from it, and in the middle once it lies between two that were
/// tried. A good guess takes two replays: one with it, and one with a little less.
#[derive(Debug, Clone, Copy)]
enum Next {
    /// At so many bytes.
    At(u64),
    /// So many resolutions below what is enough.
    Below(u64),
    /// So many resolutions above what is too small.
    Above(u64),
    Middle,
}

impl Search {
    /// Looks for the smallest capacity, from `next` on. `each` gets every one that is enough, and what came of it. Returns the step that
    /// was refused last.
    fn run(
        &mut self,
        (program, choose): (&Program, &Choose<'_>),
        mut next: Next,
        order: SegmentOrder,
        mut each: impl FnMut(Ran),
    ) -> Result<Option<usize>, ReplayError> {
        let mut refused = None;
        while self.is_open() {
            let capacity = self.capacity(next);
            next = match run_with(program, choose, (capacity, order))? {
                Ok(ran) => {
                    self.enough = capacity;
                    each(ran);
                    next.after_success(capacity, ran.held)
                }
                Err(step) => {
                    (self.too_small, refused) = (capacity, Some(step));
                    next.after_refusal()
                }
            };
        }
        Ok(refused)
    }

    /// Whether the answer is less exact than is asked.
    fn is_open(&self) -> bool {
        self.enough.saturating_sub(self.too_small) > self.resolution
    }

    /// The capacity to try: more than what is too small, and less than what is enough.
    fn capacity(&self, next: Next) -> u64 {
        let Self { too_small, enough, resolution } = *self;
        let middle = too_small + (enough - too_small) / 2;
        let capacity = match next {
            Next::At(bytes) if bytes < enough => bytes.max(too_small + resolution),
            Next::At(_) => enough - resolution,
            Next::Below(times) => enough.saturating_sub(times.saturating_mul(resolution)).max(middle),
            Next::Above(times) => too_small.saturating_add(times.saturating_mul(resolution)).min(middle),
            Next::Middle => middle,
        };
        capacity.next_multiple_of(STEP).clamp(too_small + STEP, enough - STEP)
    }
}

impl Next {
    /// After a run on `capacity` bytes, of which `held` were used at most: mostly these are enough.
    fn after_success(self, capacity: u64, held: u64) -> Self {
        let held = held.next_multiple_of(STEP);
        match self {
            _ if held < capacity => Self::At(held),
            Self::At(_) => Self::Below(1),
            Self::Below(times) => Self::Below(2 * times),
            Self::Above(_) | Self::Middle => Self::Middle,
        }
    }

    fn after_refusal(self) -> Self {
        match self {
            Self::At(_) => Self::Above(1),
            Self::Above(times) => Self::Above(2 * times),
            Self::Below(_) | Self::Middle => Self::Middle,
        }
    }
}

/// How exactly a [`Need`] is known, in bytes, for a trace that requests `peak` at most.
pub fn resolution(peak: u64) -> u64 {
    (peak / 1000).next_multiple_of(STEP).max(STEP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_go_by_name_or_size() {
        let gib = |text: &str| text.parse::<Card>().map(|card| card.bytes.div_ceil(1 << 30));
        assert_eq!((gib("4090"), gib("a100-40"), gib("20GiB")), (Ok(24), Ok(39), Ok(20)));
        assert!(gib("voodoo2").unwrap_err().contains("give its size, such as 24GiB"));
        assert!(gib("0GiB").is_err() && gib("").is_err() && gib("RTX").is_err());
    }

    #[test]
    fn cards_are_found_as_people_write_them() {
        let of = |text: &str| text.parse::<Card>().unwrap_or_else(|error| panic!("{error}")).bytes;
        for (text, known) in [
            ("rtx4090", "4090"),
            ("RTX 4090", "4090"),
            ("RTX-4090", "4090"),
            ("NVIDIA GeForce RTX 4070 Ti SUPER", "4070 Ti Super"),
            ("4070ti", "4070 Ti"),
            ("A100-80", "A100"),
            ("NVIDIA A100-SXM4-80GB", "A100"),
            ("NVIDIA H100 80GB HBM3", "H100"),
            ("H100 NVL", "H100 NVL"),
            ("Tesla T4", "T4"),
            ("l40s", "L40S"),
        ] {
            assert_eq!(of(text), of(known), "{text}");
        }
        for (text, sold) in [
            ("4060 Ti 16GB", 16),
            ("A100-40", 40),
            ("A100 40GB", 40),
            ("A100-PCIE-40GB", 40),
            ("Tesla V100-SXM2-16GB", 16),
            ("V100-32", 32),
        ] {
            assert_eq!(of(text), usable(sold), "{text}");
        }
        let sizes = [("12", 12.0), ("24GB", 24.0), ("24 GiB", 24.0), ("16g", 16.0), ("23.5GiB", 23.5)];
        for (text, gib) in sizes {
            assert_eq!(of(text), (gib * (1u64 << 30) as f64) as u64, "{text}");
        }
        assert_eq!(of("24564MiB"), 24564 << 20);
        for unknown in ["rtx99", "RTX 12", "1080", "4091", "A100x", "2 x 4090", "24MiB", "nan", "inf"] {
            assert!(unknown.parse::<Card>().is_err(), "{unknown}");
        }
        let asked = ["V100", "Tesla V100-SXM2", "V100-24"].map(|text| text.parse::<Card>().unwrap_err());
        assert!(asked.iter().all(|asked| asked.ends_with("which? Say V100-16 or V100-32")), "{asked:?}");
    }

    #[test]
    fn a_card_has_what_pytorch_finds_and_not_what_it_is_sold_with() {
        let gib = |text: &str| {
            let bytes = text.parse::<Card>().unwrap().bytes;
            format!("{:.2}", bytes as f64 / (1u64 << 30) as f64)
        };
        let found = ["L4", "RTX 4090", "T4", "L40", "A10", "A30", "RTX 5090", "A100-80", "H100"].map(gib);
        assert_eq!(found, ["22.03", "23.64", "14.56", "44.40", "21.99", "23.53", "31.37", "79.25", "79.10"]);
        for (name, sold, mib) in NAMED {
            let bytes = name.parse::<Card>().unwrap().bytes;
            assert!(bytes < sold << 30 && (mib == 0 || bytes == mib << 20), "{name}");
        }
        assert!(
            Card::all()
                .iter()
                .all(|card| card.is_a_size() && card.bytes < card.name.parse::<u64>().unwrap() << 30)
        );
    }

    #[test]
    fn what_the_context_takes_is_not_the_job_s() {
        let card: Card = "24GiB".parse().unwrap();
        assert!(card.fits(23 << 30, 1 << 30));
        assert!(!card.fits((23 << 30) + 1, 1 << 30));
    }
}
