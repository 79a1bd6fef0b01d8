//! Handles: what C programs hold instead of addresses.
//!
//! A handle's 64 bits are a tag that no address has in its highest byte, with the kind of object in it; a
//! generation; and the index of a slot. Slots are never freed, so looking at one is always allowed, and a slot
//! knows the one handle that is valid for it. The next object there has another generation, so a released handle
//! is not taken for its successor.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::{ptr, thread};

use millpond::bindings::Mutex;
use millpond::bindings::PerProcess;

use crate::failure::Failure;
use crate::in_use::{self, Note, Record};
use crate::kind::{KIND_SHIFT, Kind, TAG};
use crate::places;

const GENERATION_SHIFT: u32 = 20;
const INDEX_MASK: u64 = (1 << GENERATION_SHIFT) - 1;

const CHUNK: usize = 1024;
/// As many as an index can name, so that no index is out of bounds.
const CHUNKS: usize = (1 << GENERATION_SHIFT) / CHUNK;

/// Generations that a slot can have: what is left between index and kind.
const GENERATIONS: u64 = 1 << (KIND_SHIFT - GENERATION_SHIFT);

/// All objects of one kind.
pub(crate) struct Table<T: 'static> {
    kind: Kind,
    chunks: [AtomicPtr<[Slot<T>; CHUNK]>; CHUNKS],
    /// Slots handed out so far.
    used: AtomicU64,
    /// A forked child does without the vacant slots of its parent, whose lock may be held for ever.
    vacant: PerProcess<Mutex<Vacant>>,
}

#[derive(Default)]
struct Vacant {
    slots: Vec<u64>,
    /// Released from within a callback while another thread was inside a call with them. Their objects go with
    /// the next release or creation.
    dying: Vec<u64>,
}

/// Where an object is kept.
struct Slot<T> {
    /// The valid handle; [`NO_HANDLE`] while there is none.
    handle: AtomicU64,
    /// There while there is a valid handle, and until the release of the last one is through.
    object: UnsafeCell<MaybeUninit<T>>,
    /// Objects that the slot had. Only who has the slot from `vacant` touches it.
    generation: UnsafeCell<u64>,
}

/// What a slot holds that has no valid handle: null, which is never looked up.
const NO_HANDLE: u64 = 0;

// SAFETY: objects are shared between threads only by reference (`Sync`), and moved in and out by whoever made or
// released the handle (`Send`), alone, as `insert` and `release` say.
unsafe impl<T: Send + Sync> Sync for Slot<T> {}

impl<T> Slot<T> {
    /// A slot without an object.
    fn vacant() -> Self {
        Self {
            handle: AtomicU64::new(NO_HANDLE),
            object: UnsafeCell::new(MaybeUninit::uninit()),
            generation: UnsafeCell::new(0),
        }
    }

    /// The object of this handle, if it is here.
    ///
    /// # Safety
    /// The handle was [noted](Record::note) before, and stays so while the object is used.
    #[inline]
    unsafe fn look(&self, bits: u64) -> Option<&T> {
        // Acquire: pairs with the release of `insert`.
        if bits == NO_HANDLE || self.handle.load(Ordering::Acquire) != bits {
            return None;
        }
        // SAFETY: the handle was valid after it was noted, so its object is there and stays until the note ends.
        Some(unsafe { (*self.object.get()).assume_init_ref() })
    }
}

impl<T: Send + Sync> Table<T> {
    pub(crate) const fn new(kind: Kind) -> Self {
        let chunks = [const { AtomicPtr::new(ptr::null_mut()) }; CHUNKS];
        Self { kind, chunks, used: AtomicU64::new(0), vacant: PerProcess::new(Default::default) }
    }

    /// Keeps an object and names it.
    pub(crate) fn insert<H>(&'static self, object: T) -> Result<*mut H, Failure> {
        self.bury();
        let index = self.take_vacant()?;
        let Some(slot) = self.slot(index) else { return Err(Failure::TooManyHandles(self.kind)) };
        // SAFETY: the slot is vacant and was taken from the list by this thread alone; nobody reads the object
        // of a slot that has no valid handle.
        let generation = unsafe {
            (*slot.object.get()).write(object);
            *slot.generation.get() += 1;
            *slot.generation.get()
        };
        let bits = (TAG | self.kind as u64) << KIND_SHIFT | generation << GENERATION_SHIFT | index;
        // Release: whoever sees the handle sees the object.
        slot.handle.store(bits, Ordering::Release);
        Ok(ptr::without_provenance_mut(bits as usize))
    }

    fn take_vacant(&self) -> Result<u64, Failure> {
        if let Some(index) = self.vacant().lock().slots.pop() {
            return Ok(index);
        }
        // Relaxed: only that no slot is handed out twice matters.
        let index = self.used.fetch_add(1, Ordering::Relaxed);
        let Some(chunk) = self.chunks.get(index as usize / CHUNK) else {
            return Err(Failure::TooManyHandles(self.kind));
        };
        // Acquire: as in `slot`. Whoever needs the chunk makes it: who came first may be gone, in a forked child.
        if chunk.load(Ordering::Acquire).is_null() {
            let slots: Box<[Slot<T>; CHUNK]> = Box::new(std::array::from_fn(|_| Slot::vacant()));
            let slots = Box::into_raw(slots);
            // Release: whoever sees the chunk sees its slots.
            let made = chunk.compare_exchange(ptr::null_mut(), slots, Ordering::Release, Ordering::Relaxed);
            if made.is_err() {
                // SAFETY: nobody else knows it.
                drop(unsafe { Box::from_raw(slots) });
            }
        }
        Ok(index)
    }

