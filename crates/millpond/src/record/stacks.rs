//! The calling thread's call stack, as a number. A stack that the thread has had before takes a lookup for each frame.
//!
//! The system's unwinder reads tables for each frame, and takes 3 to 20 microseconds for a stack. So each thread remembers
//! what the unwinder found, as a tree: a node is a frame with all frames inside it, and knows where on the stack its
//! caller's return address lies. To walk the tree, the thread reads the word there, and looks for the node's child with this
//! return address. The first node is found by where [`number`] itself stands on the stack.
//!
//! **Why the word is the return address.** How long a frame is depends on the instruction that it is at. That is the return
//! address that was read last. Only a frame of varying length (`alloca`, or one that aligns itself) may be longer than it
//! was. Then the word is nearly always no known return address, and the unwinder is asked. If it is one, which is left from an
//! earlier call, the stack is taken for another: a wrong line in a profile.
//!
//! **Why it may be read.** It lies between here and the end of this thread's stack, all of which is mapped. A stack that
//! the program switched to, as coroutines do, is none of the thread's, and is always unwound.

use std::cell::RefCell;
use std::hint::black_box;
use std::ops::Range;
use std::ptr;

use rustc_hash::FxHashMap;

use crate::system::process::Process;

/// Frames at most: what is further out is left away.
const DEEPEST: usize = 64;

/// Nodes that a thread remembers, at 40 bytes or so. With more, it forgets all.
const MOST_NODES: usize = 1 << 14;

thread_local! {
    static KNOWN: RefCell<Option<Known>> = const { RefCell::new(None) };
}

/// The number of the caller's call stack. `enter` is asked for one that this thread has not had lately, which it is given as
/// return addresses, the innermost first.
#[inline(never)]
pub(super) fn number(enter: fn(&[usize]) -> u32) -> u32 {
    let here = 0u8;
    // Where this function's frame is, whose length is fixed.
    let anchor = ptr::from_ref(black_box(&here)).addr();
    let with_known = |look: &mut dyn FnMut(&mut Known)| {
        // Fails while the thread ends, and where a signal's handler has interrupted this.
        KNOWN.try_with(|known| known.try_borrow_mut().map(|mut known| look(Known::of(&mut known)))).ok();
    };
    let mut found = None;
    with_known(&mut |known| found = known.find(anchor));
    found.unwrap_or_else(|| {
        let stack = unwind(anchor);
        let number = enter(&stack.addresses[..stack.depth]);
        with_known(&mut |known| known.learn(anchor, &stack, number));
        number
    })
}

/// What the unwinder finds outside of [`number`].
struct Stack {
    addresses: [usize; DEEPEST],
    /// The stack pointer of each frame, once what it called has returned.
    pointers: [usize; DEEPEST],
    depth: usize,
}

#[cold]
#[inline(never)]
fn unwind(anchor: usize) -> Stack {
    let mut stack = Stack { addresses: [0; DEEPEST], pointers: [0; DEEPEST], depth: 0 };
    let next = |frame: &backtrace::Frame| {
        let (ip, sp) = (frame.ip().addr(), frame.sp().addr());
        if ip == 0 {
            // Behind the first function of the program.
            return false;
        }
        // Frames of the unwinder, and of this file. Not every system says where they are.
        if sp == 0 || sp > anchor {
            stack.addresses[stack.depth] = ip;
            stack.pointers[stack.depth] = sp;
            stack.depth += 1;
        }
        stack.depth < DEEPEST
    };
    // SAFETY: this is the system's `_Unwind_Backtrace`, which threads may call at once: C++ exceptions do. What
    // `backtrace::trace` adds is a lock, which another thread holds while it looks up lines.
    unsafe { backtrace::trace_unsynchronized(next) };
    stack
}

/// The stacks that a thread has had.
struct Known {
    /// The thread's stack. Empty where that is not known.
    bounds: Range<usize>,
    /// Whose numbers are remembered: a forked child counts anew.
    process: Process,
    nodes: Vec<Node>,
    /// By the node inside and the return address; roots are by [`ROOT`] and the anchor.
    index: FxHashMap<(u32, usize), u32>,
}

