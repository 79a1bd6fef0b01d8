//! What is said of a recording before anything that is found in it.

use millpond::HumanBytes;
use millpond_replay::replay::Program;
use millpond_replay::trace::Trace;

use crate::replay_tables::wrapped;
use crate::screen::{count, remark, say};

/// Says what was recorded. Returns what is to be remarked about the file.
pub(crate) fn introduce(trace: &Trace, program: &Program) -> Vec<String> {
    let mut line = format!(
        "{}: {}, {}, {:.1} s; requested at most {}",
        trace.name,
        count(program.blocks as u64, "block"),
        count(program.streams as u64, "stream"),
        trace.wall_us as f64 / 1e6,
        HumanBytes(program.peak_requested().0),
    );
    if let Some(reserved) = trace.recorded_reserved {
        line += &format!(", reserved in the recorded run {}", HumanBytes(reserved));
    }
    say(&wrapped(&line));
    if !trace.live_before.is_empty() {
        let (before, were) =
            (trace.live_before.len(), if trace.live_before.len() == 1 { "was" } else { "were" });
        say(&format!("{} {were} live before the recording began", count(before as u64, "block")));
    }
    if !trace.settings.is_empty() {
        say(&wrapped(&format!("recorded with PYTORCH_CUDA_ALLOC_CONF={}", trace.settings)));
    }
    if let Some(oom) = trace.recorded_ooms.first() {
        say(&format!("the recorded run found no memory for {}", HumanBytes(oom.size)));
    }
    let mut remarks = trace.remarks.clone();
    if trace.lost_frees > 0 {
        remarks.push(format!(
            "an address was allocated twice without a free between, {}: the recording lost events",
            count(trace.lost_frees, "time")
        ));
    }
    remarks.iter().for_each(|said| remark(&format!("{}: {said}", trace.name)));
    say("");
    remarks
}
