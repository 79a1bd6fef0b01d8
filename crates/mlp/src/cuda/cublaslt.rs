//! Matrix products, by cuBLASLt.
//!
//! The library counts in columns, we in rows. A row-major matrix is the transpose of the column-major one in
//! the same bytes, so `out = left · right` is asked for as `outᵀ = rightᵀ · leftᵀ`: our right factor is the
//! library's `A`, our left one its `B`, and nothing is moved.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

use millpond::device::{DevicePtr, StreamHandle};

use super::library::{self, Wanted, function_table};
use crate::{Error, Result};

pub(super) const CUBLASLT: Wanted = Wanted { name: "cuBLASLt", stem: "libcublasLt", wheel: "nvidia-cublas" };

type Handle = *mut c_void;
type Description = *mut c_void;
type Layout = *mut c_void;
type Preference = *mut c_void;

/// `cublasLtMatmulAlgo_t`: what the library needs to run one of its algorithms. Opaque.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct Algorithm([u64; 8]);

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct Suggestion {
    algorithm: Algorithm,
    workspace: usize,
    state: c_int,
    waves: f32,
    reserved: [c_int; 4],
}

const NO_SUGGESTION: Suggestion =
    Suggestion { algorithm: Algorithm([0; 8]), workspace: 0, state: 0, waves: 0.0, reserved: [0; 4] };

// The library's numbers, from cublasLt.h, cublas_api.h and library_types.h. They are part of its binary
// interface and have not changed from CUDA 12.0 to 13.
const CUDA_R_32F: c_int = 0;
const COMPUTE_32F: c_int = 68;
const COMPUTE_32F_FAST_TF32: c_int = 77;
const TRANSPOSED: c_int = 1;
const EPILOGUE_RELU: c_int = 2;
const DESC_TRANSA: c_int = 3;
const DESC_TRANSB: c_int = 4;
const DESC_EPILOGUE: c_int = 7;
const PREF_MAX_WORKSPACE_BYTES: c_int = 1;

function_table! {
    Functions {
        cublasLtCreate(handle: *mut Handle) -> c_int;
        cublasLtGetStatusString(status: c_int) -> *const c_char;
        cublasLtMatmulDescCreate(description: *mut Description, compute: c_int, scale: c_int) -> c_int;
        cublasLtMatmulDescDestroy(description: Description) -> c_int;
        cublasLtMatmulDescSetAttribute(
            description: Description,
            attribute: c_int,
            value: *const c_void,
            bytes: usize,
        ) -> c_int;
        cublasLtMatrixLayoutCreate(layout: *mut Layout, ty: c_int, rows: u64, cols: u64, ld: i64) -> c_int;
        cublasLtMatrixLayoutDestroy(layout: Layout) -> c_int;
        cublasLtMatmulPreferenceCreate(preference: *mut Preference) -> c_int;
        cublasLtMatmulPreferenceDestroy(preference: Preference) -> c_int;
        cublasLtMatmulPreferenceSetAttribute(
            preference: Preference,
            attribute: c_int,
            value: *const c_void,
            bytes: usize,
        ) -> c_int;
        cublasLtMatmulAlgoGetHeuristic(
            handle: Handle,
            description: Description,
            a: Layout,
            b: Layout,
            c: Layout,
            d: Layout,
            preference: Preference,
            asked: c_int,
            suggestions: *mut Suggestion,
            given: *mut c_int,
        ) -> c_int;
        cublasLtMatmul(
            handle: Handle,
            description: Description,
            alpha: *const c_void,
            a: *const c_void,
            a_layout: Layout,
            b: *const c_void,
            b_layout: Layout,
            beta: *const c_void,
            c: *const c_void,
            c_layout: Layout,
            d: *mut c_void,
            d_layout: Layout,
            algorithm: *const Algorithm,
            workspace: *mut c_void,
            workspace_bytes: usize,
            stream: *mut c_void,
        ) -> c_int;
    }
}

/// A product's shape: `out[rows, cols] = left · right`, over `inner`, where a factor may be stored transposed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Product {
    rows: usize,
    inner: usize,
    cols: usize,
    left_transposed: bool,
    right_transposed: bool,
    relu: bool,
}

impl Product {
    /// `left[rows, inner] · right[inner, cols]`, and `max(0, …)` of it if `relu`.
    pub(super) fn plain(left: (usize, usize), right: (usize, usize), relu: bool) -> Self {
        let ((rows, inner), (_, cols)) = (left, right);
        Self { rows, inner, cols, left_transposed: false, right_transposed: false, relu }
    }