    fn vacant(&self) -> &'static Mutex<Vacant> {
        self.vacant.get()
    }

    /// The slot that a handle names, valid or not.
    #[inline]
    fn slot(&'static self, bits: u64) -> Option<&'static Slot<T>> {
        let index = (bits & INDEX_MASK) as usize;
        // Acquire: pairs with the release that published the chunk.
        let chunk = self.chunks[index / CHUNK].load(Ordering::Acquire);
        // SAFETY: a chunk is leaked once it is in the table, so it is null or valid for ever.
        unsafe { chunk.as_ref() }.map(|slots| &slots[index % CHUNK])
    }

    /// The object of a handle, for the time of a call.
    #[inline]
    pub(crate) fn get<H>(&'static self, me: &'static Record, handle: *mut H) -> Result<Using<T>, Failure> {
        let bits = handle.addr() as u64;
        let note = me.note(bits).ok_or(Failure::NestedTooDeep)?;
        // SAFETY: the note says so until the end of what is returned.
        match unsafe { self.look(bits) } {
            Some(object) => Ok(Using { object, _note: note }),
            None => Err(self.refuse(bits)),
        }
    }

    /// The object of a handle, if that is valid.
    ///
    /// # Safety
    /// The handle was [noted](Record::note) before, and stays so while the object is used.
    #[inline]
    unsafe fn look(&'static self, bits: u64) -> Option<&'static T> {
        // SAFETY: as the caller promises.
        unsafe { self.slot(bits)?.look(bits) }
    }

    /// Whether the handle is valid, at this moment.
    pub(crate) fn is_valid<H>(&'static self, handle: *mut H) -> bool {
        self.valid_slot(handle.addr() as u64).is_some()
    }

    fn valid_slot(&'static self, bits: u64) -> Option<&'static Slot<T>> {
        let slot = self.slot(bits).filter(|_| bits != NO_HANDLE)?;
        // Acquire: pairs with the release of `insert`.
        (slot.handle.load(Ordering::Acquire) == bits).then_some(slot)
    }

    /// What is wrong with a handle.
    #[cold]
    fn refuse(&'static self, bits: u64) -> Failure {
        let wanted = self.kind;
        match Kind::of(bits) {
            _ if bits == 0 => Failure::Null(wanted.name()),
            Some(kind) if kind != wanted => Failure::WrongKind { bits, kind, wanted },
            Some(_) if self.slot(bits).is_some() => Failure::Released { bits, kind: wanted },
            _ => Failure::UnknownHandle { bits, wanted },
        }
    }

    /// Makes a handle invalid, waits for the calls that other threads make with it, and ends its object. Called
    /// from a callback it does not wait, and the object goes later.
    pub(crate) fn release<H>(&'static self, me: &'static Record, handle: *mut H) -> Result<(), Failure> {
        self.bury();
        let bits = handle.addr() as u64;
        // Null stands for no use in the records.
        if bits != 0 && me.uses(bits) {
            return Err(Failure::Busy(self.kind));
        }
        {
            // Of two threads that release one handle, the lock lets the first; the second finds it released.
            let _alone = self.vacant().lock();
            let Some(slot) = self.valid_slot(bits) else { return Err(self.refuse(bits)) };
            // Relaxed: the fences that follow come before each look at other threads.
            slot.handle.store(NO_HANDLE, Ordering::Relaxed);
        }
        places::retire(bits);
        places::collect(bits);
        while in_use::is_used_by_anyone(bits) {
            if me.is_busy() {
                self.vacant().lock().dying.push(bits);
                return Ok(());
            }
            thread::yield_now();
        }
        self.end(bits);
        Ok(())
    }

    /// Ends the object of a released handle that nobody uses.
    fn end(&'static self, bits: u64) {
        let Some(slot) = self.slot(bits) else { return };
        // SAFETY: the handle was valid and is not any more, and no record names it, so the object is there and
        // nobody has or gets a reference; and only the one who released the handle comes here, or the one who took
        // it from `dying`.
        let (object, generation) =
            unsafe { ((*slot.object.get()).assume_init_read(), *slot.generation.get()) };
        // A slot whose generations are used up is not handed out again.
        if generation < GENERATIONS - 1 {
            self.vacant().lock().slots.push(bits & INDEX_MASK);
        }
        // Without the lock: the end of a pool may call back.
        drop(object);
    }

    /// Ends the objects whose release could not wait.
    fn bury(&'static self) {
        let dead: Vec<u64> = {
            let dying = &mut self.vacant().lock().dying;
            if dying.is_empty() {
                return;
            }
            let all = std::mem::take(dying);
            let (used, dead) = all.into_iter().partition(|bits| in_use::is_used_by_anyone(*bits));
            *dying = used;
            dead
        };
        dead.into_iter().for_each(|bits| self.end(bits));
    }
}

/// An object in use: it stays until this goes.
#[derive(Debug)]
pub(crate) struct Using<T: 'static> {
    object: &'static T,
    _note: Note,
}

impl<T> Deref for Using<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.object
    }
}
