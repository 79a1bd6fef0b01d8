//! The options, as a struct and as PyTorch's `PYTORCH_CUDA_ALLOC_CONF` writes them.

use std::str::FromStr;

use millpond::{Error, Result};

/// Requests of the large pool below this many bytes share a segment; those from here on get their own.
pub(super) const OWN_SEGMENT: u64 = 10 << 20;

const MIB: u64 = 1 << 20;
/// The variable, as errors name it.
const VARIABLE: &str = "PYTORCH_CUDA_ALLOC_CONF";

/// Options of PyTorch that say nothing about which memory is used for what.
const WITHOUT_EFFECT: [&str; 9] = [
    "backend",
    "release_lock_on_cudamalloc",
    "pinned_use_cuda_host_register",
    "pinned_num_register_threads",
    "pinned_use_background_threads",
    "pinned_reserve_segment_size_mb",
    "pinned_free_catch_all",
    "graph_capture_record_stream_reuse",
    "throw_on_cudamalloc_oom",
];

/// PyTorch's allocator options, with PyTorch's defaults. Sizes in bytes.
///
/// Read from the text of `PYTORCH_CUDA_ALLOC_CONF`:
///
/// ```
/// use millpond_baselines::CachingOptions;
/// let options: CachingOptions = "max_split_size_mb:128,expandable_segments:True".parse()?;
/// assert_eq!(options.max_split_size, 128 << 20);
/// assert!(options.expandable_segments);
/// # Ok::<(), millpond::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct CachingOptions {
    /// Blocks from this many bytes on are never split, and serve requests nearly as large only.
    pub max_split_size: u64,
    /// How many bytes larger than the request a block that is never split may be.
    pub max_non_split_rounding: u64,
    /// Bytes of the segments that requests from 1 to 10 MiB share, and of the pages of large expandable
    /// segments.
    pub large_segment_size: u64,
    /// How finely requests are rounded between two powers of two.
    pub roundup_power2_divisions: Divisions,
    /// Above this share of the memory allowed, unused segments are given back before new ones are
    /// allocated; 0 for never. As in PyTorch, it has an effect only together with
    /// [`per_process_memory_fraction`](Self::per_process_memory_fraction).
    pub garbage_collection_threshold: f64,
    /// The share of the device's memory that is allowed; 1 for no limit.
    pub per_process_memory_fraction: f64,
    /// Whether segments grow by mapping pages, one segment a stream and pool.
    pub expandable_segments: bool,
}

impl Default for CachingOptions {
    fn default() -> Self {
        Self {
            max_split_size: u64::MAX,
            max_non_split_rounding: 20 * MIB,
            large_segment_size: 20 * MIB,
            roundup_power2_divisions: Divisions::default(),
            garbage_collection_threshold: 0.0,
            per_process_memory_fraction: 1.0,
            expandable_segments: false,
        }
    }
}

impl CachingOptions {
    /// PyTorch's defaults, but with expandable segments.
    pub fn expandable() -> Self {
        Self { expandable_segments: true, ..Self::default() }
    }

    /// Bytes that may be held of a device with `total` bytes, where there is a limit.
    pub(super) fn allowed(&self, total: u64) -> Option<u64> {
        let fraction = self.per_process_memory_fraction;
        (fraction < 1.0).then_some((fraction * total as f64) as u64)
    }

    /// What PyTorch refuses, refused.
    fn check(self) -> Result<Self> {
        let segment = self.large_segment_size;
        if segment <= OWN_SEGMENT {
            return bad("large_segment_size_mb", format!("give more than {} MiB", OWN_SEGMENT / MIB));
        }
        let sizes = [
            ("max_split_size_mb", self.max_split_size),
            ("max_non_split_rounding_mb", self.max_non_split_rounding),
        ];
        match sizes.into_iter().find(|(_, bytes)| *bytes < segment) {
            Some((option, _)) => bad(option, format!("give at least {}, a large segment", segment / MIB)),
            None => Ok(self),
        }
    }

