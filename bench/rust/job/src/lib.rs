//! What all jobs share: their passes, what they hold meanwhile, and one line of JSON for each pass.
//!
//! *Held* is what the GPU's default pool has reserved, which the driver tells of its own pool, and Millpond of its. *Device* is what
//! NVML says of the GPU as a whole against the start, looked at each two milliseconds: whoever allocates cannot hide from it.

use std::error::Error;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cudarc::driver::{result, sys};

/// What `main` of a job returns.
pub type Outcome = Result<(), Box<dyn Error>>;

/// How long a pass waits before it is seen what an idle job holds.
const IDLE: Duration = Duration::from_secs(3);

#[repr(C)]
#[derive(Default)]
struct NvmlMemory {
    total: u64,
    free: u64,
    used: u64,
}

/// NVIDIA's management library, where it is there.
struct Nvml {
    memory_info: unsafe extern "C" fn(usize, *mut NvmlMemory) -> c_int,
    device: usize,
    _library: libloading::Library,
}

impl Nvml {
    fn open() -> Option<Self> {
        // SAFETY: the names and types are NVML's, and the library stays open with what was found in it.
        unsafe {
            let library = libloading::Library::new("libnvidia-ml.so.1").ok()?;
            let init = library.get::<unsafe extern "C" fn() -> c_int>(b"nvmlInit_v2\0").ok()?;
            let by_index = library
                .get::<unsafe extern "C" fn(u32, *mut usize) -> c_int>(b"nvmlDeviceGetHandleByIndex_v2\0")
                .ok()?;
            let memory_info = *library.get(b"nvmlDeviceGetMemoryInfo\0").ok()?;
            let mut device = 0;
            if init() != 0 || by_index(0, &mut device) != 0 {
                return None;
            }
            Some(Self { memory_info, device, _library: library })
        }
    }

    fn used(&self) -> u64 {
        let mut memory = NvmlMemory::default();
        // SAFETY: `memory` is writable.
        unsafe { (self.memory_info)(self.device, &mut memory) };
        memory.used
    }
}

/// Looks at the device while a pass runs.
struct Watch {
    most: Arc<AtomicU64>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    fn start() -> Self {
        let (most, ends) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (seen, is_over) = (most.clone(), ends.clone());
        let thread = std::thread::spawn(move || {
            let Some(nvml) = Nvml::open() else { return };
            while !is_over.load(Relaxed) {
                seen.fetch_max(nvml.used(), Relaxed);
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        Self { most, ends, thread: Some(thread) }
    }

    fn end(mut self) -> u64 {
        self.ends.store(true, Relaxed);
        self.thread.take().into_iter().for_each(|thread| _ = thread.join());
        self.most.load(Relaxed)
    }
}

/// A job with its passes. Made once the GPU has its context.
pub struct Job {
    name: &'static str,
    pool: sys::CUmemoryPool,
    nvml: Option<Nvml>,
    used_before: u64,
    passes: usize,
}

impl Job {
    /// With `JOB_THRESHOLD=max`, the default pool keeps what is free, as a program would have it by hand. `JOB_PASSES` is 3 by default.
    pub fn new(name: &'static str) -> Result<Self, Box<dyn Error>> {
        result::init()?;
        let device = result::device::get(0)?;
        // SAFETY: the driver's name of a GPU.
        let pool = unsafe { result::device::get_default_mem_pool(device) }?;
        if std::env::var("JOB_THRESHOLD").is_ok_and(|value| value == "max") {
            set(pool, sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, u64::MAX)?;
        }
        let passes = std::env::var("JOB_PASSES").ok().map_or(Ok(3), |value| value.parse())?;
        let nvml = Nvml::open();
        let used_before = nvml.as_ref().map_or(0, Nvml::used);
        Ok(Self { name, pool, nvml, used_before, passes })
    }

    /// Runs all passes, and says what each did. A pass answers with a checksum, having waited for all of its work.
    pub fn run(&self, mut pass: impl FnMut() -> Result<u64, Box<dyn Error>>) -> Outcome {
        use sys::CUmemPool_attribute as A;
        for number in 1..=self.passes {
            set(self.pool, A::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, 0)?;
            set(self.pool, A::CU_MEMPOOL_ATTR_USED_MEM_HIGH, 0)?;
            let watch = Watch::start();
            let start = Instant::now();
            let checksum = pass()?;
            let seconds = start.elapsed().as_secs_f64();
            let device = self.against_start(watch.end());
            let [held, used] = [A::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, A::CU_MEMPOOL_ATTR_USED_MEM_HIGH]
                .map(|which| get(self.pool, which));
            std::thread::sleep(IDLE);
            let idle = get(self.pool, A::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
            let idle_device = self.against_start(self.nvml.as_ref().map_or(0, Nvml::used));
            let mib = |bytes: u64| bytes as f64 / (1 << 20) as f64;
            println!(
                "{{\"job\":\"{}\",\"pass\":{number},\"seconds\":{seconds:.4},\"held\":{:.1},\"used\":{:.1},\"device\":{:.1},\
                 \"idle\":{:.1},\"idle_device\":{:.1},\"checksum\":\"{checksum:016x}\"}}",
                self.name,
                mib(held),
                mib(used),
                mib(device),
                mib(idle),
                mib(idle_device),
            );
        }
        Ok(())
    }

    fn against_start(&self, used: u64) -> u64 {
        used.saturating_sub(self.used_before)
    }
}

fn set(pool: sys::CUmemoryPool, which: sys::CUmemPool_attribute, mut value: u64) -> Outcome {
    // SAFETY: the pool is the GPU's, and these attributes are numbers of 64 bits.
    unsafe { sys::cuMemPoolSetAttribute(pool, which, (&raw mut value).cast()) }.result()?;
    Ok(())
}

fn get(pool: sys::CUmemoryPool, which: sys::CUmemPool_attribute) -> u64 {
    let mut value = 0_u64;
    // SAFETY: as above.
    _ = unsafe { sys::cuMemPoolGetAttribute(pool, which, (&raw mut value).cast()) };
    value
}

/// Numbers that look random and are the same in every run (SplitMix64).
pub struct Numbers(u64);

impl Numbers {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// One of `from..=to`.
    pub fn within(&mut self, from: usize, to: usize) -> usize {
        from + (self.next() % (to - from + 1) as u64) as usize
    }

    /// At least 0, and less than 1.
    pub fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1_u32 << 24) as f32
    }
}

/// Adds the bits of floats to a checksum (FNV-1a).
pub fn add(checksum: u64, values: &[f32]) -> u64 {
    values
        .iter()
        .flat_map(|value| value.to_bits().to_le_bytes())
        .fold(checksum ^ 0xcbf2_9ce4_8422_2325, |sum, byte| {
            (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        })
}
