//! Budgets: a limit that several pools share, also those of several processes.

use std::ffi::c_char;
use std::time::Duration;

use millpond::{Budget, Tenant};

use crate::arguments::{Out, SizedStruct, fixed_text, init_struct, text};
use crate::context::CONTEXTS;
use crate::failure::{Failure, boundary};
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

/// The limit of a named budget, for all processes, or of any other. What the pools hold beyond it stays theirs until they
/// give it back; those of a named budget do so at once with what is free.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_budget_set_limit(budget: *mut BudgetHandle, bytes: usize) -> Status {
    boundary(|me| {
        BUDGETS.get(me, budget)?.set_limit(bytes as u64);
        Ok(())
    })
}

// ---- one budget for many processes ------------------------------------------------------------------

/// A budget of `bytes` that all processes of this user share which give the same name: 1 to 64 letters, digits, '-' and
/// '_'. The first process sets the limit; for those that join later, it is what it is. A process that lacks memory asks
/// the others, and their free memory goes back. A process that ends in any way gives up what it held. docs/budgets.md
/// says more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_budget_named(
    name: *const c_char,
    bytes: usize,
    out: *mut *mut BudgetHandle,
) -> Status {
    boundary(|_| {
        // SAFETY: as the header asks of its caller.
        let (out, name) = unsafe { (Out::pointer(out, "out")?, text(name, "name")?) };
        let budget = Budget::named(name.ok_or(Failure::Null("name"))?, bytes as u64)?;
        out.set(BUDGETS.insert(budget)?);
        Ok(())
    })
}

/// The named budget, with the limit that it has; null where no process has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_budget_find(name: *const c_char, out: *mut *mut BudgetHandle) -> Status {
    boundary(|_| {
        // SAFETY: as the header asks of its caller.
        let (out, name) = unsafe { (Out::pointer(out, "out")?, text(name, "name")?) };
        if let Some(budget) = Budget::find(name.ok_or(Failure::Null("name"))?)? {
            out.set(BUDGETS.insert(budget)?);
        }
        Ok(())
    })
}

/// Keeps `bytes` of a named budget for this process; 0 at first. Other processes do not take them, and it need not give
/// them back.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_budget_set_floor(budget: *mut BudgetHandle, bytes: usize) -> Status {
    boundary(|me| Ok(BUDGETS.get(me, budget)?.set_floor(bytes as u64)?))
}

/// The most that this process takes of a named budget; the limit at first.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_budget_set_claim(budget: *mut BudgetHandle, bytes: usize) -> Status {
    boundary(|me| Ok(BUDGETS.get(me, budget)?.set_claim(bytes as u64)?))
}

/// How long a request of this process waits until other processes free memory, before it fails; 50 ms at first. With 0
/// it waits for their answers only: what is free already goes back.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_budget_set_patience(budget: *mut BudgetHandle, milliseconds: u64) -> Status {
    boundary(|me| Ok(BUDGETS.get(me, budget)?.set_patience(Duration::from_millis(milliseconds))?))
}

/// A process under a named budget. Sizes in bytes.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct TenantReport {
    /// sizeof this struct, as the program was compiled.
    pub size: usize,
    /// What its pools with the budget hold.
    pub held: u64,
    /// What is kept for it.
    pub floor: u64,
    /// What it holds at most; UINT64_MAX without a claim.
    pub claim: u64,
    /// The process.
    pub pid: u32,
    /// The name of its program, cut to the field.
    pub program: [c_char; 20],
}

// SAFETY: `repr(C)`, integers only, the size first.
unsafe impl SizedStruct for TenantReport {
    const NAME: &'static str = "millpond_tenant";
}

impl TenantReport {
    fn new(tenant: &Tenant, size: usize) -> Self {
        let Tenant { pid, program, held, floor, claim, .. } = tenant;
        Self { size, held: *held, floor: *floor, claim: *claim, pid: *pid, program: fixed_text(program) }
    }
}

/// The processes that have a named budget, this one too; none for a budget without a name. Writes at most `room` of them,
/// each of `size` bytes, which is sizeof the struct. `count` gets how many there are. `tenants` may be null if `room` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_budget_tenants(
    budget: *mut BudgetHandle,
    tenants: *mut TenantReport,
    size: usize,
    room: usize,
    count: *mut usize,
) -> Status {
    boundary(|me| {
        // SAFETY: as the header asks of its caller.
        let count = unsafe { Out::new(count, "count", 0) }?;
        if tenants.is_null() && room > 0 {
            return Err(Failure::Null("tenants"));
        }
        let all = BUDGETS.get(me, budget)?.tenants();
        for (at, tenant) in all.iter().take(room).enumerate() {
            // SAFETY: not null, and with room for so many of this size, as the header asks of its caller.
            unsafe { init_struct(tenants.byte_add(at * size), size, &TenantReport::new(tenant, size)) }?;
        }
        count.set(all.len());
        Ok(())
    })
}

/// Gives up the handle. The pools keep the budget.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_budget_release(budget: *mut BudgetHandle) -> Status {
    boundary(|me| BUDGETS.release(me, budget))
}
