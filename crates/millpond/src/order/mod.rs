//! `order/`: who may use freed memory, and when.
//!
//! Uses `device/` only. It knows nothing of pools, addresses or pages.
//!
//! **Timelines.** Each stream is a [`Timeline`]: a counter that names *ticks*. Work given to the stream belongs to the
//! present tick. A *mark* (an event recorded on the stream) closes the tick. Once the mark is complete, so is all work
//! of that tick and of those before it.
//!
//! **Fences.** A [`Fence`] has a tick for each stream that last used a piece of memory. Nobody else may use the memory
//! before those ticks are reached. Joining two fences takes the later tick per stream.
//!
//! **How one request passes through.** A free takes the stream's present tick ([`Stream::tick`]): a load, no device
//! call. An allocation on stream *S* asks [`Timelines::readiness`]: yes where the fence names only *S*, or what the host
//! or *S* has waited for. Each stream carries a vector clock of the ticks that it is ordered after. Clocks are joined
//! along event dependencies, as Fidge's and Mattern's are. Else the caller may look ([`Timelines::poll`], the
//! *opportunistic* policy), make *S* wait ([`Timelines::make_wait`], *internal dependencies*), or make the host wait
//! ([`Timelines::wait_on_host`], under memory pressure). Marks are recorded only here, when somebody needs them, not at
//! every free.
//!
//! **Streams that go away.** A stream's last handle records a final mark before the stream is destroyed. The timeline
//! stays until that mark is complete. Then every tick of it counts as reached. Timelines are named by slot and
//! generation, and streams by the driver's id, so a recycled handle is never taken for the old stream.
//!
//! **Streams of others** are kept by promises of different lengths (`timeline::Promise`). A [`RegisteredStream`] is valid
//! until its owner ends the registration; that is when its last tick is closed. A stream without a promise is marked
//! with each tick ([`Timeline::is_marked_at_once`]).
//!
//! **A thread's default stream** is valid on that thread only, and nobody else can mark it. It has one timeline until the
//! thread ends, however often it is presented. What the thread gives the pool is marked at once. What it caches is not,
//! since it comes back in the stream's own order. Where others take that, they leave a wish for a mark: the thread
//! fulfils it at its next call that takes the pool's lock, or when it ends. A wait for the device does, too.

mod event;
mod events;
mod fence;
mod policies;
mod questions;
mod registered;
mod stream;
mod thread_end;
mod timeline;
mod timeline_table;
mod timelines;
mod watchers;

pub use event::Event;
pub(crate) use events::OwnedEvent;
#[cfg(test)]
pub(crate) use fence::LOOKS;
pub(crate) use fence::{Fence, Reached, Tick, TimelineId};
pub(crate) use policies::Reuse;
pub use policies::ReusePolicies;
pub(crate) use questions::{Admission, ReadinessQuery};
pub use registered::RegisteredStream;
pub use stream::Stream;
pub(crate) use stream::StreamKey;
pub(crate) use timeline::Timeline;
pub(crate) use timelines::{AfterSync, Timelines};
