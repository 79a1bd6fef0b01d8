//! The list of trace events in a JSON file that Perfetto and Chrome open.

use std::io::Write;

use serde::Serialize;
use serde_json::json;

use super::ExportError;

/// The list of events that is being written. Each allocator is a process in it.
pub(super) struct TraceEvents<'a> {
    out: &'a mut dyn Write,
    processes: u32,
    is_first: bool,
}

/// One line of a process.
#[derive(Serialize)]
struct Counter<'a> {
    name: &'a str,
    ph: &'static str,
    pid: u32,
    ts: u64,
    args: Bytes,
}

#[derive(Serialize)]
struct Bytes {
    bytes: u64,
}

impl<'a> TraceEvents<'a> {
    pub(super) fn begin(out: &'a mut dyn Write) -> Result<Self, ExportError> {
        write!(out, "{{\"displayTimeUnit\":\"ms\",\"traceEvents\":[")?;
        Ok(Self { out, processes: 0, is_first: true })
    }

    pub(super) fn end(self) -> Result<(), ExportError> {
        write!(self.out, "]}}")?;
        Ok(())
    }

    /// The number of the process that began last.
    pub(super) fn pid(&self) -> u32 {
        self.processes - 1
    }

    pub(super) fn push(&mut self, event: &impl Serialize) -> Result<(), ExportError> {
        if !std::mem::take(&mut self.is_first) {
            write!(self.out, ",")?;
        }
        serde_json::to_writer(&mut *self.out, event).map_err(std::io::Error::from)?;
        Ok(())
    }

    /// Begins a process. They are shown in the order in which they come.
    pub(super) fn process(&mut self, name: &str) -> Result<(), ExportError> {
        self.processes += 1;
        let pid = self.pid();
        for (what, args) in
            [("process_name", json!({ "name": name })), ("process_sort_index", json!({ "sort_index": pid }))]
        {
            self.push(&json!({ "name": what, "ph": "M", "pid": pid, "args": args }))?;
        }
        Ok(())
    }

    pub(super) fn counter(&mut self, name: &str, ts: u64, bytes: u64) -> Result<(), ExportError> {
        self.push(&Counter { name, ph: "C", pid: self.pid(), ts, args: Bytes { bytes } })
    }
}
