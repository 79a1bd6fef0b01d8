//! What a guard watches.

use std::str::FromStr;

use super::canaries::Fill;
use crate::error::Error;
use crate::log::warn_in_any_case;

/// The variable that guards all pools of a process.
const VARIABLE: &str = "MILLPOND_GUARD";

/// What a pool watches, and what it does with what it finds. For [`PoolBuilder::guard`](crate::PoolBuilder::guard).
///
/// ```
/// use millpond::guard::{Guard, Mistake};
/// use millpond::{Context, Pool};
///
/// let device = Context::host()?;
/// let pool = Pool::builder(&device).guard(Guard::all().only_count(true)).build()?;
/// let stream = device.create_stream()?;
/// let block = pool.alloc(1000, &stream)?;
/// // A kernel that writes one byte too many:
/// // SAFETY: the byte is the pool's; that is the mistake.
/// unsafe { pool.device().memset(block.offset(1000), 0, 1, stream.handle()) }?;
/// // SAFETY: nobody else has the block.
/// unsafe { pool.free(block, &stream) }?;
/// stream.synchronize()?;
/// let found = &pool.guard_findings()[0];
/// assert_eq!((found.mistake, found.offset, found.bytes), (Mistake::Behind, 1000, 1000));
/// println!("{found}"); // with the call stacks of the allocation and of the free
/// # Ok::<(), millpond::Error>(())
/// ```
///
/// As a text (`MILLPOND_GUARD`, [`FromStr`]) it is `all`, or some of `redzones`, `poison`, `nan`, `quarantine`, `delay`,
/// `delay=SEED`, `pages` and `count`, with commas between them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[must_use = "options do nothing until a pool is given them"]
pub struct Guard {
    pub(super) has_redzones: bool,
    pub(super) poisons: bool,
    with_nan: bool,
    /// Bytes of freed blocks that stay quarantined.
    pub(super) quarantine: u64,
    pub(super) seed: Option<u64>,
    pub(crate) fences: bool,
    pub(super) only_counts: bool,
}

impl Guard {
    /// Watches nothing yet.
    pub fn none() -> Self {
        Self::default()
    }

    /// Redzones, poison, a quarantine of 256 MiB, and delay by seed 0. Not [pages](Self::pages), which take the most time and
    /// memory.
    pub fn all() -> Self {
        Self::none().redzones(true).poison(true).quarantine(256 << 20).delay(Some(0))
    }

    /// Whether 512 bytes before each block and at least as many behind it are watched, from the first byte that was not asked
    /// for. They are compared when the block is freed, in the order of the stream that frees it.
    pub fn redzones(self, has: bool) -> Self {
        Self { has_redzones: has, ..self }
    }

    /// Whether fresh blocks and freed ones are filled with bytes that show. What is written to a freed block is then found
    /// when its memory is used again.
    pub fn poison(self, poisons: bool) -> Self {
        Self { poisons, ..self }
    }

    /// Whether poison is made of bytes that are not a number in any floating-point type. So a program that reads it gets NaN.
    /// Implies [`poison`](Self::poison).
    pub fn nan(self, nan: bool) -> Self {
        Self { with_nan: nan, poisons: self.poisons || nan, ..self }
    }

    /// How many bytes of freed blocks stay out of use, the last that were freed. Where memory is short, they go.
    pub fn quarantine(self, bytes: u64) -> Self {
        Self { quarantine: bytes, ..self }
    }

    /// Whether each block stays out of use until some more were freed, up to 16, by this seed. So a program sees other
    /// addresses and other neighbours from seed to seed.
    pub fn delay(self, seed: Option<u64>) -> Self {
        Self { seed, ..self }
    }

    /// Whether each block of 1 MiB or more has pages of its own, and ends where nothing is mapped. Work beyond its end then fails
    /// at once, but for less than the pool's minimum alignment; so does work after its free. On a GPU that is an illegal address,
    /// which tools such as compute-sanitizer and cuda-gdb show. Only for [device memory](crate::device::MemoryKind::Device) in
    /// pages; not for blocks that a limit has no room for.
    pub fn pages(self, fences: bool) -> Self {
        Self { fences, ..self }
    }

    /// Whether findings are only kept, for [`Pool::guard_findings`](crate::Pool::guard_findings). Else the first is written to
    /// the standard error, and the process is aborted.
    pub fn only_count(self, only: bool) -> Self {
        Self { only_counts: only, ..self }
    }

    /// What the environment asks for.
    pub(crate) fn from_environment() -> Option<Self> {
        let guard = crate::record::environment(VARIABLE)?.to_string_lossy().parse();
        guard.inspect_err(|error| warn_in_any_case(&format!("{VARIABLE} is ignored: {error}"))).ok()
    }

    /// What this poison is.
    pub(super) fn poison_of(&self, fill: Fill) -> Fill {
        if self.with_nan { Fill::Nan } else { fill }
    }
}

impl FromStr for Guard {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let mut guard = Self::none();
        for word in text.split(',').map(str::trim) {
            guard = match (word, word.strip_prefix("delay=").map(str::parse)) {
                ("all", _) => {
                    let Self { with_nan, fences, only_counts, .. } = guard;
                    Self { with_nan, fences, only_counts, ..Self::all() }
                }
                ("redzones", _) => guard.redzones(true),
                ("poison", _) => guard.poison(true),
                ("nan", _) => guard.nan(true),
                ("quarantine", _) => Self { quarantine: Self::all().quarantine, ..guard },
                ("delay", _) => guard.delay(Some(0)),
                ("pages", _) => guard.pages(true),
                ("count", _) => guard.only_count(true),
                (_, Some(Ok(seed))) => guard.delay(Some(seed)),
                _ => {
                    let why = format!(
                        "'{word}' is no guard: use all, or some of redzones, poison, nan, quarantine, delay, delay=SEED, pages and count"
                    );
                    return Err(Error::BadOption { option: "guard", why });
                }
            };
        }
        Ok(guard)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_say_what_is_watched() {
        let read = |text: &str| text.parse::<Guard>().unwrap();
        assert_eq!(read("all"), Guard::all());
        assert_eq!(read("count, all,delay=7"), Guard::all().only_count(true).delay(Some(7)));
        assert_eq!(read("nan"), Guard::none().nan(true));
        assert!(read("nan").poisons && read("redzones").has_redzones && !read("redzones").poisons);
        for bad in ["", "page", "all,", "delay=x", "delay=-1"] {
            let error = bad.parse::<Guard>().unwrap_err().to_string();
            assert!(error.contains("use all, or some of redzones"), "{error}");
        }
    }
}
