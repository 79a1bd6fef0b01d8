//! Building a pool: its options, and what makes sense of them.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::context::PoolMemory;
use super::{Context, Pool, PoolParts};
use crate::budgets::{Budget, Limits, budget_for};
use crate::cache::{Caches, Locked, Sizes};
use crate::core::recording::{start_checking, start_recording, start_tracking};
use crate::core::{Arenas, Callbacks, Core, Gate, HasCore, Holds, LastRestore, PoolState, Registry, Routes};
use crate::decay;
use crate::device::{Device, MemoryKind, PeerId, PeerSet};
use crate::error::{Error, Result};
use crate::evict::Evict;
use crate::extents::{Arena, Layout, Owner};
use crate::figures::counters::Counters;
use crate::guard::{FencedMemory, Guard, Guarding};
use crate::live;
use crate::log::{log, warn_in_any_case};
use crate::order::{Reuse, ReusePolicies, Timelines};
use crate::peers::{PeerCopies, allow_access, share_all};
use crate::physical::Pages;
use crate::policy::Policy;
use crate::policy::ledger::Ledger;
use crate::policy::options::{ALIGNMENT, ALIGNMENTS, LARGEST_PAGE};
use crate::policy::sleeping::PAGE_TO_MOVE;
use crate::record;
use crate::record::Recording;
use crate::sleep::Sleep;
use crate::system::lock::{Condvar, Mutex};
use crate::system::process::OfProcess;

/// The options of a pool. Made by [`Pool::builder`]; sizes in bytes.
///
/// ```
/// use millpond::{Budget, Context, Pool, ReusePolicies};
///
/// let device = Context::host()?;
/// let budget = Budget::fraction(&device, 0.5)?;
/// let pool = Pool::builder(&device)
///     .name("activations")
///     .hard_limit(8 << 30) // never holds more
///     .budget(&budget) // nor more than this, with the other pools under it
///     .release_threshold(1 << 30) // gives back what is free above it when the program synchronises
///     .reuse(ReusePolicies::ALL)
///     .build()?;
/// # Ok::<(), millpond::Error>(())
/// ```
#[derive(Clone)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct PoolBuilder {
    timelines: Arc<Timelines>,
    registry: Arc<Registry<dyn HasCore>>,
    memory: PoolMemory,
    name: String,
    hard_limit: u64,
    release_threshold: u64,
    pinned_limit: u64,
    decay: Option<Duration>,
    headroom: u64,
    reuse: ReusePolicies,
    policy: Policy,
    page_sizes: Option<(u64, u64)>,
    min_alignment: u64,
    growth_allowance: Option<u64>,
    budget: Option<Budget>,
    keeps_nothing: bool,
    zeroed: bool,
    /// Names, and no contexts, which may hold the pool.
    peers: Option<Vec<Option<PeerId>>>,
    live: bool,
    record: Option<record::Options>,
    track: Option<record::Tracking>,
    guard: Option<Guard>,
}

impl fmt::Debug for PoolBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolBuilder")
            .field("name", &self.name)
            .field("device", &self.memory.device.properties().short())
            .finish_non_exhaustive()
    }
}

impl PoolBuilder {
    pub(super) fn new(context: &Context, memory: PoolMemory) -> Self {
        Self {
            timelines: context.timelines().clone(),
            registry: context.registry().clone(),
            memory,
            name: "pool".to_owned(),
            hard_limit: u64::MAX,
            release_threshold: u64::MAX,
            pinned_limit: u64::MAX,
            decay: None,
            headroom: 0,
            reuse: ReusePolicies::ALL,
            #[cfg(not(feature = "lab"))]
            policy: Policy::ALL,
            #[cfg(feature = "lab")]
            policy: Policy::from_environment(),
            page_sizes: None,
            min_alignment: ALIGNMENT,
            growth_allowance: None,
            budget: None,
            keeps_nothing: false,
            zeroed: false,
            peers: Some(Vec::new()),
            live: true,
            record: None,
            track: None,
            guard: None,
        }
    }

