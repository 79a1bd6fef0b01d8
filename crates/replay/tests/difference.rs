//! What differs between moments of recordings of real jobs.

use std::path::{Path, PathBuf};

use millpond_replay::difference::{At, Difference};
use millpond_replay::moment::{Moment, NoMoment};
use millpond_replay::read::{Limits, read};
use millpond_replay::replay::{FreeWhen, Program};
use millpond_replay::steps::Steps;
use millpond_replay::trace::Trace;

fn recordings() -> Vec<Trace> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let here = ["gnn_stacks.pickle.gz", "pipeline_streams_stacks.pickle.gz"]
        .map(|name| root.join("tests/data").join(name));
    let jobs = ["gnn", "gpt_varlen"].map(|name| root.join(format!("../../data/traces/{name}.pickle.zst")));
    let all: Vec<PathBuf> = here.into_iter().chain(jobs).collect();
    all.iter().map(|path| read(path, Limits::default()).unwrap().remove(0)).collect()
}

fn at<'a>(trace: &'a Trace, moment: &str) -> Result<At<'a>, NoMoment> {
    let program = Program::new(trace, FreeWhen::Completed);
    let moment: Moment = moment.parse()?;
    let steps = moment.steps(trace, &program, &Steps::found(trace, &program))?;
    Ok(At::new(trace, &program, &moment, steps))
}

fn sums_to_the_byte(difference: &Difference) {
    let sum: i64 = difference.changes.iter().map(|change| change.change).sum();
    let requested = difference.to.requested as i64 - difference.from.requested as i64;
    assert_eq!((sum, difference.requested), (requested, requested), "{difference:?}");
    if let Some((before, after)) = difference.from.held.zip(difference.to.held) {
        let held = after as i64 - before as i64;
        assert_eq!(difference.held, Some(held));
        assert_eq!(sum + difference.not_requested.unwrap(), held);
        assert!(before >= difference.from.requested && after >= difference.to.requested, "{difference:?}");
    }
    if !difference.tags.is_empty() {
        assert_eq!(difference.tags.iter().map(|tag| tag.change).sum::<i64>(), requested);
    }
}

#[test]
fn the_rows_sum_to_the_difference_to_the_byte() {
    let all = recordings();
    let moments = ["start", "300ms", "peak", "end"];
    for one in &all {
        for other in &all {
            for (from, to) in moments.iter().flat_map(|from| moments.iter().map(move |to| (from, to))) {
                sums_to_the_byte(&Difference::of(&at(one, from).unwrap(), &at(other, to).unwrap()));
            }
        }
    }
}

#[test]
fn a_recording_does_not_differ_from_itself() {
    let (one, other) = (recordings(), recordings());
    for (one, other) in one.iter().zip(&other) {
        let difference = Difference::of(&at(one, "peak").unwrap(), &at(other, "peak").unwrap());
        assert_eq!((&difference.changes, difference.held), (&Vec::new(), Some(0)));
    }
}

#[test]
fn moments_are_steps_and_phases_too() {
    let all = recordings();
    let gnn = &all[2];
    let [first, last] = ["step:1", "step:79"].map(|moment| at(gnn, moment).unwrap());
    sums_to_the_byte(&Difference::of(&first, &last));
    let optimizer = at(gnn, "in:Optimizer.step#Adam.step").unwrap();
    let peak = Difference::of(&optimizer, &at(gnn, "peak").unwrap());
    assert!(peak.requested > 0, "{peak:?}");
    let refused = |moment: &str| at(gnn, moment).unwrap_err().to_string();
    assert!(refused("step:80").ends_with("has 79 steps: name one from 1 to 79"), "{}", refused("step:80"));
    assert!(refused("1h").ends_with("name an earlier moment"));
    assert!(refused("in:forward").contains("it has Optimizer.step#Adam.step, "), "{}", refused("in:forward"));
    assert!(at(&all[0], "step:1").unwrap_err().to_string().contains("--step"));
}
