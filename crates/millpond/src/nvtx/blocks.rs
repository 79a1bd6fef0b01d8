//! The segments of the device that pools have, and the bytes in them that programs have: compute-sanitizer then reports each access
//! of a kernel to others.
//!
//! A segment is a *heap* of NVTX, and a block that a program holds is a *region* of it. What is in a heap and in no region is
//! out of bounds for kernels that are launched meanwhile; those at work go on by what was true at their launch. (Seen with
//! compute-sanitizer 2025.3.1. It takes heaps of `cuMemAlloc`, whole, and none of `cuMemMap`. Those of managed memory it takes, but
//! not always.)

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::mem::transmute;
use std::ptr::{self, NonNull};

use super::injection::{MEMORY, MEMORY_COMPATIBILITY, asks_of_memory, function, tool};
use crate::system::lock::Mutex;
use crate::system::process::PerProcess;

type RegisterHeap = unsafe extern "C" fn(*mut c_void, *const HeapDescription) -> *mut c_void;
type UnregisterHeap = unsafe extern "C" fn(*mut c_void, *mut c_void);
type Register = unsafe extern "C" fn(*mut c_void, *const RegionsDescription);
type Unregister = unsafe extern "C" fn(*mut c_void, *const EndsDescription);

/// The functions that are called, of the tool or of a test.
#[derive(Debug, Clone, Copy)]
struct Calls {
    register_heap: RegisterHeap,
    unregister_heap: UnregisterHeap,
    register: Register,
    unregister: Unregister,
}

#[repr(C)]
struct Stretch {
    bytes: usize,
    start: *const c_void,
}

#[repr(C)]
struct HeapDescription {
    compatibility: u16,
    size: u16,
    reserved: u32,
    usage: u32,
    kind: u32,
    stretch_size: usize,
    stretch: *const Stretch,
    category: u32,
    message_type: u32,
    message: *const c_void,
}

#[repr(C)]
struct RegionsDescription {
    compatibility: u16,
    size: u16,
    kind: u32,
    heap: *mut c_void,
    count: usize,
    each: usize,
    stretches: *const Stretch,
    handles: *mut *mut c_void,
}

#[repr(C)]
struct EndsDescription {
    compatibility: u16,
    size: u16,
    kind: u32,
    count: usize,
    each: usize,
    starts: *const *const c_void,
}

/// The tool's handle of our domain.
fn domain() -> *mut c_void {
    tool().map_or(ptr::null_mut(), |tool| tool.domain)
}

fn address(at: u64) -> *const c_void {
    ptr::without_provenance(at as usize)
}

/// How long a block is the program's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Until {
    /// Until it is freed.
    Freed,
    /// As long as its segment: a captured graph uses it whenever it runs.
    SegmentEnds,
}

/// See the [module](self). Who frees a block tells of it afterwards, so that another thread may have told of the same bytes
/// before. So each block has the moment since when it is there, on any clock.
#[derive(Debug)]
pub(crate) struct Blocks {
    calls: Calls,
    segments: Mutex<BTreeMap<u64, CheckedSegment>>,
}

#[derive(Debug)]
struct CheckedSegment {
    bytes: u64,
    /// The tool's handle, as a number.
    heap: usize,
    blocks: BTreeMap<u64, CheckedBlock>,
}

#[derive(Debug, Clone, Copy)]
struct CheckedBlock {
    bytes: u64,
    since: u64,
    until: Until,
}

static OF_TOOL: PerProcess<Option<Blocks>> = PerProcess::new(|| Calls::of_tool().map(Blocks::new));

/// Where blocks are told of, if the tool that watches this process checks memory. Called once CUDA is initialized.
pub(crate) fn blocks() -> Option<&'static Blocks> {
    OF_TOOL.get().as_ref()
}

impl Calls {
    fn of_tool() -> Option<Self> {
        if !asks_of_memory() {
            return None;
        }
        let [register_heap, unregister_heap, register, unregister] =
            [0, 1, 3, 5].map(|number: usize| function(&MEMORY[number]));
        // SAFETY: the functions of these numbers have these types by NVTX.
        unsafe {
            Some(Self {
                register_heap: transmute::<NonNull<c_void>, RegisterHeap>(register_heap?),
                unregister_heap: transmute::<NonNull<c_void>, UnregisterHeap>(unregister_heap?),
                register: transmute::<NonNull<c_void>, Register>(register?),
                unregister: transmute::<NonNull<c_void>, Unregister>(unregister?),
            })
        }
    }

