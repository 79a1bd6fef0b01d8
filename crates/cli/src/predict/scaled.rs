//! `--recording`: what a recorded job would need at another size.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use millpond::HumanBytes;
use millpond_baselines::{Caching, MILLPOND};
use millpond_replay::fit::{CONTEXT_BYTES, Card};
use millpond_replay::replay::{FreeWhen, Program};
use millpond_replay::scaling::{Part, Recorded, Scaled};
use millpond_replay::trace::Trace;
use serde::Serialize;

use super::needs::Needs;
use crate::error::{Error, Result};
use crate::outputs::write_json;
use crate::outputs::{Output, refuse_clashes};
use crate::terminal::{columns, remark, say, table, wrapped};
use crate::traces::{cut, read_traces};

/// A size by its name: a batch of 8.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Size {
    name: String,
    value: f64,
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let size = text.split_once('=').and_then(|(name, value)| {
            let value = value.parse().ok().filter(|value: &f64| value.is_finite() && *value > 0.0)?;
            (!name.is_empty()).then(|| Self { name: name.to_owned(), value })
        });
        size.ok_or_else(|| format!("'{text}' should be a name and a number above 0, such as batch=64"))
    }
}

/// A file, and the size of the job in it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Recording {
    path: PathBuf,
    size: Size,
}

impl FromStr for Recording {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let (path, size) = text
            .rsplit_once(':')
            .ok_or_else(|| format!("'{text}' should end with a size, as in a.mprec:batch=8"))?;
        Ok(Self { path: path.into(), size: size.parse()? })
    }
}

/// What is told, in the shape that `--json` writes. Sizes in bytes.
#[derive(Debug, Serialize)]
struct ScaledJson {
    scale: Size,
    peak_requested: u64,
    parts: Vec<Part>,
    needs: Vec<Needs>,
    recordings: Vec<ToldRecording>,
}

#[derive(Debug, Serialize)]
struct ToldRecording {
    trace: String,
    size: f64,
    peak_requested: u64,
    /// By how much its own peak is missed, as a part of it.
    error: f64,
}

/// Predicts the job at this size.
pub(super) fn run(recordings: &[Recording], scale: &Size, json: Option<&Path>) -> Result<()> {
    refuse_what_is_no_scale(recordings, scale)?;
    let read: Vec<&Path> = recordings.iter().map(|recording| recording.path.as_path()).collect();
    refuse_clashes(&read, &[json])?;
    let json = json.map(Output::open).transpose()?;
    let traces = read_all(recordings)?;
    let sizes = recordings.iter().map(|recording| recording.size.value);
    let sized: Vec<_> = traces.iter().zip(sizes).map(|(trace, at)| Recorded { at, trace }).collect();
    let Some(scaled) = Scaled::of(&sized, scale.value) else { return Ok(()) };
    let each = sized.iter().zip(Scaled::errors(&sized));
    let told = ScaledJson {
        scale: scale.clone(),
        peak_requested: scaled.program.peak_requested().0,
        needs: Needs::with(
            &[MILLPOND, Caching::NAME],
            sized[0].trace,
            &scaled.program,
            &Card::all(),
            CONTEXT_BYTES,
        )?,
        parts: scaled.parts,
        recordings: each
            .map(|(Recorded { at, trace }, error)| ToldRecording {
                trace: trace.name.clone(),
                size: *at,
                peak_requested: peak(trace),
                error,
            })
            .collect(),
    };
    show(&told);
    json.map_or(Ok(()), |file| write_json(file, &told))
}

fn refuse_what_is_no_scale(recordings: &[Recording], scale: &Size) -> Result<()> {
    let sizes: Vec<_> = recordings.iter().map(|recording| &recording.size).collect();
    if let Some(other) = sizes.iter().find(|size| size.name != scale.name) {
        let (name, scale) = (&other.name, &scale.name);
        return Err(Error::Usage(format!(
            "a recording has {name}, and --scale {scale}: give both the same name"
        )));
    }
    if sizes.iter().all(|size| size.value == sizes[0].value) {
        return Err(Error::Usage(
            "what grows is seen in recordings of two sizes: add --recording TRACE:NAME=SIZE of another"
                .to_owned(),
        ));
    }
    Ok(())
}

