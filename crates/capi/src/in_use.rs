//! Which handles are inside a call, so that an object goes only after the last call that uses it.
//!
//! Hazard pointers: each thread notes in a record of its own the handle that it is about to use, then looks
//! whether the handle is still valid. Who releases a handle makes it invalid first, then looks through all records
//! and waits until none names it. Either the user sees the handle invalid or the releaser sees the note; that
//! needs a full fence between the two steps on both sides. The using side is the fast path, so its fence is only one
//! for the compiler, and the releasing side pays for both with `membarrier`, which fences every running thread of
//! the process. Where the system has no `membarrier`, both sides fence.

use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr};

use millpond::bindings::on_fork;

use super::sync::{AtomicU64, DEPTH, Ordering, fence, has_membarrier, light_fence};

/// What one thread has in use. Never freed: a thread that ends leaves it to a later one.
#[derive(Debug)]
pub(crate) struct Record {
    handles: [AtomicU64; DEPTH],
    /// How many of them are in use. Only the owning thread touches it.
    depth: Cell<usize>,
    /// Whether a guard gives the record back when the thread ends; else the last use does.
    until_exit: Cell<bool>,
    /// Whether the kernel fences this thread when another one asks; else each use fences. The same for all.
    fenced_by_kernel: bool,
    taken: AtomicBool,
    next: AtomicPtr<Record>,
}

// SAFETY: the cells are touched only by the thread that holds the record (`taken`), or by the only
// thread of a forked child; the rest is atomic.
unsafe impl Sync for Record {}

/// All records, linked by `next`. Only grows.
static RECORDS: AtomicPtr<Record> = AtomicPtr::new(ptr::null_mut());

thread_local! {
    // Apart from the guard, so that the fast path asks neither for initialisation nor for destruction.
    static MINE: Cell<Option<&'static Record>> = const { Cell::new(None) };
    static EXIT: GiveBackAtExit = const { GiveBackAtExit };
}

struct GiveBackAtExit;

impl Drop for GiveBackAtExit {
    fn drop(&mut self) {
        if let Some(record) = MINE.take() {
            record.give_back();
        }
    }
}

/// The calling thread's record.
#[inline]
pub(crate) fn this_thread() -> &'static Record {
    match MINE.get() {
        Some(record) => record,
        None => take_record_slow(),
    }
}

/// In a forked child: the other threads are gone, and use nothing any more.
fn forget_others() {
    let mine = MINE.get();
    for record in records().filter(|record| mine.is_none_or(|mine| !ptr::eq(mine, *record))) {
        // Relaxed: there is one thread.
        record.handles.iter().for_each(|place| place.store(0, Ordering::Relaxed));
        record.depth.set(0);
        record.taken.store(false, Ordering::Relaxed);
    }
}

#[cold]
fn take_record_slow() -> &'static Record {
    on_fork(forget_others);
    let record = records().find(|record| record.take()).unwrap_or_else(new_record);
    // Fails while the thread's variables are being destroyed: destructors of C++ may still free memory then.
    record.until_exit.set(EXIT.try_with(|_| ()).is_ok());
    MINE.set(Some(record));
    record
}

fn records() -> impl Iterator<Item = &'static Record> {
    // Acquire, here and below: pairs with the release that published the record.
    let mut at = RECORDS.load(Ordering::Acquire);
    std::iter::from_fn(move || {
        // SAFETY: records are leaked, so a pointer in the list is valid for ever.
        let record: &'static Record = unsafe { at.as_ref() }?;
        at = record.next.load(Ordering::Acquire);
        Some(record)
    })
}

fn new_record() -> &'static Record {
    let record: &'static Record = Box::leak(Box::new(Record::taken()));
    let this = ptr::from_ref(record).cast_mut();
    // Relaxed: the value is only compared by the exchange below.
    let mut head = RECORDS.load(Ordering::Relaxed);
    loop {
        record.next.store(head, Ordering::Relaxed);
        // Release: publishes the record's fields and its link.
        match RECORDS.compare_exchange_weak(head, this, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => return record,
            Err(now) => head = now,
        }
    }
}

impl Record {
    /// One that a thread has taken, and no list has yet.
    pub(crate) fn taken() -> Self {
        Self {
            handles: std::array::from_fn(|_| AtomicU64::new(0)),
            depth: Cell::new(0),
            until_exit: Cell::new(false),
            fenced_by_kernel: has_membarrier(),
            taken: AtomicBool::new(true),
            next: AtomicPtr::new(ptr::null_mut()),
        }
    }

    fn take(&self) -> bool {
        // Acquire: pairs with the release of `give_back`, for the cells.
        self.taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    fn give_back(&self) {
        self.taken.store(false, Ordering::Release);
    }

    /// Notes that the handle is about to be used. It must be looked up only after this. `None` where calls are nested
    /// too deep in callbacks.
    #[inline]
    pub(crate) fn note(&'static self, handle: u64) -> Option<Note> {
        let depth = self.depth.get();
        let place = self.handles.get(depth)?;
        // Relaxed: ordered before the look-up by the fence.
        place.store(handle, Ordering::Relaxed);
        if self.fenced_by_kernel {
            light_fence();
        } else {
            fence(Ordering::SeqCst);
        }
        self.depth.set(depth + 1);
        Some(Note { record: self, place: depth })
    }

    /// Whether a call is under way on this thread: then this one comes from a callback.
    pub(crate) fn is_busy(&self) -> bool {
        self.depth.get() > 0
    }

    /// Whether its thread is inside a call with the handle.
    pub(crate) fn names(&self, handle: u64) -> bool {
        // Acquire: what the user did with the object happened before its end, which follows.
        self.handles.iter().any(|place| place.load(Ordering::Acquire) == handle)
    }

    /// Whether this thread is inside a call with the handle.
    pub(crate) fn uses(&self, handle: u64) -> bool {
        self.names(handle)
    }

    #[cold]
    fn leave_slow(&self) {
        MINE.set(None);
        self.give_back();
    }
}

/// A handle stays noted as long as this lives. Notes end in the reverse order of their beginning.
#[derive(Debug)]
pub(crate) struct Note {
    record: &'static Record,
    place: usize,
}

impl Drop for Note {
    #[inline]
    fn drop(&mut self) {
        let depth = self.place;
        debug_assert_eq!(
            depth + 1,
            self.record.depth.get(),
            "notes end in the reverse order of their beginning"
        );
        self.record.depth.set(depth);
        // Release: the use of the object happens before whoever waits for this ends the object.
        self.record.handles[depth].store(0, Ordering::Release);
        if depth == 0 && !self.record.until_exit.get() {
            self.record.leave_slow();
        }
    }
}

/// Whether some thread is inside a call with the handle, which was made invalid before; a [heavy fence](super::sync::heavy_fence) came between.
pub(crate) fn is_used_by_anyone(handle: u64) -> bool {
    records().any(|record| record.names(handle))
}
