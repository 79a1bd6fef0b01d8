//! What a pool counts: the structs of C are made of the lists in `millpond`'s `stats.rs`.

use std::mem::offset_of;

use crate::arguments::{SizedStruct, write_struct};
use crate::failure::boundary;
use crate::kind::PoolHandle;
use crate::pool::POOLS;
use crate::status::Status;

/// A figure that moves: where it is, and the highest it has been since the last reset.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Level {
    /// Now.
    pub current: u64,
    /// At most.
    pub high: u64,
}

impl From<millpond::Level> for Level {
    fn from(millpond::Level { current, high }: millpond::Level) -> Self {
        Self { current, high }
    }
}

/// Defines a struct of the header and keeps its text for `tests/header.rs`: cbindgen does not look into macros.
macro_rules! with_text {
    ($text:ident, $item:item) => {
        $item

        #[doc(hidden)]
        pub const $text: &str = stringify!($item);
    };
}

macro_rules! define_device_calls {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        with_text! {
            DEVICE_CALLS_TEXT,
            /// Device calls by kind, counted since the pool was built.
            #[repr(C)]
            #[derive(Debug, Clone, Copy)]
            pub struct DeviceCalls {
                $($(#[$doc])* pub $name: u64,)*
                /// Zeros: room for kinds that come.
                pub reserved: [u64; 7],
            }
        }

        impl From<millpond::DeviceCalls> for DeviceCalls {
            fn from(millpond::DeviceCalls { $($name,)* .. }: millpond::DeviceCalls) -> Self {
                Self { $($name,)* reserved: Default::default() }
            }
        }
    };
}

millpond::list_of_device_calls!(define_device_calls);

macro_rules! define_stats {
    (
        fields { $($(#[$doc:meta])* $name:ident: $type:ident,)* }
        methods { $($(#[$method_doc:meta])* $method:ident: $method_type:ident,)* }
        later { $($later:tt)* }
    ) => {
        with_text! {
            POOL_STATS_TEXT,
            /// What a pool did and holds; sizes in bytes. Set `size` before the call.
            #[repr(C)]
            #[derive(Debug, Clone, Copy)]
            pub struct PoolStats {
                /// sizeof this struct.
                pub size: usize,
                $($(#[$doc])* pub $name: $type,)*
                $($(#[$method_doc])* pub $method: $method_type,)*
            }
        }

        impl From<millpond::Stats> for PoolStats {
            fn from(stats: millpond::Stats) -> Self {
                Self {
                    size: size_of::<Self>(),
                    $($name: stats.$name.into(),)*
                    $($method: stats.$method(),)*
                }
            }
        }
    };
}

millpond::list_of_stats!(define_stats);

// What programs were compiled with. A figure may come after the last one, and nowhere else. A kind of call takes the place of a
// reserved one.
const _: () = assert!(
    offset_of!(PoolStats, allocations) == 72
        && offset_of!(PoolStats, calls) == 136
        && size_of::<DeviceCalls>() == 128
        && offset_of!(PoolStats, fragmentation) == 136 + 128 + 8
);

// SAFETY: `repr(C)`, numbers only, the size first.
unsafe impl SizedStruct for PoolStats {
    const NAME: &'static str = "millpond_stats";
}

/// What the pool did and holds. Takes no lock.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_stats(pool: *mut PoolHandle, stats: *mut PoolStats) -> Status {
    boundary(|me| {
        let value = POOLS.get(me, pool)?.pool.stats().into();
        // SAFETY: as the header asks of its caller.
        unsafe { write_struct(stats, "stats", &value) }
    })
}
