//! Everything the checker remembers, and the rules for handles.

use super::advice::Advised;
use super::blocks::Blocks;
use super::clock::{DeviceNumber, StreamKey};
use super::memory::Memory;
use super::order::Order;
use super::report::{Report, Rule, Trace, Violation};
use crate::device::{DeviceError, DeviceResult, EventHandle, StreamHandle};

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) order: Order,
    pub(super) memory: Memory,
    pub(super) blocks: Blocks,
    pub(super) advised: Advised,
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

    pub(super) fn stream(
        &mut self,
        call: &'static str,
        stream: (DeviceNumber, StreamHandle),
    ) -> DeviceResult<StreamKey> {
        let known = self.order.stream(stream);
        let unknown = || format!("{:#x} is no stream, or was destroyed", stream.1.raw());
        self.require(call, known.ok_or_else(unknown))
    }

    pub(super) fn event(&mut self, call: &'static str, handle: EventHandle) -> DeviceResult<()> {
        let known = self.order.knows_event(handle);
        let known = known.then_some(());
        self.require(call, known.ok_or_else(|| format!("{:#x} is no event, or was destroyed", handle.raw())))
    }
}
