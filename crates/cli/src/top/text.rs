//! `millpond top` as plain text.

use millpond::{HumanBytes, SeenBudget, Stats};

use super::rows::{COLUMNS, Column, Row, SortKey, rows};
use crate::live::Sight;
use crate::live::gpus::Gpu;
use crate::live::shares::{Holder, Share, shares};
use crate::terminal::{count, table};

/// All of what was seen, with as many columns of each pool as a terminal of this width has room for.
pub(super) fn text(sight: &Sight, before: Option<&Sight>, by: SortKey, width: Option<usize>) -> String {
    [pools(sight, (before, by), width), away(sight), silent(sight), budgets(sight), gpus(sight)]
        .into_iter()
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join("\n\n")
}

fn pools(sight: &Sight, (before, by): (Option<&Sight>, SortKey), width: Option<usize>) -> String {
    let rows = rows(sight, before, by);
    if rows.is_empty() {
        return format!("no running program of this user has a pool{}", hidden(sight));
    }
    let process = |row: &Row<'_>| format!("{} {}", row.pid, row.program);
    let longest =
        |name: &dyn Fn(&Row<'_>) -> usize| rows.iter().map(name).max().unwrap_or(0).max("process".len());
    let names = longest(&|row| process(row).chars().count()) + longest(&|row| row.pool.name.chars().count());
    let shown = fitting(width.map(|width| width.saturating_sub(names + 2)));
    let titles = ["process", "pool"].into_iter().chain(shown.iter().map(|column| column.title));
    let mut lines = vec![titles.map(str::to_owned).collect()];
    lines.extend(rows.iter().map(|row| {
        let names = [process(row), row.pool.name.clone()];
        names.into_iter().chain(shown.iter().map(|column| (column.of)(row))).collect::<Vec<_>>()
    }));
    let figures: [fn(&Stats) -> u64; 3] =
        [|stats| stats.reserved.current, |stats| stats.requested.current, Stats::cached];
    let sums = figures
        .map(|of| HumanBytes(rows.iter().fold(0, |sum: u64, row| sum.saturating_add(of(&row.pool.stats)))));
    let total =
        ["total".to_owned(), counted(sight)].into_iter().chain(sums.iter().map(HumanBytes::to_string));
    lines.push(total.chain(std::iter::repeat(String::new())).take(shown.len() + 2).collect());
    // Names to the left: those of pools as one with those of processes.
    let width = lines.iter().map(|line| line[0].chars().count()).max().unwrap_or(0);
    let lines: Vec<_> = lines
        .into_iter()
        .map(|mut line| {
            let figures = line.split_off(2);
            let names = format!("{:<width$}  {}", line[0], line[1]);
            [vec![names], figures].concat()
        })
        .collect();
    table(&lines)
}

/// The first columns that have room, where it is known how much there is.
fn fitting(room: Option<usize>) -> &'static [Column] {
    let Some(room) = room else { return &COLUMNS };
    let ends = COLUMNS.iter().scan(0, |end, column| {
        *end += usize::from(column.width) + 2;
        Some(*end)
    });
    // One figure is shown in any case.
    &COLUMNS[..ends.take_while(|end| *end <= room).count().max(1)]
}

/// The budgets that processes have, or that wait for some.
fn budgets(sight: &Sight) -> String {
    let line = |budget: &SeenBudget| {
        let [held, limit] = [budget.held(), budget.limit].map(HumanBytes);
        format!(
            "budget {}: {held} of {limit} held by {}",
            budget.name,
            processes(budget.tenants.len() as u64)
        )
    };
    let told = sight.budgets.iter().filter(|budget| budget.stays || !budget.tenants.is_empty());
    told.map(line).collect::<Vec<_>>().join("\n")
}

/// How many processes this user may not look at.
fn hidden(sight: &Sight) -> String {
    match sight.hidden {
        0 => String::new(),
        hidden => format!(", {} of others hidden", processes(hidden as u64)),
    }
}

/// Pools and tags that are evicted or asleep, and the pinned memory that is kept for them.
pub(super) fn away(sight: &Sight) -> String {
    let of_each = sight.processes.iter().flat_map(|process| {
        let away = process.pools.iter().filter(|pool| pool.stats.asleep > 0 || pool.stats.pinned > 0);
        away.map(move |pool| {
            let [asleep, pinned] = [pool.stats.asleep, pool.stats.pinned].map(HumanBytes);
            format!(
                "{asleep} of {} of {} {} are away; {pinned} of pinned memory are kept for it",
                pool.name, process.pid, process.program
            )
        })
    });
    of_each.collect::<Vec<_>>().join("\n")
}

/// The processes that do not answer.
pub(super) fn silent(sight: &Sight) -> String {
    let silent = sight.processes.iter().filter(|process| !process.answers);
    let lines: Vec<_> = silent
        .map(|process| format!("{} {} does not answer: it may be stopped", process.pid, process.program))
        .collect();
    lines.join("\n")
}

fn gpus(sight: &Sight) -> String {
    match &sight.gpus {
        Err(why) => format!("GPUs: no figures, since {why}"),
        Ok(gpus) => gpus.iter().map(|gpu| of_gpu(gpu, sight)).collect::<Vec<_>>().join("\n\n"),
    }
}

fn of_gpu(gpu: &Gpu, sight: &Sight) -> String {
    let mut lines = vec![of_gpu_in_short(gpu)];
    lines.extend(
        shares(gpu, &sight.processes)
            .iter()
            .map(|share| format!("  {:>10}  {}", bytes(share.bytes), holder(share))),
    );
    lines.join("\n")
}

pub(super) fn of_gpu_in_short(gpu: &Gpu) -> String {
    let [used, total] = [gpu.used, gpu.total].map(HumanBytes);
    format!("GPU {} {}: {used} of {total} used", gpu.number, gpu.name)
}

/// Who holds a part.
pub(super) fn holder(share: &Share) -> String {
    let process = || match (share.pid, &share.program) {
        (Some(pid), Some(program)) => format!("{pid} {program}"),
        _ => String::new(),
    };
    match share.holder {
        Holder::Pools => format!("pools of {}", process()),
        Holder::OutsideThePools => format!("{}, outside the pools", process()),
        Holder::OtherProcesses => "processes without pools".to_owned(),
        Holder::NotListed => "not listed by process".to_owned(),
    }
}

pub(super) fn bytes(bytes: i64) -> String {
    let sign = if bytes < 0 { "-" } else { "" };
    format!("{sign}{}", HumanBytes(bytes.unsigned_abs()))
}

/// How many there are.
pub(super) fn counted(sight: &Sight) -> String {
    let pools = sight.processes.iter().map(|process| process.pools.len() as u64).sum();
    format!("{}, {}{}", count(pools, "pool"), processes(sight.processes.len() as u64), hidden(sight))
}

fn processes(number: u64) -> String {
    if number == 1 { "1 process".to_owned() } else { format!("{number} processes") }
}