const ROOT: u32 = u32::MAX;

/// A frame with all that are inside it.
#[derive(Clone, Copy)]
enum Node {
    /// The return address of the next one out lies here, within the thread's stack.
    Inner { slot: usize },
    /// It is the outermost, and the stack has this number.
    Outermost { number: u32 },
}

impl Known {
    fn of(this: &mut Option<Self>) -> &mut Self {
        let known = this.get_or_insert_with(|| Self {
            bounds: thread_stack(),
            process: Process::here(),
            nodes: Vec::new(),
            index: FxHashMap::default(),
        });
        if !known.process.is_here() {
            known.forget();
        }
        known
    }

    fn forget(&mut self) {
        self.process = Process::here();
        self.nodes.clear();
        self.index.clear();
    }

    #[inline]
    fn find(&self, anchor: usize) -> Option<u32> {
        let mut at = *self.index.get(&(ROOT, anchor))?;
        loop {
            match self.nodes[at as usize] {
                Node::Outermost { number } => return Some(number),
                Node::Inner { slot } => at = *self.index.get(&(at, read(slot)))?,
            }
        }
    }

    /// Remembers a stack, if all its return addresses lie where this thread can find them again.
    fn learn(&mut self, anchor: usize, stack: &Stack, number: u32) {
        let depth = stack.depth;
        let mut slots = [0; DEEPEST];
        let mut inside = anchor;
        for ((slot, &pointer), &address) in
            slots.iter_mut().zip(&stack.pointers).zip(&stack.addresses[..depth])
        {
            // Where calls push the return address. Elsewhere the unwinder is asked each time.
            *slot = pointer.wrapping_sub(size_of::<usize>());
            let is_further_out = *slot > inside && slot.is_multiple_of(align_of::<usize>());
            if !is_further_out || !self.is_ours(inside) || !self.is_ours(*slot) || read(*slot) != address {
                return;
            }
            inside = *slot;
        }
        if depth == 0 {
            return;
        }
        if self.nodes.len() + depth >= MOST_NODES {
            self.forget();
        }
        let mut at = self.child((ROOT, anchor), Node::Inner { slot: slots[0] });
        for (place, &address) in stack.addresses[..depth].iter().enumerate() {
            let node = match slots[..depth].get(place + 1) {
                Some(&slot) => Node::Inner { slot },
                None => Node::Outermost { number },
            };
            at = self.child((at, address), node);
        }
    }

    /// The child of a node. What was known of it before is no longer so: frames of varying length.
    fn child(&mut self, key: (u32, usize), node: Node) -> u32 {
        let new = self.nodes.len() as u32;
        let number = *self.index.entry(key).or_insert(new);
        match self.nodes.get_mut(number as usize) {
            Some(known) => *known = node,
            None => self.nodes.push(node),
        }
        number
    }

    /// Whether a whole word of this thread's stack is there.
    fn is_ours(&self, address: usize) -> bool {
        self.bounds.contains(&address) && self.bounds.end - address >= size_of::<usize>()
    }
}

/// The word at an address that was [looked at](Known::is_ours) by this thread.
#[inline]
fn read(slot: usize) -> usize {
    // SAFETY: an aligned word of this thread's stack, further out than a frame that is there: nobody writes to it
    // meanwhile. (`learn` has checked that it is within the stack's bounds, which stay.)
    unsafe { ptr::with_exposed_provenance::<usize>(slot).read_volatile() }
}

/// The addresses of the calling thread's stack; empty where the system does not say.
#[cfg(all(target_os = "linux", target_arch = "x86_64", not(miri)))]
fn thread_stack() -> Range<usize> {
    use std::mem::MaybeUninit;
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    // SAFETY: fills in the attributes of the calling thread.
    if unsafe { libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) } != 0 {
        return 0..0;
    }
    let (mut start, mut bytes) = (ptr::null_mut(), 0);
    // SAFETY: they were filled in.
    let found = unsafe { libc::pthread_attr_getstack(attributes.as_ptr(), &mut start, &mut bytes) };
    // SAFETY: as above, and this is the last use.
    unsafe { libc::pthread_attr_destroy(attributes.as_mut_ptr()) };
    if found == 0 { start.addr()..start.addr() + bytes } else { 0..0 }
}

