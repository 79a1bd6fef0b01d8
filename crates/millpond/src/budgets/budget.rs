//! A limit that several pools share.

use std::fmt;
use std::path::Path;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::named::Tenancy;
use crate::device::HasDevice;
use crate::error::{Error, Result};
use crate::figures::tenant::{SeenBudget, Tenant};
use crate::system::process::WhileHeld;

/// A limit on the physical bytes that all pools with this budget hold together. Clones are the same budget.
///
/// ```
/// use millpond::{Budget, Context, Pool, device::sim::{SimDevice, SimOptions}};
/// let device = Context::new(SimDevice::new(SimOptions::default())?);
/// let budget = Budget::bytes(64 << 20);
/// let activations = Pool::builder(&device).name("activations").budget(&budget).build()?;
/// let weights = Pool::builder(&device).name("weights").budget(&budget).build()?;
/// let stream = device.create_stream()?;
/// let kept = activations.alloc(40 << 20, &stream)?;
/// assert!(weights.alloc(40 << 20, &stream).is_err());
/// # unsafe { activations.free(kept, &stream) }?;
/// # Ok::<(), millpond::Error>(())
/// ```
#[derive(Clone)]
pub struct Budget {
    inner: Inner,
}

#[derive(Clone)]
enum Inner {
    /// Of this process.
    Private(Arc<Private>),
    /// Of all processes that name it.
    Named(Arc<Tenancy>),
}

struct Private {
    limit: AtomicU64,
    held: AtomicU64,
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Budget").field("limit", &self.limit()).field("held", &self.held()).finish()
    }
}

impl Budget {
    /// A budget of `limit` bytes.
    #[must_use]
    pub fn bytes(limit: u64) -> Self {
        let private = Private { limit: AtomicU64::new(limit), held: AtomicU64::new(0) };
        Self { inner: Inner::Private(Arc::new(private)) }
    }

    /// A budget of a `fraction` (0 to 1) of the memory of a device, or of that of a context.
    ///
    /// # Errors
    /// [`Error::BadOption`] for a fraction outside 0 to 1.
    pub fn fraction(device: &(impl HasDevice + ?Sized), fraction: f64) -> Result<Self> {
        if !(0.0..=1.0).contains(&fraction) {
            return Err(Error::BadOption {
                option: "budget",
                why: format!("the fraction is {fraction}: use one between 0 and 1"),
            });
        }
        Ok(Self::bytes((device.as_device().properties().total_memory as f64 * fraction) as u64))
    }

    /// A budget of `limit` bytes that all processes of this user share which give the same name: letters, digits, `-` and
    /// `_`. Within a process, it is the same budget for every caller, as long as one of them or a pool has it. The page
    /// `docs/budgets.md` says what it promises.
    ///
    /// The first process sets the limit, unless it was set [for all](Self::keep_limit). For those that join later, it is what it is
    /// ([`limit`](Self::limit)).
    ///
    /// A process that lacks memory asks the others, and waits for some time ([`set_patience`](Self::set_patience)). Their
    /// free memory goes back, but for what lies below their [floors](Self::set_floor). A process that ends in any way,
    /// `kill -9` too, gives up what it held, unless a child that it forked or a process that opened its memory still has it.
    ///
    /// ```
    /// use millpond::{Budget, Context, Pool};
    ///
    /// # let name = format!("budget-example-{}", std::process::id());
    /// # let name = name.as_str();
    /// let budget = Budget::named(name, 1 << 30)?; // "gpu0", say
    /// budget.set_floor(256 << 20)?; // kept for this process
    /// budget.set_claim(768 << 20)?; // and it never holds more
    /// let device = Context::host()?; // or Context::cuda(0)?
    /// let pool = Pool::builder(&device).budget(&budget).build()?;
    /// # let stream = device.create_stream()?;
    /// # unsafe { pool.free(pool.alloc(1 << 20, &stream)?, &stream) }?;
    /// assert_eq!(budget.held(), pool.reserved().current); // with what other processes hold
    /// # std::fs::remove_file(budget.path().unwrap()).unwrap();
    /// # Ok::<(), millpond::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::BadOption`] for a name with other characters. [`Error::SharedBudget`] where the file for it cannot be used,
    /// or where too many processes have it.
    pub fn named(name: &str, limit: u64) -> Result<Self> {
        static KNOWN: WhileHeld<String, Tenancy> = WhileHeld::new();
        let tenancy = KNOWN.get(name.to_owned(), || Tenancy::join(name, limit))?;
        Ok(Self { inner: Inner::Named(tenancy) })
    }

