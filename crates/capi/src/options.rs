//! The options of a pool.

use std::ffi::c_char;
use std::ptr;

use millpond::device::MemoryKind;
use millpond::{Context, Pool, PoolBuilder, ReusePolicies};

use crate::arguments::{SizedStruct, init_struct, text};
use crate::budget::BUDGETS;
use crate::context::ContextObject;
use crate::failure::{Failure, boundary};
use crate::in_use::Record;
use crate::kind::BudgetHandle;
use crate::status::Status;

/// Memory passes to a stream that is ordered after the free by events that millpond knows of.
pub const MILLPOND_REUSE_FOLLOW_EVENT_DEPENDENCIES: u32 = 1;
/// Memory passes where the device says that the work before the free is complete.
pub const MILLPOND_REUSE_OPPORTUNISTIC: u32 = 2;
/// Memory passes by making the allocating stream wait for the freeing one.
pub const MILLPOND_REUSE_INTERNAL_DEPENDENCIES: u32 = 4;
/// All three.
pub const MILLPOND_REUSE_ALL: u32 = 7;

/// The options of a pool; sizes in bytes. Fill with `millpond_pool_options_init`, then change what should differ.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct PoolOptions {
    /// sizeof this struct.
    pub size: usize,
    /// A name for errors and reports; null: "pool", or the kind of other memory.
    pub name: *const c_char,
    /// Physical bytes that the pool may hold; SIZE_MAX by default.
    pub hard_limit: usize,
    /// Physical bytes that the pool keeps when something is synchronised through millpond; SIZE_MAX by default.
    pub release_threshold: usize,
    /// Bytes of the device that the pool always leaves free for others; 0 by default.
    pub headroom: usize,
    /// What every address is a multiple of: a power of two from 256 bytes to 2 MiB; 512 by default.
    pub min_alignment: usize,
    /// The smallest physical page, a power of two; 0: the device's granularity.
    pub smallest_page: usize,
    /// The largest physical page, a power of two; 0: 32 MiB.
    pub largest_page: usize,
    /// How memory may pass from stream to stream: a sum of `MILLPOND_REUSE_…`; all by default.
    pub reuse: u32,
    /// Whether all GPUs that take memory in the process may use the pool's: 0 by default. 1: as after
    /// `cudaDeviceEnablePeerAccess`. For some GPUs: `millpond_pool_allow_access`.
    pub accessible_from_all: u32,
    /// A limit that the pool shares with others; null: none.
    pub budget: *mut BudgetHandle,
    /// How many bytes more than the most that was ever live the pool may hold to save time. It does so only while moving
    /// memory would take a third of the program's time. 0: none; SIZE_MAX, the default: 1/32 of the device's memory,
    /// and at most a quarter of what was ever live.
    pub growth_allowance: usize,
    /// What memory the pool is of: one of `millpond_memory`; the device's own by default.
    pub memory: i32,
    /// The NUMA node of pinned memory; -1, the default: one near the device.
    pub node: i32,
    /// What of the program's mistakes with memory the pool finds: "all", or words of docs/guard.md with commas between them;
    /// null, the default: what MILLPOND_GUARD says.
    pub guard: *const c_char,
}

/// A kind of memory.
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    /// The device's own.
    Device = 0,
    /// Page-locked memory of the host. The CPU uses it in place, and the device copies to and from it by itself.
    Pinned = 1,
    /// Memory that moves between the device and the host, to where it is used. The CPU uses it in place.
    Managed = 2,
}

impl Memory {
    const ALL: [Self; 3] = [Self::Device, Self::Pinned, Self::Managed];

    fn from_c(number: i32) -> Result<Self, Failure> {
        let unknown = || Failure::option("memory", format!("{number}; it must be one of millpond_memory"));
        Self::ALL.into_iter().find(|memory| *memory as i32 == number).ok_or_else(unknown)
    }

    /// The number of a kind; -1 for one that has none yet.
    pub(crate) fn number_of(kind: MemoryKind) -> i32 {
        match kind {
            MemoryKind::Device => Self::Device as i32,
            MemoryKind::Pinned => Self::Pinned as i32,
            MemoryKind::Managed => Self::Managed as i32,
            _ => -1,
        }
    }