    /// Of memory of other processes, which is gone once it is free.
    pub(super) fn of_others(context: &Context, memory: Arc<dyn Device>) -> Self {
        let memory = PoolMemory { device: memory, together: Arc::default() };
        let new = Self::new(context, memory).name("shared");
        Self {
            keeps_nothing: true,
            live: false,
            ..new.min_alignment(*ALIGNMENTS.start()).release_threshold(0)
        }
    }

    /// A name for errors and reports. "pool" by default, and "pinned" or "managed" for one of such memory.
    pub fn name(self, name: impl Into<String>) -> Self {
        Self { name: name.into(), ..self }
    }

    /// Physical bytes that the pool may hold. No limit by default.
    pub fn hard_limit(self, bytes: u64) -> Self {
        Self { hard_limit: bytes, ..self }
    }

    /// Physical bytes that the pool keeps when the program synchronises a stream, an event or the device through
    /// millpond. What is free above that goes back to the device. By default, the pool keeps everything.
    pub fn release_threshold(self, bytes: u64) -> Self {
        Self { release_threshold: bytes, ..self }
    }

    /// The most pinned memory of the host that the pool and its [tags](Pool::tagged) keep for [evictions](Pool::evict). By default
    /// there is no limit. An eviction that needs more ends in [`Error::CannotEvict`].
    pub fn pinned_limit(self, bytes: u64) -> Self {
        Self { pinned_limit: bytes, ..self }
    }

    /// Gives free memory back that nobody used for so long, also while the program makes no call. Up to a
    /// [release threshold](Self::release_threshold) that was set, it stays. The zero duration keeps everything, as a pool does by
    /// default. Without this option, `MILLPOND_DECAY` in the environment says the seconds, such as `1` or `0.5`, for all
    /// [pools of the device's memory that are seen](Self::live).
    ///
    /// While the program allocates, the pool keeps the peak of the last such times, and an eighth more. The first pool with a
    /// delay starts a thread for the process, which ends with the last one. An allocation costs what it costs without.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use millpond::{Context, Pool};
    ///
    /// let pool = Pool::builder(&Context::host()?).decay(Duration::from_secs(1)).build()?;
    /// # Ok::<(), millpond::Error>(())
    /// ```
    pub fn decay(self, delay: Duration) -> Self {
        Self { decay: Some(delay), ..self }
    }

    /// Bytes of the device that the pool always leaves free for others. 0 by default. More costs a memory-information
    /// call each time the pool grows.
    pub fn headroom(self, bytes: u64) -> Self {
        Self { headroom: bytes, ..self }
    }

    /// How memory may pass from stream to stream. All three policies by default.
    pub fn reuse(self, policies: ReusePolicies) -> Self {
        Self { reuse: policies, ..self }
    }

    /// The smallest and the largest physical page, in bytes. Both are powers of two, and the smallest is at least the
    /// device's granularity. The defaults are the granularity and 32 MiB.
    pub fn page_sizes(self, smallest: u64, largest: u64) -> Self {
        Self { page_sizes: Some((smallest, largest)), ..self }
    }

    /// Every address is a multiple of this, and sizes are rounded up to it. It is a power of two from 256 bytes to 2
    /// MiB, by default 512 bytes.
    pub fn min_alignment(self, bytes: u64) -> Self {
        Self { min_alignment: bytes, ..self }
    }

    /// Each block is zeros when it is allocated, in the order of its stream: no request sees what another one left. Without this,
    /// it has the bytes of an earlier block. Each request takes the slow path then, and a call of the device.
    ///
    /// ```
    /// use millpond::{Buffer, Context, Pool};
    ///
    /// let pool = Pool::builder(&Context::host()?).zeroed(true).build()?;
    /// let stream = pool.create_stream()?;
    /// drop(Buffer::from_slice(&pool, b"a secret", &stream)?);
    /// assert_eq!(Buffer::<u8>::uninit(&pool, 8, &stream)?.to_vec()?, [0; 8]);
    /// # Ok::<(), millpond::Error>(())
    /// ```
    pub fn zeroed(self, zeroed: bool) -> Self {
        Self { zeroed, ..self }
    }

