//! Planted violations: each rule is broken on purpose and must be seen, and the same done rightly must pass.

mod allocator;
mod handles;
mod managed;
mod mappings;
mod ordering;
mod peers;

use std::sync::Arc;

use super::{BlockId, CheckerDevice, Rule};
use crate::device::sim::{Hold, SimDevice, SimOptions};
use crate::device::{Device, DevicePtr, PageHandle, StreamHandle};
use crate::testing::trusted::Trusted;

const PAGE: u64 = 2 << 20;

type Checker = Trusted<Arc<CheckerDevice>>;

/// A checker over a simulated device, with one range of four pages' size.
struct Bench {
    sim: Arc<SimDevice>,
    checker: Checker,
    range: DevicePtr,
}

impl Bench {
    fn new() -> Self {
        let sim = SimDevice::new(SimOptions { capacity: 64 << 20, ..SimOptions::default() }).unwrap();
        // SAFETY: the checker sees what is not valid, and below it are no bytes.
        let checker = unsafe { Trusted::new(CheckerDevice::new(sim.clone())) };
        let range = checker.reserve(4 * PAGE).unwrap();
        Self { sim, checker, range }
    }

    /// The address `pages` pages and `bytes` bytes into the range.
    fn at(&self, pages: u64, bytes: u64) -> DevicePtr {
        self.range.offset(pages * PAGE + bytes)
    }

    fn map(&self, pages: u64, page: PageHandle) {
        self.checker.map(self.at(pages, 0), PAGE, page).unwrap();
        self.checker.set_access(self.at(pages, 0), PAGE).unwrap();
    }

    fn new_page_at(&self, pages: u64) -> PageHandle {
        let page = self.checker.create_page(PAGE).unwrap();
        self.map(pages, page);
        page
    }

    fn unmap(&self, pages: u64) {
        // SAFETY: nothing runs on a simulated device; whether it could is what is tested.
        unsafe { self.checker.unmap(self.at(pages, 0), PAGE) }.unwrap();
    }

    /// A stream whose work stays pending as long as the hold is kept.
    fn held_stream(&self) -> (StreamHandle, Hold) {
        let stream = self.checker.create_stream().unwrap();
        (stream, self.sim.hold(stream).unwrap())
    }

    /// Orders later work on `after` behind the work given to `before`.
    fn order(&self, before: StreamHandle, after: StreamHandle) {
        let event = self.checker.create_event().unwrap();
        self.checker.record_event(event, before).unwrap();
        self.checker.wait_event(after, event).unwrap();
        // SAFETY: the event is not used again.
        unsafe { self.checker.destroy_event(event) }.unwrap();
    }

    fn free(&self, block: BlockId, stream: StreamHandle) {
        let _freed = self.checker.freed(block, stream);
    }

    fn passes(&self) {
        self.checker.verify().unwrap();
    }

    /// Exactly this rule was broken, once.
    fn breaks(&self, rule: Rule) {
        let report = self.checker.verify().expect_err("the planted violation was not seen");
        let rules: Vec<_> = report.violations.iter().map(|violation| violation.rule).collect();
        assert_eq!(rules, [rule], "{report}");
    }
}