    /// The one of all pools of this process on the device with this name.
    pub(super) fn of_device(device: &str, limit: u64) -> Result<Self> {
        static KNOWN: WhileHeld<String, Private> = WhileHeld::new();
        let new = || Result::Ok(Arc::new(Private { limit: AtomicU64::new(limit), held: AtomicU64::new(0) }));
        Ok(Self { inner: Inner::Private(KNOWN.get(device.to_owned(), new)?) })
    }

    /// Joins the [named](Self::named) budget with the limit that it has; `None` where no process has it, and no limit was set
    /// [for all](Self::keep_limit). To see it without joining, [`look`](Self::look).
    ///
    /// ```
    /// assert!(millpond::Budget::find("nobody-has-it")?.is_none());
    /// # Ok::<(), millpond::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`named`](Self::named).
    pub fn find(name: &str) -> Result<Option<Self>> {
        Tenancy::limit_of(name)?.map(|limit| Self::named(name, limit)).transpose()
    }

    /// Sets the limit of a [named](Self::named) budget for all processes, those that have it and those that come. Nobody needs to
    /// have it now. The limit stays until it is set again, or the budget is [removed](Self::remove).
    ///
    /// ```
    /// use millpond::Budget;
    ///
    /// # let name = format!("kept-example-{}", std::process::id());
    /// # let name = name.as_str();
    /// Budget::keep_limit(name, 1 << 30)?;
    /// let budget = Budget::named(name, 2 << 30)?; // in a process that comes later
    /// assert_eq!(budget.limit(), 1 << 30);
    /// assert!(!Budget::remove(name)?, "it is in use");
    /// drop(budget);
    /// assert!(Budget::remove(name)?);
    /// # Ok::<(), millpond::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`named`](Self::named).
    pub fn keep_limit(name: &str, bytes: u64) -> Result<()> {
        Tenancy::keep_limit(name, bytes)
    }

    /// Removes a [named](Self::named) budget that no process has. `false` where one has it, or where there is none. See
    /// [`keep_limit`](Self::keep_limit) for an example.
    ///
    /// # Errors
    /// As for [`named`](Self::named).
    pub fn remove(name: &str) -> Result<bool> {
        Tenancy::remove(name)
    }

    /// A [named](Self::named) budget as it is now; `None` where there is none. Takes no place among its processes, of which there
    /// are 1,024 at most.
    ///
    /// ```
    /// assert!(millpond::Budget::look("nobody-made-it")?.is_none());
    /// # Ok::<(), millpond::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`named`](Self::named).
    pub fn look(name: &str) -> Result<Option<SeenBudget>> {
        Tenancy::look(name)
    }

    /// All [named](Self::named) budgets of this user, by name; for root, those of all users. What cannot be read is left out.
    /// [`SeenBudget`] has an example.
    #[must_use]
    pub fn all() -> Vec<SeenBudget> {
        Tenancy::look_at_all()
    }

    /// The limit in bytes.
    #[must_use]
    pub fn limit(&self) -> u64 {
        // Relaxed: a setting; nothing is concluded from when it is seen.
        self.of_either(|private| private.limit.load(Ordering::Relaxed), Tenancy::limit)
    }

    /// Changes the limit, for what the pools take from now on. What they hold beyond it stays theirs until they
    /// give it back. That of a named budget changes for all processes. They then give back at once what is free beyond it.
    pub fn set_limit(&self, bytes: u64) {
        // Relaxed: as for `limit`.
        let store = |private: &Private| private.limit.store(bytes, Ordering::Relaxed);
        self.of_either(store, |tenancy| tenancy.set_limit(bytes));
    }

    /// Bytes that the pools hold now; with a named budget, those of all processes that have not ended, and what is still in use of
    /// those that have. For that it asks the system about each process, some tenths of a microsecond.
    #[must_use]
    pub fn held(&self) -> u64 {
        // Relaxed: a figure to read; nothing is concluded from it.
        self.of_either(|private| private.held.load(Ordering::Relaxed), Tenancy::held)
    }