    /// Starts building a pool of it.
    fn builder(self, context: &Context, node: i32) -> Result<PoolBuilder, Failure> {
        let node = u32::try_from(node).ok();
        Ok(match (self, node) {
            (Self::Pinned, None) => context.pinned()?,
            (Self::Pinned, Some(node)) => context.pinned_on_node(node)?,
            (Self::Device, None) => Pool::builder(context),
            (Self::Managed, None) => context.managed()?,
            (Self::Device | Self::Managed, Some(_)) => {
                return Err(Failure::option("node", "only pinned memory has one; set it to -1"));
            }
        })
    }
}

// SAFETY: `repr(C)`, integers and raw pointers only, the size first.
unsafe impl SizedStruct for PoolOptions {
    const NAME: &'static str = "millpond_pool_options";
}

const LARGEST_PAGE: u64 = 32 << 20;

pub(crate) const fn defaults(size: usize) -> PoolOptions {
    PoolOptions {
        size,
        name: ptr::null(),
        hard_limit: usize::MAX,
        release_threshold: usize::MAX,
        headroom: 0,
        min_alignment: 512,
        smallest_page: 0,
        largest_page: 0,
        reuse: MILLPOND_REUSE_ALL,
        accessible_from_all: 0,
        budget: ptr::null_mut(),
        growth_allowance: usize::MAX,
        memory: Memory::Device as i32,
        node: -1,
        guard: ptr::null(),
    }
}

/// Fills a pool's options with the defaults. `size` is sizeof the struct.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_options_init(options: *mut PoolOptions, size: usize) -> Status {
    // SAFETY: as the header asks of its caller.
    boundary(|_| unsafe { init_struct(options, size, &defaults(size)) })
}

/// A builder with the options.
///
/// # Safety
/// The texts end with a zero byte.
pub(crate) unsafe fn builder(
    me: &'static Record,
    context: &ContextObject,
    options: &PoolOptions,
) -> Result<PoolBuilder, Failure> {
    let mut builder = Memory::from_c(options.memory)?
        .builder(&context.context, options.node)?
        .hard_limit(options.hard_limit as u64)
        .release_threshold(options.release_threshold as u64)
        .headroom(options.headroom as u64)
        .min_alignment(options.min_alignment as u64)
        .reuse(policies(options.reuse.into())?);
    // SAFETY: as promised to this function.
    if let Some(name) = unsafe { text(options.name, "name") }? {
        builder = builder.name(name);
    }
    if options.smallest_page != 0 || options.largest_page != 0 {
        let or = |bytes: usize, otherwise: u64| if bytes == 0 { otherwise } else { bytes as u64 };
        let smallest = or(options.smallest_page, context.context.device().properties().granularity);
        builder = builder.page_sizes(smallest, or(options.largest_page, LARGEST_PAGE.max(smallest)));
    }
    if options.growth_allowance != usize::MAX {
        builder = builder.growth_allowance(options.growth_allowance as u64);
    }
    if options.accessible_from_all != 0 {
        builder = builder.accessible_from_all();
    }
    if !options.budget.is_null() {
        builder = builder.budget(&*BUDGETS.get(me, options.budget)?);
    }
    // SAFETY: as promised to this function.
    if let Some(words) = unsafe { text(options.guard, "guard") }? {
        builder = builder.guard(words.parse()?);
    }
    Ok(builder)
}

pub(crate) fn policies(bits: u64) -> Result<ReusePolicies, Failure> {
    let known = u32::try_from(bits).ok().filter(|bits| bits & !MILLPOND_REUSE_ALL == 0);
    let Some(bits) = known else {
        return Err(Failure::option("reuse", format!("{bits:#x}; it must be a sum of MILLPOND_REUSE_…")));
    };
    Ok(ReusePolicies {
        follow_event_dependencies: bits & MILLPOND_REUSE_FOLLOW_EVENT_DEPENDENCIES != 0,
        opportunistic: bits & MILLPOND_REUSE_OPPORTUNISTIC != 0,
        internal_dependencies: bits & MILLPOND_REUSE_INTERNAL_DEPENDENCIES != 0,
    })
}

pub(crate) fn bits_of(policies: ReusePolicies) -> u32 {
    let ReusePolicies { follow_event_dependencies, opportunistic, internal_dependencies } = policies;
    let bits = [
        (follow_event_dependencies, MILLPOND_REUSE_FOLLOW_EVENT_DEPENDENCIES),
        (opportunistic, MILLPOND_REUSE_OPPORTUNISTIC),
        (internal_dependencies, MILLPOND_REUSE_INTERNAL_DEPENDENCIES),
    ];
    bits.into_iter().filter(|(is_set, _)| *is_set).map(|(_, bit)| bit).sum()
}
