//! A plan is checked block by block: no two that live at once may share a byte.

use super::*;
use crate::generate::Pattern;
use crate::replay::{FreeWhen, Step};

/// A program of allocations (its size) and frees (the block's number).
fn program(steps: &[Result<u64, u32>]) -> Program {
    let trace = Pattern::LoraCheckpointing.generate(1);
    let mut sizes = Vec::new();
    let steps = steps.iter().map(|&step| match step {
        Ok(size) => {
            sizes.push(size);
            Step { size, time_us: 0, block: sizes.len() as u32 - 1, stream: 0, alloc: true }
        }
        Err(block) => Step { size: sizes[block as usize], time_us: 0, block, stream: 0, alloc: false },
    });
    let steps: Vec<_> = steps.collect();
    let blocks = steps.iter().filter(|step| step.alloc).count();
    Program { steps, blocks, before: 0, ..Program::new(&trace, FreeWhen::Completed) }
}

/// Plays the program, with each block where the plan has it.
fn check(program: &Program, plan: &Plan) {
    let mut live = std::collections::BTreeMap::new();
    for step in program.steps.iter().filter(|step| step.size > 0) {
        let at = plan.offsets[step.block as usize];
        if !step.alloc {
            live.remove(&at);
            continue;
        }
        assert_eq!(at % UNIT, 0);
        assert!(at + step.size <= plan.bytes);
        let before = live.range(..at + step.size).next_back();
        assert!(before.is_none_or(|(from, bytes)| from + bytes <= at), "two live blocks share a byte");
        live.insert(at, step.size);
    }
}

#[test]
fn no_two_live_blocks_of_a_plan_share_a_byte() {
    for pattern in Pattern::ALL {
        let trace = pattern.generate(3);
        let program = Program::new(&trace, FreeWhen::Completed);
        for order in Order::ALL {
            check(&program, &Plan::in_order(&program, order).0);
        }
        check(&program, &Plan::of(&program).unwrap());
    }
}

#[test]
fn a_plan_is_no_shorter_than_the_bound() {
    for pattern in Pattern::ALL {
        let trace = pattern.generate(4);
        let program = Program::new(&trace, FreeWhen::Completed);
        let possible = Possible::of(&program);
        assert!(possible.planned.unwrap() >= possible.bound, "{possible:?}");
        assert!(possible.bound >= program.peak_requested().0, "{possible:?}");
        assert!(possible.ratio >= 1.0 && possible.ratio < 1.15, "{}: {possible:?}", pattern.name());
    }
}

#[test]
fn a_recording_has_one_plan() {
    let program = Program::new(&Pattern::LongAmongShort.generate(5), FreeWhen::Completed);
    assert_eq!(Plan::of(&program), Plan::of(&program));
}

#[test]
fn the_bound_rounds_each_block_to_its_unit() {
    // 1 byte and 513 bytes at once; then the third takes the place of both.
    let possible = Possible::of(&program(&[Ok(1), Ok(513), Err(0), Err(1), Ok(1500)]));
    assert_eq!((possible.bound, possible.planned), (1536, Some(1536)));
    assert_eq!(possible.reserved, PAGE);
    assert!(possible.is_least());
}

#[test]
fn what_is_live_at_the_end_keeps_its_place() {
    let program = program(&[Ok(4096), Ok(2048), Err(0), Ok(4096), Ok(0)]);
    let plan = Plan::of(&program).unwrap();
    check(&program, &plan);
    assert_eq!(plan.bytes, 6144);
}

#[test]
fn a_program_without_blocks_needs_nothing() {
    let possible = Possible::of(&program(&[]));
    assert_eq!((possible.bound, possible.planned, possible.reserved), (0, Some(0), 0));
    assert!(possible.is_least());
}

/// Three blocks fit into their bound only if the future is known: the two that stay lie beside each other.
#[test]
fn a_plan_knows_the_future() {
    let steps = [Ok(1 << 20), Ok(4 << 20), Ok(1 << 20), Err(0), Err(2), Ok(2 << 20)];
    let possible = Possible::of(&program(&steps));
    assert_eq!(possible.planned, Some(6 << 20));
    let online = Plan::in_order(&program(&steps), Order::Begin).0;
    assert_eq!(online.bytes, 7 << 20);
}

#[test]
fn what_takes_too_much_work_is_not_planned() {
    let program = Program::new(&Pattern::MixtureOfExperts.generate(6), FreeWhen::Completed);
    let lifetimes = Lifetimes::of(&program);
    assert!(best(&lifetimes, 1000).is_none());
    assert!(best(&lifetimes, MOST_WORK).is_some());
}
