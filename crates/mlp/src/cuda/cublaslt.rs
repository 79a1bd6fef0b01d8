//! Matrix products, by cuBLASLt.
//!
//! The library counts in columns, we in rows. A row-major matrix is the transpose of the column-major one in
//! the same bytes, so `out = left · right` is asked for as `outᵀ = rightᵀ · leftᵀ`: our right factor is the
//! library's `A`, our left one its `B`, and nothing is moved.

use std::ffi::{c_int, c_void};

use cudarc::cublaslt::{
    result::{self, CublasError},
    sys::{
        self, cublasComputeType_t as Compute, cublasLtEpilogue_t as Epilogue, cublasLtHandle_t,
        cublasLtMatmulAlgo_t, cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t as Attribute,
        cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t as Limit, cublasLtMatrixLayout_t,
        cublasLtMatrixLayoutAttribute_t as Shape, cublasLtReductionScheme_t as ReductionScheme, cudaDataType,
        cudaStream_t,
    },
};
use millpond::device::{DevicePtr, StreamHandle};

use super::toolkit::{self, Wanted};
use crate::{Error, Precision, Result};

pub(super) const CUBLASLT: Wanted =
    Wanted { name: "cuBLASLt", stem: "cublasLt", wheel: "nvidia-cublas", is_present: sys::is_culib_present };

/// Scratch memory that an algorithm may need, in bytes: a product of 64 × 784 split over 32 parts fits.
const WORKSPACE: usize = 8 << 20;
const F32: cudaDataType = cudaDataType::CUDA_R_32F;
/// `CUBLAS_OP_T` of cublas_api.h, which cudarc binds in its module for cuBLAS.
const TRANSPOSED: c_int = 1;

/// A product's shape: `out[rows, cols] = left · right`, over `inner`, where a factor may be stored transposed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Product {
    pub(super) rows: usize,
    pub(super) inner: usize,
    pub(super) cols: usize,
    pub(super) left_transposed: bool,
    pub(super) right_transposed: bool,
    pub(super) relu: bool,
    /// The sums over `inner` are cut into as many parts, which divide it, and `out` has a matrix for each.
    pub(super) parts: usize,
}

impl Product {
    /// `left[rows, inner] · right[inner, cols]`.
    pub(super) fn of(rows: usize, inner: usize, cols: usize) -> Self {
        Self { rows, inner, cols, left_transposed: false, right_transposed: false, relu: false, parts: 1 }
    }
}

/// Where a product's matrices lie.
#[derive(Debug, Clone, Copy)]
pub(super) struct Operands {
    pub(super) left: DevicePtr,
    pub(super) right: DevicePtr,
    pub(super) out: DevicePtr,
    /// If given, the product times this is added to `out`.
    pub(super) added: Option<f32>,
}

/// The library's handle for one GPU, which is never given up.
#[derive(Debug)]
pub(super) struct CublasLt {
    handle: cublasLtHandle_t,
    compute: Compute,
}

// SAFETY: "The cuBLASLt library is thread-safe": a handle may be used by several threads at once.
unsafe impl Send for CublasLt {}
// SAFETY: as above.
unsafe impl Sync for CublasLt {}

impl CublasLt {
    /// Finds the library and makes a handle for the GPU whose context is current.
    pub(super) fn open(precision: Precision) -> Result<Self> {
        toolkit::find(CUBLASLT)?;
        let handle = result::create_handle().map_err(refused("cublasLtCreate"))?;
        let compute = match precision {
            Precision::Float32 => Compute::CUBLAS_COMPUTE_32F,
            Precision::Tf32 => Compute::CUBLAS_COMPUTE_32F_FAST_TF32,
            Precision::Bfloat16 => Compute::CUBLAS_COMPUTE_32F_FAST_16BF,
        };
        Ok(Self { handle, compute })
    }

    /// Describes a product to the library, and asks how to compute it.
    pub(super) fn plan(&'static self, product: Product) -> Result<ProductPlan> {
        let Product { rows, inner, cols, left_transposed, right_transposed, relu, parts } = product;
        let description = result::create_matmul_desc(self.compute, F32);
        let description = description.map_err(refused("cublasLtMatmulDescCreate"))?;
        let description = Owned(description, result::destroy_matmul_desc);
        for (attribute, value, wanted) in [
            (Attribute::CUBLASLT_MATMUL_DESC_TRANSA, TRANSPOSED, right_transposed),
            (Attribute::CUBLASLT_MATMUL_DESC_TRANSB, TRANSPOSED, left_transposed),
            (Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, Epilogue::CUBLASLT_EPILOGUE_RELU as c_int, relu),
        ] {
            if wanted {
                let (at, bytes) = ((&raw const value).cast(), size_of::<c_int>());
                // SAFETY: all attributes that we set are 32-bit numbers, and the description lives.
                unsafe { result::set_matmul_desc_attribute(description.0, attribute, at, bytes) }
                    .map_err(refused("cublasLtMatmulDescSetAttribute"))?;
            }
        }
        let part = inner / parts;
        // A factor as it is stored, row-major: its rows and columns, and its part of them. Only products
        // whose factors both have `inner` as columns are cut.
        let factor = |transposed, rows, cols| {
            let (rows, cols) = if transposed { (cols, rows) } else { (rows, cols) };
            if parts == 1 {
                layout((rows, cols), cols, None)
            } else {
                layout((rows, part), cols, Some((parts, part)))
            }
        };
        let out = layout((rows, cols), cols, (parts > 1).then_some((parts, rows * cols)));
        let (right, left) = (factor(right_transposed, inner, cols)?, factor(left_transposed, rows, inner)?);
        let (out, preference) = (out?, preference()?);
        // SAFETY: handle, description, layouts and preference live.
        let suggestion = unsafe {
            result::get_matmul_algo_heuristic(
                self.handle,
                description.0,
                right.0,
                left.0,
                out.0,
                out.0,
                preference.0,
            )
        };
        let suggestion = suggestion.map_err(refused("cublasLtMatmulAlgoGetHeuristic"))?;
        let (algorithm, workspace) = (suggestion.algo, suggestion.workspaceSize);
        Ok(ProductPlan { lt: self, description, right, left, out, algorithm, workspace })
    }
}

