//! Everything the checker remembers, and the rules for device calls.

use super::blocks::Blocks;
use super::clock::StreamKey;
use super::memory::{Mapping, Memory};
use super::order::Order;
use super::report::{Report, Rule, Trace, Violation};
use crate::device::{DeviceError, DevicePtr, DeviceResult, EventHandle, StreamHandle};

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) order: Order,
    pub(super) memory: Memory,
    pub(super) blocks: Blocks,
    pub(super) trace: Trace,
    violations: Vec<Violation>,
    calls_before: Vec<String>,
}

impl State {
    pub(super) fn report(&mut self, rule: Rule, text: String) {
        if self.violations.is_empty() {
            self.calls_before = self.trace.text();
        }
        self.violations.push(Violation { rule, text });
    }

    pub(super) fn verdict(&self) -> Result<(), Report> {
        if self.violations.is_empty() {
            return Ok(());
        }
        Err(Report { violations: self.violations.clone(), calls: self.calls_before.clone() })
    }

    /// What was not given back.
    pub(super) fn leaks(&self) -> Vec<Violation> {
        let streams = self.order.streams_left().map(|stream| format!("stream {:#x}", stream.raw()));
        let events = self.order.events_left().map(|event| format!("event {:#x}", event.raw()));
        let blocks = self.blocks.live().map(|block| format!("{} is live", self.block_name(block)));
        let left = self.memory.left().into_iter().chain(streams).chain(events).chain(blocks);
        left.map(|text| Violation { rule: Rule::Leak, text }).collect()
    }

    /// Reports what is wrong with a call, and refuses it: a real device need not survive it.
    pub(super) fn require<T>(&mut self, call: &'static str, checked: Result<T, String>) -> DeviceResult<T> {
        checked.map_err(|what| {
            self.report(Rule::DeadHandle, format!("{call}: {what}"));
            DeviceError::Invalid { call, what }
        })
    }

    /// Notes where the device below finds a call wrong.
    pub(super) fn judge<T>(&mut self, result: DeviceResult<T>) -> DeviceResult<T> {
        if let Err(error @ DeviceError::Invalid { .. }) = &result {
            self.report(Rule::Refused, error.to_string());
        }
        result
    }

    pub(super) fn stream(&mut self, call: &'static str, handle: StreamHandle) -> DeviceResult<StreamKey> {
        let known = self.order.stream(handle);
        self.require(call, known.ok_or_else(|| format!("{:#x} is no stream, or was destroyed", handle.raw())))
    }

    pub(super) fn event(&mut self, call: &'static str, handle: EventHandle) -> DeviceResult<()> {
        let known = self.order.knows_event(handle);
        let known = known.then_some(());
        self.require(call, known.ok_or_else(|| format!("{:#x} is no event, or was destroyed", handle.raw())))
    }

    /// A mapping may go only when all work through it is known to be complete, and no block lives in it.
    pub(super) fn check_unmap(&mut self, at: DevicePtr, bytes: u64) -> DeviceResult<()> {
        let pending = self.memory.check_unmap(at, bytes).map(|mapping| self.pending(mapping));
        if let Some(why) = self.require("unmap", pending)? {
            self.report(Rule::UnmapUnderWork, format!("unmap of {bytes} bytes at {at}: {why}"));
        }
        self.report_live_in("unmap", at, bytes);
        Ok(())
    }

    fn pending(&self, mapping: &Mapping) -> Option<String> {
        let pending = mapping.uses.iter().find(|work| !self.order.is_known_complete(*work))?;
        Some(self.order.explain_pending(pending))
    }
}