    /// `left[rows, inner] · right[cols, inner]ᵀ`.
    pub(super) fn right_transposed(left: (usize, usize), right: (usize, usize)) -> Self {
        let ((rows, inner), (cols, _)) = (left, right);
        Self { rows, inner, cols, left_transposed: false, right_transposed: true, relu: false }
    }

    /// `left[inner, rows]ᵀ · right[inner, cols]`.
    pub(super) fn left_transposed(left: (usize, usize), right: (usize, usize)) -> Self {
        let ((inner, rows), (_, cols)) = (left, right);
        Self { rows, inner, cols, left_transposed: true, right_transposed: false, relu: false }
    }
}

/// Where a product's matrices lie.
#[derive(Debug, Clone, Copy)]
pub(super) struct Operands {
    pub(super) left: DevicePtr,
    pub(super) right: DevicePtr,
    pub(super) out: DevicePtr,
}

/// Memory for a product's intermediate results. Null and 0 where the algorithm needs none.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scratch {
    pub(super) at: DevicePtr,
    pub(super) bytes: usize,
}

/// The loaded library and its handle for one GPU, which are never given up.
pub(super) struct CublasLt {
    functions: Functions,
    handle: Handle,
    compute: c_int,
}

// SAFETY: "The cuBLASLt library is thread-safe": a handle may be used by several threads at once.
unsafe impl Send for CublasLt {}
// SAFETY: as above.
unsafe impl Sync for CublasLt {}

impl CublasLt {
    /// Finds the library and makes a handle for the GPU whose context is current. `tf32` lets tensor cores
    /// round the factors to 10 bits of mantissa.
    pub(super) fn open(tf32: bool) -> Result<Self> {
        let library = library::open(CUBLASLT)?;
        // SAFETY: the types are those of cublasLt.h, and the library is never closed.
        let functions =
            unsafe { Functions::look_up(library) }.map_err(|name| library::lacks(CUBLASLT.name, name))?;
        let compute = if tf32 { COMPUTE_32F_FAST_TF32 } else { COMPUTE_32F };
        let mut opened = Self { functions, handle: ptr::null_mut(), compute };
        // SAFETY: the handle is writable.
        let created = unsafe { (opened.functions.cublasLtCreate)(&mut opened.handle) };
        opened.check("cublasLtCreate", created)?;
        Ok(opened)
    }

    /// Describes a product to the library.
    pub(super) fn describe(&'static self, product: Product) -> Result<Described> {
        let Product { rows, inner, cols, left_transposed, right_transposed, relu } = product;
        let mut described = Described {
            lt: self,
            description: ptr::null_mut(),
            right: ptr::null_mut(),
            left: ptr::null_mut(),
            out: ptr::null_mut(),
        };
        // SAFETY: the description is writable.
        self.check("cublasLtMatmulDescCreate", unsafe {
            (self.functions.cublasLtMatmulDescCreate)(&mut described.description, self.compute, CUDA_R_32F)
        })?;
        for (attribute, value, wanted) in [
            (DESC_TRANSA, TRANSPOSED, right_transposed),
            (DESC_TRANSB, TRANSPOSED, left_transposed),
            (DESC_EPILOGUE, EPILOGUE_RELU, relu),
        ] {
            if wanted {
                described.set(attribute, value)?;
            }
        }
        // The shapes in which the row-major matrices are stored, rows and columns.
        let stored = |transposed, rows, cols| if transposed { (cols, rows) } else { (rows, cols) };
        described.right = self.layout(stored(right_transposed, inner, cols))?;
        described.left = self.layout(stored(left_transposed, rows, inner))?;
        described.out = self.layout((rows, cols))?;
        Ok(described)
    }

    /// The layout of a dense row-major matrix: column-major, it has the columns as rows.
    fn layout(&self, (rows, cols): (usize, usize)) -> Result<Layout> {
        let mut layout = ptr::null_mut();
        // SAFETY: the layout is writable.
        self.check("cublasLtMatrixLayoutCreate", unsafe {
            (self.functions.cublasLtMatrixLayoutCreate)(
                &mut layout,
                CUDA_R_32F,
                cols as u64,
                rows as u64,
                cols as i64,
            )
        })?;
        Ok(layout)
    }

    fn check(&self, call: &'static str, status: c_int) -> Result<()> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: the function returns a static C string for every number.
        let text = unsafe { CStr::from_ptr((self.functions.cublasLtGetStatusString)(status)) };
        Err(Error::Library {
            library: CUBLASLT.name,
            what: format!("{call} failed: {} ({status})", text.to_string_lossy()),
        })
    }
}

