//! Everything that training needs of one GPU, shared by the backends of the process.

use std::collections::HashMap;
use std::sync::Arc;

use millpond::device::cuda::CudaDevice;
use parking_lot::Mutex;

use super::cublaslt::{CublasLt, Plan, Product};
use super::kernels::Kernels;
use crate::{Precision, Result};

/// Libraries, kernels and tuned products. One for each GPU and precision, kept for the life of the process:
/// the choice of algorithms must be the same for every allocator that one run compares, or their losses would
/// differ in the last bits.
#[derive(Debug)]
pub(super) struct Engine {
    device: Arc<CudaDevice>,
    pub(super) kernels: Kernels,
    lt: CublasLt,
    plans: Mutex<HashMap<Product, Arc<Plan>>>,
}

impl Engine {
    /// The engine of this GPU, made when it is first asked for: loads the libraries and compiles the kernels.
    ///
    /// # Errors
    /// [`Error::Library`](crate::Error::Library) where one is missing or refuses.
    pub(super) fn shared(ordinal: usize, precision: Precision) -> Result<&'static Self> {
        static ENGINES: Mutex<Vec<(usize, Precision, &'static Engine)>> = Mutex::new(Vec::new());
        let mut engines = ENGINES.lock();
        if let Some((.., engine)) = engines.iter().find(|(of, with, _)| (*of, *with) == (ordinal, precision))
        {
            return Ok(engine);
        }
        let engine: &'static Self = Box::leak(Box::new(Self::new(ordinal, precision)?));
        engines.push((ordinal, precision, engine));
        Ok(engine)
    }

    fn new(ordinal: usize, precision: Precision) -> Result<Self> {
        // A device object of our own, which shares the primary context with the one that memory comes from.
        let device = CudaDevice::new(ordinal)?;
        device.make_current()?;
        let kernels = Kernels::load(device.facts()?.compute_capability, precision)?;
        let lt = CublasLt::open(precision)?;
        Ok(Self { device, kernels, lt, plans: Mutex::default() })
    }

    /// Makes the GPU's context current on this thread, as the libraries want it.
    pub(super) fn enter(&self) -> Result<()> {
        Ok(self.device.make_current()?)
    }

    /// How to compute this product.
    pub(super) fn plan(&'static self, product: Product) -> Result<Arc<Plan>> {
        let mut plans = self.plans.lock();
        if let Some(plan) = plans.get(&product) {
            return Ok(plan.clone());
        }
        let plan = Arc::new(self.lt.plan(product)?);
        plans.insert(product, plan.clone());
        Ok(plan)
    }
}
