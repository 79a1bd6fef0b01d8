//! `millpond top` as plain text.

use millpond::HumanBytes;

use super::rows::{COLUMNS, SortKey, rows};
use crate::live::Sight;
use crate::live::gpus::Gpu;
use crate::live::shares::{Holder, Share, shares};
use crate::terminal::{count, table};

/// All of what was seen.
pub(super) fn text(sight: &Sight, before: Option<&Sight>, by: SortKey) -> String {
    [pools(sight, before, by), silent(sight), gpus(sight)]
        .into_iter()
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join("\n\n")
}

fn pools(sight: &Sight, before: Option<&Sight>, by: SortKey) -> String {
    let rows = rows(sight, before, by);
    if rows.is_empty() {
        return "no running program of this user has a pool".to_owned();
    }
    let titles = ["process", "pool"].into_iter().chain(COLUMNS.iter().map(|column| column.title));
    let mut lines = vec![titles.map(str::to_owned).collect()];
    lines.extend(rows.iter().map(|row| {
        let names = [format!("{} {}", row.pid, row.program), row.pool.name.clone()];
        names.into_iter().chain(COLUMNS.iter().map(|column| (column.of)(row))).collect::<Vec<_>>()
    }));
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
    format!("{}, {}", count(pools, "pool"), processes(sight.processes.len() as u64))
}

fn processes(number: u64) -> String {
    if number == 1 { "1 process".to_owned() } else { format!("{number} processes") }
}
