//! Budgets: a limit that several pools share.

use millpond::Budget;

use crate::arguments::Out;
use crate::context::CONTEXTS;
use crate::failure::boundary;
use crate::handle::Table;
use crate::kind::{BudgetHandle, ContextHandle, Kind};
use crate::status::Status;

pub(crate) static BUDGETS: Table<Budget> = Table::new(Kind::Budget);

/// A budget of `bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_budget_create(bytes: usize, out: *mut *mut BudgetHandle) -> Status {
    boundary(|_| {
        // SAFETY: as the header asks of its caller.
        let out = unsafe { Out::pointer(out, "out") }?;
        out.set(BUDGETS.insert(Budget::bytes(bytes as u64))?);
        Ok(())
    })
}

/// A budget of a fraction (0 to 1) of the device's memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_budget_fraction(
    context: *mut ContextHandle,
    fraction: f64,
    out: *mut *mut BudgetHandle,
) -> Status {
    boundary(|me| {
        // SAFETY: as the header asks of its caller.
        let out = unsafe { Out::pointer(out, "out") }?;
        let object = CONTEXTS.get(me, context)?;
        let budget = Budget::fraction(&**object.context.device(), fraction)?;
        out.set(BUDGETS.insert(budget)?);
        Ok(())
    })
}

/// The limit, and what the pools hold now, in bytes. Either output may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_budget_read(
    budget: *mut BudgetHandle,
    limit: *mut usize,
    held: *mut usize,
) -> Status {
    boundary(|me| {
        let budget = BUDGETS.get(me, budget)?;
        for (at, bytes) in [(limit, budget.limit()), (held, budget.held())] {
            if !at.is_null() {
                // SAFETY: not null, and as the header asks of its caller.
                unsafe { at.write(bytes as usize) };
            }
        }
        Ok(())
    })
}

/// Gives up the handle. The pools keep the budget.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_budget_release(budget: *mut BudgetHandle) -> Status {
    boundary(|me| BUDGETS.release(me, budget))
}
