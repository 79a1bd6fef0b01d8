//! What is said of a recording before anything that is found in it.

use millpond::HumanBytes;
use millpond_replay::replay::Program;
use millpond_replay::trace::Trace;

use super::tables::wrapped;
use crate::terminal::{count, remark, say};

/// Says what was recorded. Returns what is to be remarked about the file.
pub(crate) fn say_summary(trace: &Trace, program: &Program) -> Vec<String> {
    if let Some(lacks) = &trace.lacks {
        say(&wrapped(&format!(
            "{}: {lacks}. So the job may need more than what follows says, and no card is promised.\n",
            trace.name
        )));
    }
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
    if !trace.settings.is_empty() {
        say(&wrapped(&format!("recorded with PYTORCH_CUDA_ALLOC_CONF={}", trace.settings)));
    }
    let remarks = trace.remarks.clone();
    remarks.iter().for_each(|said| remark(&format!("{}: {said}", trace.name)));
    say("");
    trace.lacks.clone().into_iter().chain(remarks).collect()
}
