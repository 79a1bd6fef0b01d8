//! What a pool counts, as its users read it.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A figure that moves: its present value, and its highest since the last reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Level {
    /// Now.
    pub current: u64,
    /// At most, since the pool was built or [reset](crate::Pool::reset_high_water).
    pub high: u64,
}

/// The list of device calls that are counted, for Rust here, for C and for Python: it hands them to the macro that is
/// named.
#[doc(hidden)]
#[macro_export]
macro_rules! list_of_device_calls {
    ($define:ident) => {
        $define! {
            /// Address ranges reserved (`cuMemAddressReserve`).
            reserve,
            /// Address ranges given back (`cuMemAddressFree`).
            unreserve,
            /// Pages created (`cuMemCreate`).
            create,
            /// Mappings made (`cuMemMap`).
            map,
            /// Access rights set (`cuMemSetAccess`).
            set_access,
            /// Mappings removed (`cuMemUnmap`).
            unmap,
            /// Pages released (`cuMemRelease`).
            release,
            /// Plain allocations (`cuMemAlloc`, or `cuMemAllocAsync` where an allocator uses that).
            alloc,
            /// Plain frees (`cuMemFree`, or `cuMemFreeAsync`).
            free,
        }
    };
}

macro_rules! define_device_calls {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Device calls by kind, counted since the pool was built. [`Stats::calls`] has them.
        ///
        /// ```
        /// use millpond::{Context, Pool};
        ///
        /// let device = Context::host()?;
        /// let pool = Pool::builder(&device).build()?;
        /// let stream = device.create_stream()?;
        /// for _step in 0..3 {
        ///     let block = pool.alloc(1 << 20, &stream)?;
        ///     # unsafe { pool.free(block, &stream) }?;
        ///     // … free it …
        /// }
        /// assert_eq!(pool.stats().calls.create, 1); // the first step's
        /// # Ok::<(), millpond::Error>(())
        /// ```
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
        #[serde(default)]
        #[non_exhaustive]
        pub struct DeviceCalls {
            $($(#[$doc])* pub $name: u64,)*
        }
    };
}

list_of_device_calls!(define_device_calls);

impl DeviceCalls {
    /// Calls that created, mapped, unmapped, released, allocated or freed device memory. Reserving addresses
    /// and setting access rights move no memory and are not counted.
    #[must_use]
    pub fn memory(&self) -> u64 {
        self.create + self.map + self.unmap + self.release + self.alloc + self.free
    }

    /// Every call counted.
    #[must_use]
    pub fn all(&self) -> u64 {
        self.memory() + self.reserve + self.unreserve + self.set_access
    }
}

/// The list of what a pool counts, for Rust here, for C and for Python. It hands the fields of [`Stats`], and its
/// methods that are figures, to the named macro.
///
/// A new figure is the last of `later`, which C's struct does not have: C programs know the places of the others.
#[doc(hidden)]
#[macro_export]
macro_rules! list_of_stats {
    ($define:ident) => {
        $define! {
            fields {
                /// Bytes asked for, in live blocks.
                requested: Level,
                /// Bytes in live blocks, rounded to the pool's minimum alignment, and below 1 MiB to one of eight size
                /// classes in each doubling.
                allocated: Level,
                /// Physical bytes held from the device.
                reserved: Level,
                /// Live blocks.
                blocks: Level,
                /// Allocations since the pool was built.
                allocations: u64,
                /// Frees since the pool was built.
                frees: u64,
                /// Allocations that found memory ready, without a device call that moves memory.
                hits: u64,
                /// Allocations that had to map, remap or create.
                misses: u64,
                /// Allocations for which the pool made the stream wait for another.
                stream_waits: u64,
                /// Pages taken from a free range to back another address.
                pages_remapped: u64,
                /// Times that memory ran out and something was given back or waited for, and the request tried again.
                retries: u64,
                /// Requests that ended in an out-of-memory error.
                out_of_memory: u64,
                /// Device calls by kind.
                calls: DeviceCalls,
            }
            methods {
                /// Bytes held but in no live block.
                cached: u64,
                /// 1 - requested / reserved, now: the share of the memory held that nobody asked for. 0 where nothing is live.
                fragmentation: f64,
            }
            later {
                /// Blocks that two threads freed at once, so that neither got an error: one of the two frees was
                /// dropped. A mistake of the program.
                double_frees: u64,
                /// Bytes that the pool gave back to sleep, or away when it was evicted, and takes again to wake or to be restored.
                /// They are not reserved.
                asleep: u64,
                /// Bytes of pinned memory of the host that the pool keeps for evictions.
                pinned: u64,
            }
        }
    };
}

macro_rules! define_stats {
    (
        fields { $($(#[$doc:meta])* $name:ident: $type:ident,)* }
        methods { $($methods:tt)* }
        later { $($(#[$later_doc:meta])* $later:ident: $later_type:ident,)* }
    ) => {
        /// What a pool did and holds. All sizes in bytes. Reading it does not stop the pool.
        ///
        /// Each figure is exact, but two of them may be a moment apart while other threads allocate.
        ///
        /// ```
        /// use millpond::{Context, Pool};
        ///
        /// let device = Context::host()?;
        /// let pool = Pool::builder(&device).build()?;
        /// let stream = device.create_stream()?;
        /// let block = pool.alloc(1000, &stream)?;
        /// let stats = pool.stats();
        /// assert_eq!((stats.requested.current, stats.blocks.current), (1000, 1));
        /// assert!(stats.allocated.current >= 1000 && stats.reserved.high >= stats.allocated.high);
        /// println!("{stats}"); // for people
        /// # unsafe { pool.free(block, &stream) }?;
        /// # Ok::<(), millpond::Error>(())
        /// ```
        ///
        /// # High-water marks
        /// That of `reserved` is exact. The others are never too low, and exact while one thread uses the pool. While several
        /// do, that of allocated bytes is at most 1/128 too high, or 1 MiB for each thread in a small pool. Those of
        /// requested bytes and of blocks are as exact, as far as they move with it. Where threads do little but allocate
        /// and free, it may be a quarter too high, or 64 MiB for each thread.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
        #[serde(default)]
        #[non_exhaustive]
        pub struct Stats {
            $($(#[$doc])* pub $name: $type,)*
            $($(#[$later_doc])* pub $later: $later_type,)*
        }
    };
}

list_of_stats!(define_stats);

impl Stats {
    /// Bytes held but in no live block.
    #[must_use]
    pub fn cached(&self) -> u64 {
        self.reserved.current.saturating_sub(self.allocated.current)
    }

    /// 1 − requested / reserved, now: the share of the memory held that nobody asked for. 0 where nothing is live: what an idle
    /// pool holds is [cached](Self::cached).
    #[must_use]
    pub fn fragmentation(&self) -> f64 {
        if self.reserved.current == 0 || self.requested.current == 0 {
            return 0.0;
        }
        1.0 - self.requested.current as f64 / self.reserved.current as f64
    }
}

/// For people: what is held and used now and at most, and what the pool did.
///
/// ```
/// let stats = millpond::Stats::default().to_string();
/// assert!(stats.starts_with("reserved 0 B (at most 0 B), allocated 0 B (0 B), requested 0 B (0 B)"));
/// ```
impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { blocks, allocations, frees, misses, stream_waits, pages_remapped, retries, .. } = *self;
        let human = |level: Level| (HumanBytes(level.current), HumanBytes(level.high));
        let [(reserved, most), (allocated, most_allocated), (requested, most_requested)] =
            [self.reserved, self.allocated, self.requested].map(human);
        writeln!(
            f,
            "reserved {reserved} (at most {most}), allocated {allocated} ({most_allocated}), \
             requested {requested} ({most_requested})"
        )?;
        let (Level { current: blocks, high: most }, fragmentation) = (blocks, 100.0 * self.fragmentation());
        writeln!(
            f,
            "{blocks} blocks (at most {most}); {allocations} allocations, {frees} frees, {misses} misses; \
             fragmentation {fragmentation:.1} %"
        )?;
        let (calls, out_of_memory) = (self.calls.all(), self.out_of_memory);
        write!(
            f,
            "{calls} device calls, {stream_waits} stream waits, {pages_remapped} pages remapped, {retries} retries, \
             {out_of_memory} out of memory"
        )
    }
}

/// Bytes for people, in binary units: `1.50 GiB`.
///
/// ```
/// assert_eq!(millpond::HumanBytes(3 << 20).to_string(), "3.00 MiB");
/// assert_eq!(millpond::HumanBytes(512).to_string(), "512 B");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct HumanBytes(pub u64);

impl From<u64> for HumanBytes {
    fn from(bytes: u64) -> Self {
        Self(bytes)
    }
}

impl fmt::Display for HumanBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        if self.0 < 1024 {
            return write!(f, "{} B", self.0);
        }
        let exponent = (self.0.ilog2() / 10) as usize;
        let value = self.0 as f64 / (1u64 << (10 * exponent)) as f64;
        write!(f, "{value:.2} {}", UNITS[exponent - 1])
    }
}
