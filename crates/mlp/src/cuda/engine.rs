//! Everything that training needs of one GPU, shared by the backends of the process.

use std::collections::HashMap;
use std::sync::Arc;

use cudarc::driver::CudaContext;
use parking_lot::Mutex;

use super::cublaslt::{CublasLt, Product, ProductPlan};
use super::driver::refused;
use super::kernels::Kernels;
use crate::{Precision, Result};

/// Libraries, kernels and products. One for each GPU and precision, kept for the life of the process.
#[derive(Debug)]
pub(super) struct Engine {
    /// The GPU's primary context, which is that of the device that memory comes from.
    pub(super) context: Arc<CudaContext>,
    pub(super) kernels: Kernels,
    lt: CublasLt,
    plans: Mutex<HashMap<Product, Arc<ProductPlan>>>,
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
        let context = CudaContext::new(ordinal).map_err(refused("opening the GPU"))?;
        context.bind_to_thread().map_err(refused("cuCtxSetCurrent"))?;
        let kernels = Kernels::load(&context, precision)?;
        let lt = CublasLt::open(precision)?;
        let engine: &'static Self =
            Box::leak(Box::new(Self { context, kernels, lt, plans: Mutex::default() }));
        engines.push((ordinal, precision, engine));
        Ok(engine)
    }

    /// Makes the GPU's context current on this thread, as the libraries want it.
    pub(super) fn enter(&self) -> Result<()> {
        self.context.bind_to_thread().map_err(refused("cuCtxSetCurrent"))
    }

    /// How to compute this product.
    pub(super) fn plan(&'static self, product: Product) -> Result<Arc<ProductPlan>> {
        let mut plans = self.plans.lock();
        if let Some(plan) = plans.get(&product) {
            return Ok(plan.clone());
        }
        let plan = Arc::new(self.lt.plan(product)?);
        plans.insert(product, plan.clone());
        Ok(plan)
    }
}