#[cfg(not(all(target_os = "linux", target_arch = "x86_64", not(miri))))]
fn thread_stack() -> Range<usize> {
    0..0
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::HashSet;

    use super::*;

    thread_local! {
        static STACKS: RefCell<Vec<Vec<usize>>> = const { RefCell::new(Vec::new()) };
        static UNWOUND: Cell<usize> = const { Cell::new(0) };
    }

    /// As the caller of [`number`] does.
    #[inline(never)]
    fn numbered() -> u32 {
        let number = number(|stack| {
            UNWOUND.set(UNWOUND.get() + 1);
            STACKS.with_borrow_mut(|stacks| {
                let known = stacks.iter().position(|known| known == stack);
                known.unwrap_or_else(|| {
                    stacks.push(stack.to_vec());
                    stacks.len() - 1
                }) as u32
            })
        });
        black_box(number)
    }

    #[inline(never)]
    fn deeper(depth: usize, ways: usize) -> u32 {
        if depth == 0 {
            return numbered();
        }
        let number =
            if ways.is_multiple_of(2) { left(depth - 1, ways / 2) } else { right(depth - 1, ways / 2) };
        black_box(number)
    }

    #[inline(never)]
    fn left(depth: usize, ways: usize) -> u32 {
        black_box(deeper(depth, ways))
    }

    // Another function for the compiler, too.
    #[inline(never)]
    fn right(depth: usize, ways: usize) -> u32 {
        !black_box(deeper(depth, ways))
    }

    /// The numbers of a stack that is had so often, by one call site. `between` comes before each.
    fn numbers(depth: usize, ways: usize, times: usize, between: fn()) -> HashSet<u32> {
        let once = |_| {
            between();
            deeper(depth, ways)
        };
        // A number that the compiler does not know, or it would make several calls of one.
        (0..black_box(times)).map(once).collect()
    }

    fn forget() {
        KNOWN.with_borrow_mut(|known| Known::of(known).forget());
    }

    #[test]
    fn the_same_stack_has_the_same_number() {
        let one = numbers(0, 0, 3, || ());
        let other = numbers(5, 0, 3, || ());
        assert_eq!((one.len(), other.len(), one == other), (1, 1, false));
    }

    #[test]
    fn a_known_stack_is_the_one_that_the_unwinder_finds() {
        for round in 0..3 {
            for depth in [0, 1, 5, 20, 100] {
                for ways in 0..8 {
                    let unwound = numbers(depth, ways, 2, forget);
                    let known = numbers(depth, ways, 3, || ());
                    assert_eq!((unwound.len(), known.len()), (1, 1), "round {round}, {depth} deep");
                }
            }
        }
    }

    #[cfg(all(target_os = "linux", target_arch = "x86_64", not(miri)))]
    #[test]
    fn a_stack_is_unwound_once() {
        for ways in 0..4 {
            let before = UNWOUND.get();
            numbers(10, ways, 100, || ());
            assert_eq!(UNWOUND.get(), before + 1);
        }
    }

    #[test]
    fn a_thread_forgets_rather_than_fill_memory() {
        (0..2 * MOST_NODES / 100).for_each(|ways| _ = deeper(100, ways));
        KNOWN.with_borrow_mut(|known| assert!(Known::of(known).nodes.len() <= MOST_NODES));
        assert_eq!(numbers(30, 3, 5, || ()).len(), 1);
    }

    #[cfg(all(target_os = "linux", target_arch = "x86_64", not(miri)))]
    #[test]
    fn what_lies_outside_the_threads_stack_is_not_read() {
        KNOWN.with_borrow_mut(|known| Known::of(known).bounds = 0..0);
        let before = UNWOUND.get();
        assert_eq!((numbers(10, 0, 3, || ()).len(), UNWOUND.get() - before), (1, 3));
    }
}