/// The trace of each recording. Of several devices in a file, it is the one that requests most in the first file.
fn read_all(recordings: &[Recording]) -> Result<Vec<Trace>> {
    let mut device = None;
    let each = recordings.iter().map(|recording| {
        let (mut traces, name) = (read_traces(&recording.path)?, recording.path.display());
        if device.is_none() {
            let most = traces.iter().max_by_key(|trace| peak(trace)).map(|trace| trace.device);
            if let Some(most) = most.filter(|_| traces.len() > 1) {
                remark(&format!(
                    "{name}: of {} devices, {most} requests most, and is looked at",
                    traces.len()
                ));
            }
            device = most;
        }
        traces.retain(|trace| Some(trace.device) == device);
        match traces.pop() {
            None => Err(Error::Usage(format!(
                "{name}: has not the device of the first recording; record the same job"
            ))),
            Some(trace) if trace.stacks.is_empty() => Err(Error::Usage(format!(
                "{name}: names no call sites; record them, as docs/recording.md says"
            ))),
            Some(trace) => Ok(trace),
        }
    });
    each.collect()
}

/// The most bytes requested at once.
fn peak(trace: &Trace) -> u64 {
    Program::new(trace, FreeWhen::Completed).peak_requested().0
}

fn show(told: &ScaledJson) {
    let Size { name, value } = &told.scale;
    let peak = told.peak_requested;
    say(&format!("{name}={value}: requests {} at most", HumanBytes(peak)));
    let grows: f64 = told.parts.iter().map(|part| part.for_each).sum();
    let grows = HumanBytes(grows.max(0.0).round() as u64);
    say(&format!("Each {name} adds {grows} to that.\n"));
    let mut lines = vec![["at the peak", "for each", "who"].map(str::to_owned).to_vec()];
    lines.extend(told.parts.iter().take(MOST_PARTS).map(|part| {
        let for_each = HumanBytes(part.for_each.max(0.0).round() as u64).to_string();
        vec![HumanBytes(part.bytes).to_string(), for_each, cut(&part.site, WHO.max(columns() - BEFORE_WHO))]
    }));
    say(&format!("{}\n", table(&lines)));
    let mut lines =
        vec![["allocator", "needs", "reserved", "smallest card, GiB"].map(str::to_owned).to_vec()];
    lines.extend(told.needs.iter().map(|needs| {
        let bytes = needs.needs.map_or("-".to_owned(), |bytes| HumanBytes(bytes).to_string());
        let card = needs.cards.first().cloned().unwrap_or_else(|| "none".to_owned());
        vec![needs.allocator.to_owned(), bytes, HumanBytes(needs.reserved).to_string(), card]
    }));
    say(&format!("{}\n", table(&lines)));
    let mut lines = vec![["recorded at", "requested", "predicted", "trace"].map(str::to_owned).to_vec()];
    lines.extend(told.recordings.iter().map(|recording| {
        let ToldRecording { trace, size, peak_requested, error } = recording;
        let (size, requested) = (format!("{name}={size}"), HumanBytes(*peak_requested).to_string());
        vec![size, requested, format!("{:+.1} %", error * 100.0), cut(trace, WHO)]
    }));
    say(&table(&lines));
    say(&wrapped(
        match told.recordings.len() {
            2 => "(predicted: from the other recording, by what grew between the two)",
            _ => "(predicted: from the other recordings alone)",
        },
        WIDTH,
    ));
}

/// Call sites that are shown, and columns of their names.
const MOST_PARTS: usize = 12;
const WHO: usize = 50;

/// Columns of the two figures before a name.
const BEFORE_WHO: usize = 30;

/// Columns of a terminal.
const WIDTH: usize = 80;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_has_its_size_at_the_end() {
        let recording: Recording = "/a:b/c.mprec:batch=8".parse().unwrap();
        assert_eq!(recording.path, Path::new("/a:b/c.mprec"));
        assert_eq!(recording.size, Size { name: "batch".to_owned(), value: 8.0 });
        for wrong in ["a.mprec", "a.mprec:batch", "a.mprec:batch=0", "a.mprec:=8", "a.mprec:batch=x"] {
            assert!(wrong.parse::<Recording>().unwrap_err().contains("batch="), "{wrong}");
        }
    }
}