    fn begin_heap(&self, start: u64, bytes: u64) -> *mut c_void {
        let stretch = Stretch { bytes: bytes as usize, start: address(start) };
        let heap = HeapDescription {
            compatibility: MEMORY_COMPATIBILITY,
            size: size_of::<HeapDescription>() as u16,
            reserved: 0,
            // `NVTX_MEM_HEAP_USAGE_TYPE_…`: of a pool. `NVTX_MEM_TYPE_…`: by its address.
            usage: 1,
            kind: 1,
            stretch_size: size_of::<Stretch>(),
            stretch: &stretch,
            category: 0,
            message_type: 0,
            message: ptr::null(),
        };
        // SAFETY: the structures are read during the call.
        unsafe { (self.register_heap)(domain(), &heap) }
    }

    fn end_heap(&self, heap: usize) {
        // SAFETY: a handle that the tool gave, and that is not used again.
        unsafe { (self.unregister_heap)(domain(), ptr::with_exposed_provenance_mut(heap)) }
    }

    fn begin(&self, heap: usize, start: u64, bytes: u64) {
        let stretch = Stretch { bytes: bytes as usize, start: address(start) };
        let regions = RegionsDescription {
            compatibility: MEMORY_COMPATIBILITY,
            size: size_of::<RegionsDescription>() as u16,
            // `NVTX_MEM_TYPE_…`: by its address.
            kind: 1,
            heap: ptr::with_exposed_provenance_mut(heap),
            count: 1,
            each: size_of::<Stretch>(),
            stretches: &stretch,
            handles: ptr::null_mut(),
        };
        // SAFETY: the structures are read during the call.
        unsafe { (self.register)(domain(), &regions) }
    }

    fn end(&self, start: u64) {
        let start = address(start);
        let ends = EndsDescription {
            compatibility: MEMORY_COMPATIBILITY,
            size: size_of::<EndsDescription>() as u16,
            // `NVTX_MEM_REGION_REF_TYPE_…`: by its address.
            kind: 1,
            count: 1,
            each: size_of::<*const c_void>(),
            starts: &start,
        };
        // SAFETY: the structures are read during the call.
        unsafe { (self.unregister)(domain(), &ends) }
    }
}

impl Blocks {
    fn new(calls: Calls) -> Self {
        Self { calls, segments: Mutex::new(BTreeMap::new()) }
    }

    /// The device gave this segment to somebody, who may be no pool. So all of it counts as one block until there are others.
    pub(crate) fn begin_segment(&self, start: u64, bytes: u64) {
        let mut segments = self.segments.lock();
        let heap = self.calls.begin_heap(start, bytes);
        if !heap.is_null() {
            let heap = heap.expose_provenance();
            self.calls.begin(heap, start, bytes);
            let all = CheckedBlock { bytes, since: 0, until: Until::Freed };
            segments.insert(start, CheckedSegment { bytes, heap, blocks: BTreeMap::from([(start, all)]) });
        }
    }

    /// The segment is about to go back to the driver.
    pub(crate) fn end_segment(&self, start: u64) {
        if let Some(segment) = self.segments.lock().remove(&start) {
            segment.blocks.keys().for_each(|&start| self.calls.end(start));
            self.calls.end_heap(segment.heap);
        }
    }

    /// A program has this block. It counts for nothing where it is in no segment.
    pub(crate) fn begin(&self, start: u64, bytes: u64, since: u64, until: Until) {
        let mut segments = self.segments.lock();
        let Some(segment) = segment_of(&mut segments, start) else { return };
        let mut block = (start, CheckedBlock { bytes, since, until });
        // What overlaps was freed, and its end is told later. Only memory of graphs is handed out while another use lasts.
        while let Some((&at, &old)) = segment.blocks.range(..block.0 + block.1.bytes).next_back()
            && at + old.bytes > block.0
        {
            self.calls.end(at);
            segment.blocks.remove(&at);
            if (old.until, until) == (Until::SegmentEnds, Until::SegmentEnds) {
                let start = at.min(block.0);
                let end = (at + old.bytes).max(block.0 + block.1.bytes);
                block = (start, CheckedBlock { bytes: end - start, ..block.1 });
            }
        }
        let (start, block) = block;
        self.calls.begin(segment.heap, start, block.bytes);
        segment.blocks.insert(start, block);
    }

    /// A program freed the block that it had before this moment.
    pub(crate) fn end(&self, start: u64, before: u64) {
        let mut segments = self.segments.lock();
        let Some(segment) = segment_of(&mut segments, start) else { return };
        let is_it = |block: &CheckedBlock| block.since <= before && block.until == Until::Freed;
        if segment.blocks.get(&start).is_some_and(is_it) {
            segment.blocks.remove(&start);
            self.calls.end(start);
        }
    }
}

