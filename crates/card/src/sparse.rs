//! cuSPARSE, as PyTorch calls it. Its own library has a CUDA runtime inside, which would look for a driver.
//!
//! Its workspaces were not measured, and are not counted. A product of two sparse matrices is taken to have no elements.

use std::ffi::{c_char, c_int};

use crate::stubs::{DONE, answers, done, handle};
use crate::workspaces::{Unmeasured, used};

done! {
    cusparseCbsrmm cusparseCbsrmv cusparseCbsrsm2_analysis cusparseCbsrsm2_solve cusparseCbsrsv2_analysis
    cusparseCbsrsv2_solve cusparseCcsrgeam2 cusparseCreateIdentityPermutation cusparseCsrSetPointers
    cusparseCsrSetStridedBatch cusparseDbsrmm cusparseDbsrmv cusparseDbsrsm2_analysis cusparseDbsrsm2_solve
    cusparseDbsrsv2_analysis cusparseDbsrsv2_solve cusparseDcsrgeam2 cusparseDestroy cusparseDestroyBsrsm2Info
    cusparseDestroyBsrsv2Info cusparseDestroyDnMat cusparseDestroyDnVec cusparseDestroyMatDescr cusparseDestroySpMat
    cusparseDnMatSetStridedBatch cusparseSDDMM cusparseSDDMM_preprocess cusparseSbsrmm cusparseSbsrmv
    cusparseSbsrsm2_analysis cusparseSbsrsm2_solve cusparseSbsrsv2_analysis cusparseSbsrsv2_solve cusparseScsrgeam2
    cusparseSetMatDiagType cusparseSetMatFillMode cusparseSetMatIndexBase cusparseSetMatType cusparseSetPointerMode
    cusparseSetStream cusparseSpGEMM_copy cusparseSpGEMM_destroyDescr cusparseSpMM cusparseSpMV
    cusparseSpMatSetAttribute cusparseSpSM_analysis cusparseSpSM_destroyDescr cusparseSpSM_solve cusparseSpSV_analysis
    cusparseSpSV_destroyDescr cusparseSpSV_solve cusparseXbsrsm2_zeroPivot cusparseXbsrsv2_zeroPivot cusparseXcoo2csr
    cusparseXcoosortByRow cusparseXcsrsort cusparseZbsrmm cusparseZbsrmv cusparseZbsrsm2_analysis cusparseZbsrsm2_solve
    cusparseZbsrsv2_analysis cusparseZbsrsv2_solve cusparseZcsrgeam2
}

answers! {
    cusparseCreate: usize = handle();
    cusparseCreateBsrsm2Info: usize = handle();
    cusparseCreateBsrsv2Info: usize = handle();
    cusparseCreateCoo: usize = handle();
    cusparseCreateCsr: usize = handle();
    cusparseCreateDnMat: usize = handle();
    cusparseCreateDnVec: usize = handle();
    cusparseCreateMatDescr: usize = handle();
    cusparseSpGEMM_createDescr: usize = handle();
    cusparseSpSM_createDescr: usize = handle();
    cusparseSpSV_createDescr: usize = handle();
}

#[unsafe(no_mangle)]
extern "C" fn cusparseGetErrorString(_error: c_int) -> *const c_char {
    c"an error of a card that is not there".as_ptr()
}

/// Functions that say how many bytes a workspace has, behind as many arguments as stand in brackets.
macro_rules! sizes {
    ($([$($argument:ident)*] $type:ty; $($name:ident)*;)*) => { $(
        sizes! { @all [$($argument)*] [$type] $($name)* }
    )* };
    (@all $arguments:tt $type:tt $($name:ident)*) => { $(
        sizes! { @one $arguments $type $name }
    )* };
    (@one [$($argument:ident)*] [$type:ty] $name:ident) => {
        /// # Safety
        /// As cuSPARSE's.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: usize,)* answer: *mut $type) -> c_int {
            $(let _ = $argument;)*
            used(Unmeasured::Sparse, 0);
            // SAFETY: the caller names a place for the answer.
            unsafe { answer.write(0) };
            DONE
        }
    };
}

sizes! {
    [library rows columns count row column] usize; cusparseXcoosort_bufferSizeExt cusparseXcsrsort_bufferSizeExt;
    [library how alpha a x beta y computed algorithm] usize; cusparseSpMV_bufferSize;
    [library how alpha a x y computed algorithm about] usize; cusparseSpSV_bufferSize;
    [library how other_how alpha a b beta c computed algorithm] usize; cusparseSpMM_bufferSize cusparseSDDMM_bufferSize;
    [library how other_how alpha a b c computed algorithm about] usize; cusparseSpSM_bufferSize;
    [library how other_how alpha a b beta c computed algorithm about] usize; cusparseSpGEMM_workEstimation cusparseSpGEMM_compute;
    [library order how rows count kind a row column block about] c_int;
    cusparseSbsrsv2_bufferSize cusparseDbsrsv2_bufferSize cusparseCbsrsv2_bufferSize cusparseZbsrsv2_bufferSize;
    [library order how other_how rows columns count kind a row column block about] c_int;
    cusparseSbsrsm2_bufferSize cusparseDbsrsm2_bufferSize cusparseCbsrsm2_bufferSize cusparseZbsrsm2_bufferSize;
    [library rows columns alpha kind_a count_a a row_a column_a beta kind_b count_b b row_b column_b kind_c c row_c column_c] usize;
    cusparseScsrgeam2_bufferSizeExt cusparseDcsrgeam2_bufferSizeExt cusparseCcsrgeam2_bufferSizeExt cusparseZcsrgeam2_bufferSizeExt;
}

/// # Safety
/// As cuSPARSE's.
#[unsafe(no_mangle)]
unsafe extern "C" fn cusparseSpMatGetSize(
    _matrix: usize,
    rows: *mut i64,
    columns: *mut i64,
    count: *mut i64,
) -> c_int {
    used(Unmeasured::Sparse, 0);
    // SAFETY: the caller names a place for each answer.
    unsafe { [rows, columns, count].into_iter().for_each(|answer| answer.write(0)) };
    DONE
}

/// A sum has the elements of both at most.
///
/// # Safety
/// As cuSPARSE's.
#[unsafe(no_mangle)]
unsafe extern "C" fn cusparseXcsrgeam2Nnz(
    _library: usize,
    _rows: c_int,
    _columns: c_int,
    _kind_a: usize,
    count_a: c_int,
    _row_a: usize,
    _column_a: usize,
    _kind_b: usize,
    count_b: c_int,
    _row_b: usize,
    _column_b: usize,
    _kind_c: usize,
    _row_c: usize,
    count: *mut c_int,
    _workspace: usize,
) -> c_int {
    // SAFETY: the caller names a place for the answer.
    unsafe { count.write(count_a.saturating_add(count_b)) };
    DONE
}