    fn set(&mut self, key: &str, value: &str) -> Result<()> {
        match key {
            "max_split_size_mb" => self.max_split_size = mebibytes("max_split_size_mb", value)?,
            "max_non_split_rounding_mb" => {
                self.max_non_split_rounding = mebibytes("max_non_split_rounding_mb", value)?;
            }
            "large_segment_size_mb" => self.large_segment_size = mebibytes("large_segment_size_mb", value)?,
            "roundup_power2_divisions" => self.roundup_power2_divisions = value.parse()?,
            "garbage_collection_threshold" => {
                self.garbage_collection_threshold = share("garbage_collection_threshold", value)?;
            }
            "per_process_memory_fraction" => {
                self.per_process_memory_fraction = share("per_process_memory_fraction", value)?;
            }
            "expandable_segments" => self.expandable_segments = truth("expandable_segments", value)?,
            "backend" if value == "cudaMallocAsync" => {
                return bad("backend", "cudaMallocAsync is the allocator called stream-ordered".to_owned());
            }
            _ if WITHOUT_EFFECT.contains(&key) => {}
            _ => return bad(VARIABLE, format!("'{key}' is no option of PyTorch's CUDA allocator")),
        }
        Ok(())
    }
}

impl FromStr for CachingOptions {
    type Err = Error;

    /// Reads `key:value,key:value,…`; spaces do not count.
    ///
    /// # Errors
    /// [`Error::BadOption`] with the option's name, what is wrong with it and what would be right.
    fn from_str(text: &str) -> Result<Self> {
        let mut options = Self::default();
        let text: String = text.chars().filter(|c| !c.is_whitespace()).collect();
        for entry in outside_brackets(&text).filter(|entry| !entry.is_empty()) {
            let Some((key, value)) = entry.split_once(':') else {
                return bad(VARIABLE, format!("'{entry}' has no value; write it as {entry}:VALUE"));
            };
            options.set(key, value)?;
        }
        options.check()
    }
}

/// Into how many steps the space between two powers of two is divided, for each size class from 1 MiB to 64 GiB. There
/// is one number for sizes below 2 MiB, one for 2 to 4 MiB, and so on. 0 and 1 divide nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Divisions([u64; 16]);

impl Divisions {
    /// The same number of steps for all sizes: a power of two.
    ///
    /// # Errors
    /// [`Error::BadOption`] for any other number.
    pub fn everywhere(steps: u64) -> Result<Self> {
        if !steps.is_power_of_two() {
            return bad(DIVISIONS, format!("{steps} is no power of two"));
        }
        Ok(Self([steps; 16]))
    }

    /// The number of steps for sizes like `bytes`.
    pub fn for_bytes(&self, bytes: u64) -> u64 {
        let exponent = bytes.max(1).ilog2().saturating_sub(MIB.ilog2()) as usize;
        self.0[exponent.min(self.0.len() - 1)]
    }

    /// Reads `256:1,512:2,>:4`: a size in MiB, and the steps from there on up to the next. The first also
    /// counts for what is smaller.
    fn from_list(list: &str) -> Result<Self> {
        let mut divisions = Self::default();
        let mut last = None;
        for entry in list.split(',').filter(|entry| !entry.is_empty()) {
            let Some((from, steps)) = entry.split_once(':') else {
                return bad(DIVISIONS, format!("'{entry}' is not SIZE_IN_MIB:STEPS"));
            };
            let steps = number(DIVISIONS, steps)?;
            if steps != 0 && !steps.is_power_of_two() {
                return bad(DIVISIONS, format!("{steps} steps: give a power of two, or 0 for none"));
            }
            if from == ">" {
                divisions.0[last.unwrap_or(0)..].fill(steps);
                continue;
            }
            let from = number(DIVISIONS, from)?;
            if !from.is_power_of_two() {
                return bad(DIVISIONS, format!("{from} MiB: give powers of two"));
            }
            let at = (from.ilog2() as usize).min(divisions.0.len() - 1);
            let smallest = if last.is_none() { 0 } else { at };
            divisions.0[smallest..=at].fill(steps);
            last = Some(at);
        }
        Ok(divisions)
    }
}