fn segment_of(segments: &mut BTreeMap<u64, CheckedSegment>, at: u64) -> Option<&mut CheckedSegment> {
    let (start, segment) = segments.range_mut(..=at).next_back()?;
    (at - start < segment.bytes).then_some(segment)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[derive(Debug, PartialEq, Eq)]
    enum Heard {
        Begun(u64, u64),
        HeapOver(u64),
        Begins(u64, u64),
        Over(u64),
    }
    use Heard::*;

    thread_local! {
        static HEARD: RefCell<Vec<Heard>> = const { RefCell::new(Vec::new()) };
    }

    fn hear(what: Heard) {
        HEARD.with_borrow_mut(|heard| heard.push(what));
    }

    fn heard() -> Vec<Heard> {
        HEARD.take()
    }

    unsafe extern "C" fn register_heap(_: *mut c_void, heap: *const HeapDescription) -> *mut c_void {
        // SAFETY: readable during the call.
        let stretch = unsafe { &*(*heap).stretch };
        hear(Begun(stretch.start.addr() as u64, stretch.bytes as u64));
        stretch.start.cast_mut()
    }

    unsafe extern "C" fn unregister_heap(_: *mut c_void, heap: *mut c_void) {
        hear(HeapOver(heap.addr() as u64));
    }

    unsafe extern "C" fn register(_: *mut c_void, regions: *const RegionsDescription) {
        // SAFETY: readable during the call.
        let stretch = unsafe { &*(*regions).stretches };
        hear(Begins(stretch.start.addr() as u64, stretch.bytes as u64));
    }

    unsafe extern "C" fn unregister(_: *mut c_void, ends: *const EndsDescription) {
        // SAFETY: readable during the call.
        hear(Over(unsafe { *(*ends).starts }.addr() as u64));
    }

    fn blocks() -> Blocks {
        let blocks = Blocks::new(Calls { register_heap, unregister_heap, register, unregister });
        blocks.begin_segment(0x1000, 0x1000);
        assert_eq!(heard(), [Begun(0x1000, 0x1000), Begins(0x1000, 0x1000)]);
        blocks.begin(0x1f00, 1, 1, Until::Freed);
        blocks.end(0x1f00, 1);
        assert_eq!(heard(), [Over(0x1000), Begins(0x1f00, 1), Over(0x1f00)]);
        blocks
    }

    #[test]
    fn a_segment_without_blocks_is_one() {
        let blocks = blocks();
        blocks.begin_segment(0x8000, 0x1000);
        blocks.end_segment(0x8000);
        assert_eq!(heard(), [Begun(0x8000, 0x1000), Begins(0x8000, 0x1000), Over(0x8000), HeapOver(0x8000)]);
    }

    #[test]
    fn a_block_is_told_of_from_its_allocation_to_its_free() {
        let blocks = blocks();
        blocks.begin(0x1200, 100, 1, Until::Freed);
        blocks.end(0x1200, 2);
        blocks.end(0x1200, 3);
        assert_eq!(heard(), [Begins(0x1200, 100), Over(0x1200)]);
    }

    #[test]
    fn what_is_in_no_segment_is_passed_over() {
        let blocks = blocks();
        for at in [0x200, 0x2000] {
            blocks.begin(at, 100, 1, Until::Freed);
            blocks.end(at, 2);
        }
        assert_eq!(heard(), []);
    }

    #[test]
    fn a_free_that_is_told_late_leaves_the_next_block() {
        let blocks = blocks();
        blocks.begin(0x1200, 100, 1, Until::Freed);
        blocks.begin(0x1200, 200, 3, Until::Freed);
        blocks.end(0x1200, 2);
        assert_eq!(heard(), [Begins(0x1200, 100), Over(0x1200), Begins(0x1200, 200)]);
        // Joined with what was free beside it.
        blocks.begin(0x1000, 0x400, 5, Until::Freed);
        blocks.end(0x1200, 4);
        assert_eq!(heard(), [Over(0x1200), Begins(0x1000, 0x400)]);
    }

    #[test]
    fn memory_of_graphs_stays_the_program_s_until_its_segment_ends() {
        let blocks = blocks();
        blocks.begin(0x1200, 0x200, 1, Until::SegmentEnds);
        blocks.end(0x1200, 2);
        blocks.begin(0x1300, 0x200, 3, Until::SegmentEnds);
        assert_eq!(heard(), [Begins(0x1200, 0x200), Over(0x1200), Begins(0x1200, 0x300)]);
        blocks.end_segment(0x1000);
        assert_eq!(heard(), [Over(0x1200), HeapOver(0x1000)]);
    }

    #[test]
    fn another_block_takes_the_place_of_a_graph_s_memory() {
        let blocks = blocks();
        blocks.begin(0x1200, 0x200, 1, Until::SegmentEnds);
        blocks.begin(0x1200, 0x100, 3, Until::Freed);
        assert_eq!(heard(), [Begins(0x1200, 0x200), Over(0x1200), Begins(0x1200, 0x100)]);
    }
}