    /// Bytes that the pool may hold beyond the most that was ever live, to save time. It does so
    /// only where moving memory would take a third of the program's time. By default 1/32 of the device's memory, and at most a quarter
    /// of what was ever live.
    /// With 0, the pool never trades memory for time.
    pub fn growth_allowance(self, bytes: u64) -> Self {
        Self { growth_allowance: Some(bytes), ..self }
    }

    /// The former name of [`growth_allowance`](Self::growth_allowance).
    #[deprecated(since = "0.1.0", note = "its name is `growth_allowance` now")]
    pub fn spare(self, bytes: u64) -> Self {
        self.growth_allowance(bytes)
    }

    /// Each block has pages of its own, so that a process which a block is [shared](crate::Buffer::share) with reaches no
    /// other. Blocks are then whole pages of the device's granularity (2 MiB): not for many small ones. Sets
    /// [`page_sizes`](Self::page_sizes) and [`min_alignment`](Self::min_alignment).
    pub fn for_sharing(self) -> Self {
        let page = self.memory.device.properties().granularity;
        self.page_sizes(page, page).min_alignment(page)
    }

    /// A limit that the pool shares with others. `MILLPOND_LIMIT` and `MILLPOND_BUDGET` in the environment limit the pool also
    /// without one, and besides: the page `docs/operate.md` says how.
    pub fn budget(self, budget: &Budget) -> Self {
        Self { budget: Some(budget.clone()), ..self }
    }