/// The error for a call that the library refused.
fn refused(call: &'static str) -> impl Fn(CublasError) -> Error {
    move |error| Error::Library { library: CUBLASLT.name, what: format!("{call} failed: {:?}", error.0) }
}

/// An object of the library, which is destroyed when it goes.
#[derive(Debug)]
struct Owned<T: Copy>(T, unsafe fn(T) -> std::result::Result<(), CublasError>);

impl<T: Copy> Drop for Owned<T> {
    fn drop(&mut self) {
        // A refusal leaks one object, and there is nobody to tell.
        // SAFETY: the object is the function's to destroy, and is not used again.
        let _ = unsafe { (self.1)(self.0) };
    }
}

/// The layout of row-major matrices of one shape, in rows of `pitch` elements: one, or as many as `parts` says, each so many
/// elements after the one before.
fn layout(
    (rows, cols): (usize, usize),
    pitch: usize,
    parts: Option<(usize, usize)>,
) -> Result<Owned<cublasLtMatrixLayout_t>> {
    // In the library's eyes, column-major, it has the columns as rows.
    let made = result::create_matrix_layout(F32, cols as u64, rows as u64, pitch as i64);
    let made = made.map_err(refused("cublasLtMatrixLayoutCreate"))?;
    let made = Owned(made, result::destroy_matrix_layout);
    let Some((count, stride)) = parts else { return Ok(made) };
    let (count, stride) = (count as i32, stride as i64);
    for (attribute, value, bytes) in [
        (Shape::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, (&raw const count).cast(), size_of::<i32>()),
        (Shape::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, (&raw const stride).cast(), size_of::<i64>()),
    ] {
        // SAFETY: the layout lives; the attributes are numbers of these sizes.
        unsafe { result::set_matrix_layout_attribute(made.0, attribute, value, bytes) }
            .map_err(refused("cublasLtMatrixLayoutSetAttribute"))?;
    }
    Ok(made)
}

/// What the library's suggestions are to keep to: at most [`WORKSPACE`] bytes of scratch memory, and no parts of sums that are
/// added up one after another in the output. That took up to five times as long for few rows (docs/lab/train.md).
fn preference() -> Result<Owned<cublasLtMatmulPreference_t>> {
    let made = result::create_matmul_pref().map_err(refused("cublasLtMatmulPreferenceCreate"))?;
    let made = Owned(made, result::destroy_matmul_pref);
    let schemes = ReductionScheme::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32
        | ReductionScheme::CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE as u32;
    let workspace = WORKSPACE;
    for (limit, value, bytes) in [
        (Limit::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, (&raw const workspace).cast(), size_of::<usize>()),
        (Limit::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, (&raw const schemes).cast(), size_of::<u32>()),
    ] {
        // SAFETY: the preference lives, and the attributes are numbers of these sizes.
        unsafe { result::set_matmul_pref_attribute(made.0, limit, value, bytes) }
            .map_err(refused("cublasLtMatmulPreferenceSetAttribute"))?;
    }
    Ok(made)
}

/// A product, and the way to compute it: the library's first suggestion. Nothing is timed, so that every run computes the same.
#[derive(Debug)]
pub(super) struct ProductPlan {
    lt: &'static CublasLt,
    description: Owned<cublasLtMatmulDesc_t>,
    right: Owned<cublasLtMatrixLayout_t>,
    left: Owned<cublasLtMatrixLayout_t>,
    out: Owned<cublasLtMatrixLayout_t>,
    algorithm: cublasLtMatmulAlgo_t,
    /// Bytes of scratch memory that it needs.
    pub(super) workspace: usize,
}

// SAFETY: descriptions are plain memory that the library only reads once they are made.
unsafe impl Send for ProductPlan {}
// SAFETY: as above.
unsafe impl Sync for ProductPlan {}

impl ProductPlan {
    /// Queues the product.
    ///
    /// # Safety
    /// The operands have the product's shapes, `scratch` has [`workspace`](Self::workspace) bytes, and all of them may be used
    /// in stream order.
    pub(super) unsafe fn run(
        &self,
        Operands { left, right, out, added }: Operands,
        scratch: DevicePtr,
        stream: StreamHandle,
    ) -> Result<()> {
        let (factor, kept) = added.map_or((1.0_f32, 0.0_f32), |factor| (factor, 1.0));
        let out = out.raw() as *mut c_void;
        // SAFETY: the caller's promise for device memory. Both factors are read before the call returns
        // (the pointer mode is the host's). If the second is 0, `out` is not read.
        unsafe {
            result::matmul(
                self.lt.handle,
                self.description.0,
                (&raw const factor).cast(),
                (&raw const kept).cast(),
                right.raw() as *const c_void,
                self.right.0,
                left.raw() as *const c_void,
                self.left.0,
                out,
                self.out.0,
                out,
                self.out.0,
                &self.algorithm,
                scratch.raw() as *mut c_void,
                self.workspace,
                stream.raw() as cudaStream_t,
            )
        }
        .map_err(refused("cublasLtMatmul"))
    }
}