const DIVISIONS: &str = "roundup_power2_divisions";

impl FromStr for Divisions {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.strip_prefix('[').map(|rest| rest.strip_suffix(']')) {
            Some(Some(list)) => Self::from_list(list),
            Some(None) => bad(DIVISIONS, format!("'{text}' has no closing bracket")),
            None => Self::everywhere(number(DIVISIONS, text)?),
        }
    }
}

/// The parts of `text` between commas that are in no brackets.
fn outside_brackets(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0;
    text.split(move |c| {
        match c {
            '[' => depth += 1,
            ']' => depth -= 1,
            _ => {}
        }
        c == ',' && depth == 0
    })
}

fn bad<T>(option: &'static str, why: String) -> Result<T> {
    Err(Error::BadOption { option, why })
}

fn number(option: &'static str, value: &str) -> Result<u64> {
    value.parse().or_else(|_| bad(option, format!("'{value}' is no whole number")))
}

fn mebibytes(option: &'static str, value: &str) -> Result<u64> {
    Ok(number(option, value)?.saturating_mul(MIB))
}

fn share(option: &'static str, value: &str) -> Result<f64> {
    match value.parse() {
        Ok(share) if share > 0.0 && share <= 1.0 => Ok(share),
        _ => bad(option, format!("'{value}': give a share between 0 and 1")),
    }
}

fn truth(option: &'static str, value: &str) -> Result<bool> {
    match value {
        "True" => Ok(true),
        "False" => Ok(false),
        _ => bad(option, format!("'{value}': give True or False")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_as_pytorch_writes_them() {
        let text = "max_split_size_mb:40, max_non_split_rounding_mb:30,garbage_collection_threshold:0.5,\
                    roundup_power2_divisions:[64:8,128:2,256:4,512:2,1024:4,>:1],expandable_segments:True,\
                    per_process_memory_fraction:0.9,backend:native,pinned_use_background_threads:True";
        let options: CachingOptions = text.parse().unwrap();
        assert_eq!((options.max_split_size, options.max_non_split_rounding), (40 * MIB, 30 * MIB));
        assert_eq!(options.garbage_collection_threshold, 0.5);
        assert_eq!(options.allowed(1000), Some(900));
        assert!(options.expandable_segments);
        let steps = [1, 32, 64, 128, 256, 512, 1024, 2048, 1 << 20];
        let steps = steps.map(|mebibytes| options.roundup_power2_divisions.for_bytes(mebibytes * MIB));
        assert_eq!(steps, [8, 8, 8, 2, 4, 2, 1, 1, 1]);
        assert_eq!("".parse::<CachingOptions>().unwrap(), CachingOptions::default());
    }

    #[test]
    fn what_is_wrong_with_an_option_is_said() {
        for (text, said) in [
            ("max_split_size_mb:8", "max_split_size_mb: give at least 20"),
            ("large_segment_size_mb:10", "large_segment_size_mb: give more than 10"),
            ("max_split_size_mb:x", "max_split_size_mb: 'x' is no whole number"),
            ("expandable_segments", "PYTORCH_CUDA_ALLOC_CONF: 'expandable_segments' has no value"),
            ("expandable_segments:yes", "expandable_segments: 'yes': give True or False"),
            ("garbage_collection_threshold:2", "garbage_collection_threshold: '2': give a share"),
            ("roundup_power2_divisions:3", "roundup_power2_divisions: 3 is no power of two"),
            ("roundup_power2_divisions:[3:1]", "roundup_power2_divisions: 3 MiB: give powers of two"),
            ("roundup_power2_divisions:[4:1", "has no closing bracket"),
            ("expandable:True", "'expandable' is no option"),
            ("backend:cudaMallocAsync", "stream-ordered"),
        ] {
            let error = text.parse::<CachingOptions>().unwrap_err().to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
