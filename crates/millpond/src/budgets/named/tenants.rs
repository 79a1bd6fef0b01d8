//! The names of budgets, and of who has memory under them.

use super::lease::Lease;
use crate::figures::tenant::Tenant;

/// The longest name.
pub(super) const LONGEST_NAME: usize = 64;

/// What stands for the program of a process that runs no more, and whose memory is in use: a child that it forked has the
/// driver's descriptors, or others have open what it shared.
const HAS_ENDED: &str = "has ended";

/// The program of a process that has a slot.
pub(super) fn program(owner: Lease) -> String {
    owner.program().unwrap_or_else(|| HAS_ENDED.to_owned())
}

/// Those that hold most come first.
pub(super) fn largest_first(mut tenants: Vec<Tenant>) -> Vec<Tenant> {
    tenants.sort_by_key(|tenant| (std::cmp::Reverse(tenant.held), tenant.pid));
    tenants
}

/// Whether a budget can have this name.
pub(super) fn is_a_name(name: &str) -> bool {
    let is_allowed = |char: char| char.is_ascii_alphanumeric() || matches!(char, '-' | '_');
    (1..=LONGEST_NAME).contains(&name.len()) && name.chars().all(is_allowed)
}
