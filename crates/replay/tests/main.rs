//! Tests of reading and replaying traces, through the public interface.

mod cuda;
mod difference;
mod dumps;
mod growth;
mod large_traces;
mod recordings;
mod report_in_browser;
mod shared;
mod snapshots;
