//! The calls of [`Device`](crate::device::Device), as values: to count them, and to make them fail.

use std::ops::{Index, IndexMut};

macro_rules! calls {
    ($($call:ident => $name:literal,)*) => {
        /// A call of [`Device`](crate::device::Device), named as its function.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[allow(missing_docs, reason = "each is named as the function that it stands for")]
        #[non_exhaustive]
        pub enum Call { $($call,)* }

        impl Call {
            /// Every call, in the order of the trait.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$call),*];

            /// The function's name.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$call => $name,)* }
            }
        }
    };
}

calls! {
    MemoryInfo => "memory_info",
    Reserve => "reserve",
    Unreserve => "unreserve",
    CreatePage => "create_page",
    Map => "map",
    SetAccess => "set_access",
    Unmap => "unmap",
    ReleasePage => "release_page",
    AllocSegment => "alloc_segment",
    FreeSegment => "free_segment",
    AllocAsync => "alloc_async",
    FreeAsync => "free_async",
    AsyncUsage => "async_usage",
    Pinned => "pinned",
    Managed => "managed",
    Prefetch => "prefetch",
    Advise => "advise",
    Residency => "residency",
    CreateStream => "create_stream",
    DestroyStream => "destroy_stream",
    StreamId => "stream_id",
    StreamIsIdle => "stream_is_idle",
    SynchronizeStream => "synchronize_stream",
    Synchronize => "synchronize",
    CreateEvent => "create_event",
    DestroyEvent => "destroy_event",
    RecordEvent => "record_event",
    QueryEvent => "query_event",
    WaitEvent => "wait_event",
    SynchronizeEvent => "synchronize_event",
    Memset => "memset",
    CopyFromHost => "copy_from_host",
    CopyToHost => "copy_to_host",
    Copy => "copy",
    Identity => "identity",
    ExportPage => "export_page",
    ImportPage => "import_page",
    CreateSharedEvent => "create_shared_event",
    OpenEvent => "open_event",
    CanBeReachedFrom => "can_be_reached_from",
    SetPeerAccess => "set_peer_access",
    CopyFromPeer => "copy_from_peer",
}

impl Call {
    /// Whether the call creates, maps, unmaps, releases, allocates or frees device memory: the calls that a
    /// pool exists to avoid.
    #[must_use]
    pub const fn manages_memory(self) -> bool {
        matches!(
            self,
            Self::CreatePage
                | Self::Map
                | Self::SetAccess
                | Self::SetPeerAccess
                | Self::Unmap
                | Self::ReleasePage
                | Self::AllocSegment
                | Self::FreeSegment
                | Self::AllocAsync
                | Self::FreeAsync
        )
    }
}

/// One value for each [`Call`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PerCall<T>([T; Call::ALL.len()]);

impl<T: Default + Copy> Default for PerCall<T> {
    fn default() -> Self {
        Self([T::default(); Call::ALL.len()])
    }
}

impl<T> Index<Call> for PerCall<T> {
    type Output = T;

    fn index(&self, call: Call) -> &T {
        &self.0[call as usize]
    }
}

impl<T> IndexMut<Call> for PerCall<T> {
    fn index_mut(&mut self, call: Call) -> &mut T {
        &mut self.0[call as usize]
    }
}

impl<T: Copy + std::iter::Sum> PerCall<T> {
    /// The sum over all calls.
    pub fn total(&self) -> T {
        self.0.iter().copied().sum()
    }

    /// The sum over the calls that [manage memory](Call::manages_memory).
    pub fn memory_management(&self) -> T {
        Call::ALL.into_iter().filter(|call| call.manages_memory()).map(|call| self[call]).sum()
    }
}
