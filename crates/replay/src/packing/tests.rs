//! Cards and jobs whose packing is known.

use super::*;
use crate::generate::Pattern;
use crate::replay::{FreeWhen, Program, Step};

const GIB: u64 = 1 << 30;

/// A job that holds its need for a part of a second, and nothing for the rest of it.
fn job(need_gib: u64, busy: f64) -> Job {
    let need = need_gib * GIB;
    let trace = Pattern::Diffusion.generate(1);
    let step = |time_us, alloc, size, block| Step { size, time_us, block, stream: 0, alloc };
    let steps = vec![
        step(0, true, need, 0),
        step((busy * 999_999.0) as u64, false, need, 0),
        step(999_999, true, 1, 1),
    ];
    let program = Program { steps, blocks: 2, ..Program::new(&trace, FreeWhen::Completed) };
    Job { need, curve: Curve::of(&program, need) }
}

fn cards(gib: &[u64]) -> Vec<Card> {
    gib.iter().map(|&gib| Card { name: format!("{gib}GiB"), bytes: gib << 30 }).collect()
}

#[test]
fn jobs_whose_needs_fit_together_cannot_fail() {
    let jobs = [job(10, 1.0), job(9, 1.0), job(4, 1.0)];
    let packing = Packing::of(&jobs, &cards(&[24]), GIB / 4);
    assert!(packing.left.is_empty());
    let shared = &packing.cards[0];
    assert_eq!((shared.jobs.len(), shared.needs, shared.likely), (3, 23 * GIB, None));
    assert_eq!(shared.budget, 24 * GIB - 3 * (GIB / 4));
}

#[test]
fn each_process_takes_a_context_besides() {
    let jobs = [job(12, 1.0), job(12, 1.0)];
    assert!(Packing::of(&jobs, &cards(&[24]), 0).left.is_empty());
    assert_eq!(Packing::of(&jobs, &cards(&[24]), GIB).left.len(), 1);
}

/// The largest first on the fullest card fills 6 + 4 and leaves the last 5 without room; 5 + 5 and 6 + 4 fits.
#[test]
fn all_jobs_find_room_where_there_is_a_way() {
    let jobs = [job(4, 1.0), job(6, 1.0), job(5, 1.0), job(5, 1.0), job(7, 1.0), job(3, 1.0)];
    let packing = Packing::of(&jobs, &cards(&[10, 10, 10]), 0);
    assert!(packing.left.is_empty());
    assert!(packing.cards.iter().all(|shared| shared.likely.is_none() && shared.needs == 10 * GIB));
}

#[test]
fn short_peaks_share_a_card_that_is_only_likely_to_do() {
    // Each holds 8 GiB for a hundredth of the time: their peaks rarely meet.
    let packing = Packing::of(&[job(8, 0.01), job(8, 0.01)], &cards(&[12]), 0);
    assert!(packing.left.is_empty());
    let likely = packing.cards[0].likely.unwrap();
    assert!(likely.fits > 0.95 && likely.fits < 1.0, "{likely:?}");
    assert!(likely.median <= 8 * GIB + 2 && likely.worst > 15 * GIB, "{likely:?}");
    // With 8 GiB for half of the time, they meet more often than not.
    assert_eq!(Packing::of(&[job(8, 0.5), job(8, 0.5)], &cards(&[12]), 0).left.len(), 1);
}

#[test]
fn a_job_that_no_card_holds_is_left() {
    let packing = Packing::of(&[job(30, 0.01), job(3, 1.0)], &cards(&[24, 12]), 0);
    assert_eq!(packing.left, [0]);
    assert_eq!(packing.cards.iter().map(|shared| shared.jobs.len()).sum::<usize>(), 1);
}

#[test]
fn two_dozen_jobs_are_packed_at_once() {
    let jobs: Vec<_> = (1..=24).map(|gib| job(gib, 1.0)).collect();
    let packing = Packing::of(&jobs, &cards(&[80, 80, 80]), 0);
    let placed: usize = packing.cards.iter().map(|shared| shared.jobs.len()).sum();
    assert_eq!(placed + packing.left.len(), 24);
    assert!(packing.cards.iter().all(|shared| shared.needs <= shared.budget), "{packing:?}");
    assert!(packing.cards.iter().map(|shared| shared.needs).sum::<u64>() > 210 * GIB, "{packing:?}");
}
