//! What a device says of itself: the data sheet, as far as the driver and the system have it.

use std::fs;
use std::path::Path;

use cudarc::driver::sys::CUdevice_attribute as A;
use millpond::HumanBytes;
use millpond::device::cuda::CudaDevice;
use serde::Serialize;

use crate::{Result, Section};

/// A property, with how it is known.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Fact {
    /// What it is.
    pub name: String,
    /// The figure.
    pub value: f64,
    /// What the figure counts.
    pub unit: &'static str,
    /// What it was made of, in words.
    pub from: String,
}

/// What a device says of itself.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[serde(transparent)]
pub struct Facts {
    /// In the order in which they are told.
    pub all: Vec<Fact>,
    /// What the memory can do at most, in GB/s.
    #[serde(skip)]
    memory: Option<f64>,
    /// What the link to the host can do at most in one direction, in GB/s.
    #[serde(skip)]
    link: Option<f64>,
    /// Names and bytes of the caches, the smallest first.
    #[serde(skip)]
    caches: Vec<(String, u64)>,
    /// What is behind the caches.
    #[serde(skip)]
    memory_name: &'static str,
}

impl Facts {
    /// The caches of the first core.
    pub(crate) fn of_cpu() -> Self {
        let caches = cpu_caches(Path::new("/sys/devices/system/cpu/cpu0/cache"));
        let mut facts = Self { memory_name: "DRAM", ..Self::default() };
        for (name, bytes) in &caches {
            facts.add(&format!("{name} cache"), *bytes as f64, "bytes", "the system");
        }
        facts.caches = caches;
        facts
    }

    /// What the driver says of a GPU; `attribute` asks it, and has no answer where the driver is too old.
    pub(crate) fn of_gpu(ordinal: usize, attribute: impl Fn(A) -> Option<i32>) -> Result<Self> {
        let about = CudaDevice::new(ordinal)?.facts()?;
        let mut facts = Self { memory_name: "device memory", ..Self::default() };
        let (major, minor) = about.compute_capability;
        let positive = |what| attribute(what).filter(|value| *value > 0).map(f64::from);
        let kilohertz = positive(A::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE);
        let width = positive(A::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH);
        if let Some((kilohertz, bits)) = kilohertz.zip(width) {
            // Two transfers in each clock.
            let peak = 2.0 * kilohertz * 1e3 * bits / 8.0 / 1e9;
            let from = format!("{:.0} MHz, two transfers a clock, {bits} bits", kilohertz / 1e3);
            facts.add("memory at most", peak, "GB/s", &from);
            facts.memory = Some(peak);
        }
        if let Some((peak, from)) = link(&about.pci_bus_id) {
            facts.add("link to the host at most, each way", peak, "GB/s", &from);
            facts.link = Some(peak);
        }
        let clock = positive(A::CU_DEVICE_ATTRIBUTE_CLOCK_RATE).unwrap_or_default() / 1e3;
        let from = format!("compute capability {major}.{minor}, at most {clock:.0} MHz");
        facts.add("multiprocessors", f64::from(about.multiprocessors), "", &from);
        let shared = positive(A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
        if let Some(bytes) = shared {
            facts.add("shared memory of a multiprocessor", bytes, "bytes", "the driver");
            // The L1 cache and shared memory are one memory: the cache has at least this where no kernel takes it.
            facts.caches.push(("L1".to_owned(), bytes as u64));
        }
        if let Some(bytes) = positive(A::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE) {
            facts.add("L2 cache", bytes, "bytes", "the driver");
            facts.caches.push(("L2".to_owned(), bytes as u64));
        }
        Ok(facts)
    }

    fn add(&mut self, name: &str, value: f64, unit: &'static str, from: &str) {
        self.all.push(Fact { name: name.to_owned(), value, unit, from: from.to_owned() });
    }

    /// The most that a section's figures can be.
    pub(crate) fn peak_of(&self, section: Section) -> Option<f64> {
        match section {
            Section::Copies => self.link,
            Section::Device | Section::Reads => self.memory,
            _ => None,
        }
    }

    /// Where a working set of this size lies.
    pub(crate) fn cache_of(&self, bytes: u64) -> String {
        for (name, size) in &self.caches {
            // At its very size, a cache has not room for all: it holds other things, too.
            if bytes <= size * 3 / 4 {
                return name.clone();
            }
            if bytes <= size * 2 {
                return format!("{name} in part");
            }
        }
        self.memory_name.to_owned()
    }
}

impl Fact {
    /// The figure with its unit.
    pub fn shown(&self) -> String {
        match self.unit {
            "bytes" => HumanBytes(self.value as u64).to_string(),
            "" => format!("{:.0}", self.value),
            unit => format!("{:.1} {unit}", self.value),
        }
    }
}

/// Names and sizes of the data caches that the system lists in this folder.
fn cpu_caches(folder: &Path) -> Vec<(String, u64)> {
    let mut caches: Vec<_> = (0..8)
        .filter_map(|index| {
            let read = |file: &str| fs::read_to_string(folder.join(format!("index{index}/{file}"))).ok();
            let (level, size) = (read("level")?, read("size")?);
            let kibibytes: u64 = size.trim().strip_suffix('K')?.parse().ok()?;
            (read("type")?.trim() != "Instruction").then(|| (format!("L{}", level.trim()), kibibytes << 10))
        })
        .collect();
    caches.sort_by_key(|(_, bytes)| *bytes);
    caches
}

/// What a PCI Express link can do in one direction, in GB/s, and of what that was made.
fn link(pci_bus_id: &str) -> Option<(f64, String)> {
    let folder = Path::new("/sys/bus/pci/devices").join(pci_bus_id.to_lowercase());
    let read = |file: &str| fs::read_to_string(folder.join(file)).ok();
    // The speed of now is lower while the link sleeps.
    link_of(&read("max_link_speed")?, &read("current_link_width")?)
}

fn link_of(speed: &str, width: &str) -> Option<(f64, String)> {
    let transfers: f64 = speed.split_whitespace().next()?.parse().ok()?;
    let lanes: f64 = width.trim().parse().ok().filter(|lanes| *lanes > 0.0)?;
    // Of each 130 bits 128 are data from 8 GT/s on, and of each 10 bits 8 before.
    let data = if transfers >= 8.0 { 128.0 / 130.0 } else { 0.8 };
    Some((transfers * data * lanes / 8.0, format!("PCI Express, {transfers} GT/s, {lanes} lanes")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_computed_from_speed_and_width() {
        let (peak, from) = link_of("32.0 GT/s PCIe\n", "16\n").unwrap();
        assert!((peak - 63.0).abs() < 0.1, "{peak}");
        assert_eq!(from, "PCI Express, 32 GT/s, 16 lanes");
        assert!((link_of("5.0 GT/s", "8").unwrap().0 - 4.0).abs() < 1e-9);
        assert_eq!(link_of("Unknown", "16"), None);
        assert_eq!(link_of("16.0 GT/s PCIe", "0"), None);
    }

    #[test]
    fn a_working_set_is_named_by_the_smallest_cache_with_room() {
        let caches = vec![("L1".to_owned(), 32 << 10), ("L2".to_owned(), 1 << 20)];
        let facts = Facts { caches, memory_name: "DRAM", ..Facts::default() };
        let names = [4 << 10, 32 << 10, 512 << 10, 1 << 20, 4 << 20].map(|bytes| facts.cache_of(bytes));
        assert_eq!(names, ["L1", "L1 in part", "L2", "L2 in part", "DRAM"]);
        assert_eq!(Facts { memory_name: "DRAM", ..Facts::default() }.cache_of(4096), "DRAM");
    }
}