    fn of_either<T>(&self, private: impl FnOnce(&Private) -> T, named: impl FnOnce(&Tenancy) -> T) -> T {
        match &self.inner {
            Inner::Private(inner) => private(inner),
            Inner::Named(tenancy) => named(tenancy),
        }
    }

    /// The most that the pools of this process may hold: the limit, or the [claim](Self::set_claim) if that is lower.
    #[must_use]
    pub fn most(&self) -> u64 {
        self.tenancy().map_or_else(|| self.limit(), Tenancy::most)
    }

    // ---- a named budget ----------------------------------------------------------------------------

    /// What this process has of it, if it has a name.
    pub(crate) fn tenancy(&self) -> Option<&Tenancy> {
        if let Inner::Named(tenancy) = &self.inner { Some(tenancy) } else { None }
    }

    fn of_processes(&self, option: &'static str) -> Result<&Tenancy> {
        self.tenancy().ok_or_else(|| Error::BadOption {
            option,
            why: "only a budget that processes share has one: make it with Budget::named".to_owned(),
        })
    }

    /// Keeps `bytes` of a named budget for this process, 0 at first. Other processes do not take them, and it need not give
    /// them back. What others hold of them already, they are asked for when this process needs it.
    ///
    /// # Errors
    /// [`Error::BadOption`] where that and the floors of the others exceed the limit, or where the budget has no name.
    /// [`Error::Forked`] in a forked child.
    pub fn set_floor(&self, bytes: u64) -> Result<()> {
        self.of_processes("floor")?.set_floor(bytes)
    }

    /// The most that this process takes of a named budget. Without a claim, it may take the limit.
    ///
    /// # Errors
    /// [`Error::BadOption`] where the budget has no name.
    pub fn set_claim(&self, bytes: u64) -> Result<()> {
        self.of_processes("claim")?.set_claim(bytes);
        Ok(())
    }

    /// How long a request of this process waits until other processes free memory, before it fails. The time begins again
    /// whenever some is freed. 50 ms by default. With zero it waits for their answers only: what is free already goes back.
    ///
    /// # Errors
    /// [`Error::BadOption`] where the budget has no name.
    pub fn set_patience(&self, patience: Duration) -> Result<()> {
        self.of_processes("patience")?.set_patience(patience);
        Ok(())
    }

    /// The processes that have this budget, this one too, those that hold most first; none for a budget without a name. With them
    /// are those that ended while a child or another process has their memory: their program is `has ended`.
    #[must_use]
    pub fn tenants(&self) -> Vec<Tenant> {
        self.tenancy().map_or_else(Vec::new, |tenancy| tenancy.tenants(true))
    }

    /// The file that the processes share; `None` for a budget without a name. It stays when they end, until the budget is
    /// [removed](Self::remove).
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.tenancy().map(|tenancy| tenancy.path.as_path())
    }

    // ---- for pools ---------------------------------------------------------------------------------

    /// Whether the two are the same budget.
    pub(crate) fn is(&self, other: &Self) -> bool {
        let place = |of: &Self| {
            of.of_either(|private| ptr::from_ref(private).addr(), |named| ptr::from_ref(named).addr())
        };
        place(self) == place(other)
    }

    /// As [`held`](Self::held), without waiting for other processes, and so about that.
    pub(crate) fn about_held(&self) -> u64 {
        self.tenancy().map_or_else(|| self.held(), Tenancy::about_held)
    }

    /// The limit that a request of so many bytes meets, and what is held under it.
    pub(crate) fn limit_met(&self, bytes: u64) -> (u64, u64) {
        self.tenancy().map_or_else(|| (self.limit(), self.held()), |tenancy| tenancy.limit_met(bytes))
    }

    /// Takes `bytes` of what is left, or nothing.
    pub(crate) fn take(&self, bytes: u64) -> bool {
        let take = |private: &Private| {
            let most = private.limit.load(Ordering::Relaxed);
            let take = |held: u64| held.checked_add(bytes).filter(|sum| *sum <= most);
            // Relaxed: the counter guards nothing but itself; read-modify-writes never lose an update.
            private.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
        };
        self.of_either(take, |tenancy| tenancy.take(bytes))
    }

    pub(crate) fn give_back(&self, bytes: u64) {
        // Relaxed: as for `take`.
        let give_back = |private: &Private| _ = private.held.fetch_sub(bytes, Ordering::Relaxed);
        self.of_either(give_back, |tenancy| tenancy.give_back(bytes));
    }
}