impl std::fmt::Debug for CublasLt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CublasLt")
    }
}

/// A way to compute a product.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate {
    algorithm: Algorithm,
    /// Bytes of scratch memory that it needs.
    pub(super) workspace: usize,
}

/// A product that the library knows about.
pub(super) struct Described {
    lt: &'static CublasLt,
    description: Description,
    right: Layout,
    left: Layout,
    out: Layout,
}

// SAFETY: descriptions are plain memory that the library only reads once they are made.
unsafe impl Send for Described {}
// SAFETY: as above.
unsafe impl Sync for Described {}

impl Described {
    fn set(&mut self, attribute: c_int, value: c_int) -> Result<()> {
        // SAFETY: all attributes that we set are 32-bit numbers, and the description lives.
        self.lt.check("cublasLtMatmulDescSetAttribute", unsafe {
            (self.lt.functions.cublasLtMatmulDescSetAttribute)(
                self.description,
                attribute,
                (&raw const value).cast(),
                size_of::<c_int>(),
            )
        })
    }

    /// What the library's heuristics suggest, best first, with at most `workspace` bytes of scratch memory.
    pub(super) fn candidates<const N: usize>(&self, workspace: usize) -> Result<Vec<Candidate>> {
        let functions = &self.lt.functions;
        let mut preference = ptr::null_mut();
        let mut suggestions = [NO_SUGGESTION; N];
        let mut given = 0;
        // SAFETY: the preference is writable.
        self.lt.check("cublasLtMatmulPreferenceCreate", unsafe {
            (functions.cublasLtMatmulPreferenceCreate)(&mut preference)
        })?;
        // SAFETY: the preference lives until after the last call, descriptions and layouts live, the attribute
        // is a size, there is room for N suggestions.
        let status = unsafe {
            let limit = (&raw const workspace).cast();
            let set = functions.cublasLtMatmulPreferenceSetAttribute;
            let status = match set(preference, PREF_MAX_WORKSPACE_BYTES, limit, size_of::<usize>()) {
                0 => (functions.cublasLtMatmulAlgoGetHeuristic)(
                    self.lt.handle,
                    self.description,
                    self.right,
                    self.left,
                    self.out,
                    self.out,
                    preference,
                    N as c_int,
                    suggestions.as_mut_ptr(),
                    &mut given,
                ),
                refused => refused,
            };
            (functions.cublasLtMatmulPreferenceDestroy)(preference);
            status
        };
        self.lt.check("cublasLtMatmulAlgoGetHeuristic", status)?;
        Ok(suggestions[..usize::try_from(given).unwrap_or(0)]
            .iter()
            .filter(|suggestion| suggestion.state == 0)
            .map(|suggestion| Candidate { algorithm: suggestion.algorithm, workspace: suggestion.workspace })
            .collect())
    }

    /// Queues the product.
    ///
    /// # Safety
    /// The operands have the product's shapes, `scratch` what the candidate needs, and all of them may be used
    /// in stream order.
    pub(super) unsafe fn run(
        &self,
        candidate: &Candidate,
        Operands { left, right, out }: Operands,
        scratch: Scratch,
        stream: StreamHandle,
    ) -> Result<()> {
        let (one, zero) = (1.0_f32, 0.0_f32);
        let out = out.raw() as *mut c_void;
        // SAFETY: the caller's promise for device memory. The factors 1 and 0 are read before the call returns
        // (the pointer mode is the host's); with 0, `out` is not read.
        let status = unsafe {
            (self.lt.functions.cublasLtMatmul)(
                self.lt.handle,
                self.description,
                (&raw const one).cast(),
                right.raw() as *const c_void,
                self.right,
                left.raw() as *const c_void,
                self.left,
                (&raw const zero).cast(),
                out,
                self.out,
                out,
                self.out,
                &candidate.algorithm,
                scratch.at.raw() as *mut c_void,
                scratch.bytes,
                stream.raw() as *mut c_void,
            )
        };
        self.lt.check("cublasLtMatmul", status)
    }
}

impl Drop for Described {
    fn drop(&mut self) {
        let functions = &self.lt.functions;
        // SAFETY: what was made is not used again, and what was not made is null.
        unsafe {
            for layout in [self.right, self.left, self.out] {
                if !layout.is_null() {
                    (functions.cublasLtMatrixLayoutDestroy)(layout);
                }
            }
            if !self.description.is_null() {
                (functions.cublasLtMatmulDescDestroy)(self.description);
            }
        }
    }
}

impl std::fmt::Debug for Described {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Described")
    }
}