    /// Lets the GPUs of these contexts use all memory of the pool at its addresses, as [`Pool::allow_access`] does. By
    /// default none may: then blocks are given to them one by one ([`Pool::allow_access_to`]), and by copies.
    ///
    /// Mapping a page takes about 40 µs more for each of them, and the first one 1 ms (H100).
    ///
    /// ```
    /// use millpond::device::sim::{SimDevice, SimOptions};
    /// use millpond::{Context, Pool};
    ///
    /// let gpus = SimDevice::group(2, SimOptions::default())?; // or Context::cuda(0)?, Context::cuda(1)?
    /// let [first, second] = [0, 1].map(|number| Context::new(gpus[number].clone()));
    /// let pool = Pool::builder(&first).accessible_from([&second]).build()?;
    /// # Ok::<(), millpond::Error>(())
    /// ```
    pub fn accessible_from<'a>(self, peers: impl IntoIterator<Item = &'a Context>) -> Self {
        let peers = peers.into_iter().map(|peer| peer.device().peer_id());
        Self { peers: Some(peers.collect()), ..self }
    }

    /// As [`accessible_from`](Self::accessible_from), for all GPUs that take memory in this process, also later, as far as they
    /// reach this one's. So the pool's memory is used as that of `cudaMalloc` is after `cudaDeviceEnablePeerAccess`.
    pub fn accessible_from_all(self) -> Self {
        Self { peers: None, ..self }
    }

    /// Whether `millpond top` and other programs of this user [see](crate::live) the pool: its figures, its name, and what its
    /// blocks are by size. They can also have it trimmed. `true` by default. It costs an allocation nothing; the first such
    /// pool of a process starts a thread, which sleeps until somebody asks, and ends with the last one. A pool whose last handle
    /// is gone before its last block may end in that thread, some microseconds later.
    ///
    /// `MILLPOND_LIVE=off` in the environment hides all pools of a process.
    pub fn live(self, seen: bool) -> Self {
        Self { live: seen, ..self }
    }

    /// Records what the pool does to a file, from the start. See [`Pool::start_recording`]. Without this option, the
    /// environment variable `MILLPOND_RECORD` names the file, for all pools of the process. With
    /// `MILLPOND_RECORD_CALL_SITES=1`, it has call sites.
    pub fn record(self, to: impl Into<record::Options>) -> Self {
        Self { record: Some(to.into()), ..self }
    }

    /// Tracks who holds the pool's memory, from the start. See [`record::Tracking`]. Without this option, the environment
    /// says for all pools of the process what is tracked: `MILLPOND_TRACK=sampled` or `all`, `MILLPOND_LEAKS=1`, and
    /// `MILLPOND_OOM_DUMP=PATH`.
    pub fn track(self, tracking: record::Tracking) -> Self {
        Self { track: Some(tracking), ..self }
    }

    /// Watches what the program does to the pool's memory, from the start. See [`Guard`]. Without this option, `MILLPOND_GUARD`
    /// in the environment guards all pools of the process. A pool without a guard is as fast as before. With one, each request
    /// takes the slow path, each block a KiB more, and no block can be [shared](Pool::share) with other processes.
    pub fn guard(self, guard: Guard) -> Self {
        Self { guard: Some(guard), ..self }
    }

    /// Builds the pool. No memory of the device is taken yet, and little of the host's.
    ///
    /// # Errors
    /// [`Error::BadOption`] for an option with a value that it cannot have, also where the environment limits the pool. Those of
    /// [`Pool::allow_access`] for a context that is no peer. [`Error::Recording`] if the file that
    /// [`record`](Self::record) names cannot be written. If the environment names it, the pool warns, and records
    /// nothing.
    pub fn build(self) -> Result<Pool> {
        self.build_in(None)
    }

    /// As [`build`](Self::build), as a part of another pool, if there is one: under its hard limit.
    pub(super) fn build_in(self, whole: Option<&Pool>) -> Result<Pool> {
        let inner = Arc::new(self.parts(whole)?);
        self.let_peers_in(&inner)?;
        self.start_recording(&inner)?;
        if let Some(tenancy) = inner.limits.tenancy() {
            tenancy.add_giver(Arc::downgrade(&inner) as _)?;
        }
        self.registry.enter(inner.number, Arc::downgrade(&inner) as _);
        self.timelines.listen(Arc::downgrade(&inner) as _);
        if let Some(socket) = &inner.socket {
            socket.show(inner.number, Arc::downgrade(&inner) as _);
            live::watch_errors(&inner);
        }
        inner.decay.set(&inner, self.delay(&inner));
        let pool = Pool::new(inner, Some(self));
        let limit = || pool.hard_limit().map_or_else(|| "none".to_owned(), |bytes| bytes.to_string());
        log!(DEBUG, "a pool was built", pool = pool.name(), limit = limit());
        Ok(pool)
    }

    /// The pool, of which nobody knows yet.
    fn parts(&self, whole: Option<&Pool>) -> Result<PoolParts> {
        let mut layout = self.layout()?;
        if whole.is_some() {
            layout.least_page = PAGE_TO_MOVE;
        }
        self.timelines.check_process()?;
        let guard = self.guard.clone().or_else(Guard::from_environment);
        let device = match &guard {
            Some(guard) if guard.fences => FencedMemory::over(self.memory.device.clone()),
            _ => self.memory.device.clone(),
        };
        let limits = self.limits(device.as_ref(), whole)?;
        let ledger = Ledger::new(self.policy, self.growth_allowance, limits.total, device.now());
        let counters = Arc::new(Counters::default());
        let pages = Pages::new(device.clone(), counters.clone(), limits.clone(), layout.base_page_bytes);
        static NEXT: AtomicU64 = AtomicU64::new(1);
        // Relaxed: only uniqueness matters.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let ranges = &self.registry.ranges;
        let published = (ranges.clone(), Owner { pool: number, memory: None });
        let arena = Arena::new(self.timelines.clone(), layout, self.reuse, pages, published);
        // First: in a process with one thread, the kernel grants its barriers at once. Beside the socket's thread that takes
        // it 10 to 20 ms.
        let caches = Caches::new(arena.page_map().clone(), Sizes::new(layout.unit_bytes));
        let socket = if self.live { live::open() } else { None };
        let guarding = guard.map(Guarding::new).map(Arc::new);
        let core = Core {
            name: self.name.clone(),
            number,
            timelines: self.timelines.clone(),
            registry: Arc::downgrade(&self.registry),
            ranges: ranges.clone(),
            recording: Recording::new(&self.name, device.as_ref(), counters.clone()),
            device,
            limits,
            counters,
            marks: Default::default(),
            caches: OfProcess::new(caches),
            routes: Routes::default(),
            state: OfProcess::new(Mutex::new(PoolState {
                arenas: Arenas::new(arena),
                locked: Locked::default(),
                ledger,
                is_asleep: false,
            })),
            settled: Condvar::new(),
            release_threshold: AtomicU64::new(self.release_threshold),
            reclaimers: Callbacks::default(),
            observers: Callbacks::default(),
            reuse: Reuse::new(self.reuse),
            gate: Gate::default(),
            last_restore: LastRestore::default(),
            holds: Holds::default(),
            part_of: whole.map(|whole| Arc::downgrade(whole.inner()) as _),
            wrapping: guarding.clone().map(|guarding| guarding as _),
            destroyed: AtomicBool::new(false),
            keeps_nothing: self.keeps_nothing,
            zeroes: self.zeroed,
        };
        Ok(PoolParts {
            core,
            sleep: Sleep::default(),
            evict: Evict::new(self.pinned_limit, whole.map(|whole| &whole.inner().evict)),
            peer_copies: PeerCopies::default(),
            decay: Arc::default(),
            guarding,
            socket,
            first_handle: OnceLock::new(),
        })
    }

    fn limits(&self, device: &dyn Device, whole: Option<&Pool>) -> Result<Limits> {
        let hard_limit = match whole {
            Some(whole) => whole.inner().limits.hard_limit.clone(),
            None => Budget::bytes(self.hard_limit),
        };
        let properties = device.properties();
        // What other processes gave is theirs, and pools of a tool on a recording are nobody's.
        let is_limited =
            properties.memory == MemoryKind::Device && !self.keeps_nothing && !live::are_hidden();
        let outer = if is_limited { budget_for(device)? } else { None };
        let (budget, imposed) =
            if self.budget.is_some() { (self.budget.clone(), outer) } else { (outer, None) };
        let headroom = Arc::new(AtomicU64::new(self.headroom));
        let together = self.memory.together.clone();
        Ok(Limits { hard_limit, headroom, budget, imposed, total: properties.total_memory, together })
    }

    fn let_peers_in(&self, core: &Core) -> Result<()> {
        match &self.peers {
            Some(peers) => peers.iter().try_for_each(|peer| allow_access(core, *peer)),
            None => share_all(core, PeerSet::ALL),
        }
    }

    /// What the program asked for comes before what the environment does.
    fn start_recording(&self, core: &Core) -> Result<()> {
        start_checking(core)?;
        match (&self.record, record::Options::from_environment()) {
            (Some(asked), _) => start_recording(core, asked)?,
            (None, Some(environment)) => {
                if let Err(error) = start_recording(core, &environment) {
                    warn_in_any_case(&format!("MILLPOND_RECORD is ignored: {error}"));
                }
            }
            (None, None) => {}
        }
        match self.track.clone().or_else(record::Tracking::from_environment) {
            Some(tracking) => start_tracking(core, &tracking),
            None => Ok(()),
        }
    }

    /// The delay of the decay. What is not the device's takes long to give back, and may wait for running work.
    fn delay(&self, core: &Core) -> Option<Duration> {
        let is_devices = core.device.properties().memory == MemoryKind::Device;
        let is_seen = self.live && !live::are_hidden() && is_devices;
        self.decay.or_else(|| decay::from_environment().filter(|_| is_seen))
    }

    fn layout(&self) -> Result<Layout> {
        let granularity = self.memory.device.properties().granularity;
        let (smallest, largest) = self.page_sizes.unwrap_or((granularity, LARGEST_PAGE.max(granularity)));
        let unit = self.min_alignment;
        let at_most = |least: u64| least..=least.saturating_mul(1 << 20);
        let alignments = *ALIGNMENTS.start()..=smallest.min(*ALIGNMENTS.end());
        for (option, what, bytes, range) in [
            ("page_sizes", "the smallest page is ", smallest, at_most(granularity)),
            ("page_sizes", "the largest page is ", largest, at_most(smallest)),
            ("min_alignment", "", unit, alignments),
        ] {
            if !bytes.is_power_of_two() || !range.contains(&bytes) {
                let (least, most) = range.into_inner();
                let why = format!("{what}{bytes} bytes: use a power of two from {least} to {most}");
                return Err(Error::BadOption { option, why });
            }
        }
        Ok(Layout::new(unit, smallest, largest, self.policy))
    }
}
