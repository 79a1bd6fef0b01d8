//! cuSOLVER, as PyTorch calls it. Its own library has a CUDA runtime inside, which would look for a driver.
//!
//! The workspaces were not measured. They are LAPACK's for the same work, or the whole matrix where that is more.

use std::ffi::c_int;

use crate::stubs::{DONE, answers, done, handle};
use crate::workspaces::{Unmeasured, used};

done! {
    cusolverDnDestroy cusolverDnDestroyGesvdjInfo cusolverDnDestroyParams cusolverDnDestroySyevjInfo cusolverDnSetStream
    cusolverDnXgesvdjSetMaxSweeps cusolverDnXgesvdjSetSortEig cusolverDnXgesvdjSetTolerance cusolverDnXsyevjSetMaxSweeps
    cusolverDnXsyevjSetSortEig cusolverDnXsyevjSetTolerance
    cusolverDnCgeqrf cusolverDnCgesvd cusolverDnCgesvdaStridedBatched cusolverDnCgesvdj cusolverDnCgesvdjBatched
    cusolverDnCgetrf cusolverDnCgetrs cusolverDnCheevd cusolverDnCheevj cusolverDnCheevjBatched cusolverDnCpotrf
    cusolverDnCpotrfBatched cusolverDnCpotrs cusolverDnCpotrsBatched cusolverDnCsytrf cusolverDnCungqr cusolverDnCunmqr
    cusolverDnDgeqrf cusolverDnDgesvd cusolverDnDgesvdaStridedBatched cusolverDnDgesvdj cusolverDnDgesvdjBatched
    cusolverDnDgetrf cusolverDnDgetrs cusolverDnDorgqr cusolverDnDormqr cusolverDnDpotrf cusolverDnDpotrfBatched
    cusolverDnDpotrs cusolverDnDpotrsBatched cusolverDnDsyevd cusolverDnDsyevj cusolverDnDsyevjBatched cusolverDnDsytrf
    cusolverDnSgeqrf cusolverDnSgesvd cusolverDnSgesvdaStridedBatched cusolverDnSgesvdj cusolverDnSgesvdjBatched
    cusolverDnSgetrf cusolverDnSgetrs cusolverDnSorgqr cusolverDnSormqr cusolverDnSpotrf cusolverDnSpotrfBatched
    cusolverDnSpotrs cusolverDnSpotrsBatched cusolverDnSsyevd cusolverDnSsyevj cusolverDnSsyevjBatched cusolverDnSsytrf
    cusolverDnXgeev cusolverDnXgeqrf cusolverDnXpotrf cusolverDnXpotrs cusolverDnXsyevBatched cusolverDnXsyevd
    cusolverDnXsytrs
    cusolverDnZgeqrf cusolverDnZgesvd cusolverDnZgesvdaStridedBatched cusolverDnZgesvdj cusolverDnZgesvdjBatched
    cusolverDnZgetrf cusolverDnZgetrs cusolverDnZheevd cusolverDnZheevj cusolverDnZheevjBatched cusolverDnZpotrf
    cusolverDnZpotrfBatched cusolverDnZpotrs cusolverDnZpotrsBatched cusolverDnZsytrf cusolverDnZungqr cusolverDnZunmqr
}

answers! {
    cusolverDnCreate: usize = handle();
    cusolverDnCreateGesvdjInfo: usize = handle();
    cusolverDnCreateParams: usize = handle();
    cusolverDnCreateSyevjInfo: usize = handle();
}

/// Columns that are worked on at once.
const PANEL: usize = 128;

/// A length that is none counts as 0.
fn length(number: i64) -> usize {
    usize::try_from(number).unwrap_or(0)
}

/// The whole matrix, and a panel of it.
fn whole(rows: usize, columns: usize) -> usize {
    rows * columns + panel(rows, columns)
}

fn panel(rows: usize, columns: usize) -> usize {
    rows.max(columns) * PANEL
}

/// Of all eigenvalues and eigenvectors of a symmetric matrix (LAPACK's `syevd`: 1 + 6 n + 2 n²).
fn eigen(n: usize) -> usize {
    1 + 6 * n + 2 * n * n
}

/// Of singular values: the matrix, and both sides.
fn singular(rows: usize, columns: usize) -> usize {
    2 * rows * columns + panel(rows, columns)
}

/// Tells of a workspace, and writes how many elements it has.
///
/// # Safety
/// `answer` is a place for the number.
unsafe fn tell(answer: *mut c_int, elements: usize, bytes_of_one: usize) -> c_int {
    used(Unmeasured::Solver, elements * bytes_of_one);
    // SAFETY: the caller's.
    unsafe { answer.write(c_int::try_from(elements).unwrap_or(c_int::MAX)) };
    DONE
}

/// Functions that say how many elements a workspace has, each with the bytes of an element. In brackets stand the arguments between the
/// handle and the answer; those behind it are not looked at.
macro_rules! elements {
    ($([$($argument:ident)*] $elements:expr; $($name:ident: $bytes:literal)*;)*) => { $(
        elements! { @all [$($argument)*] [$elements] $($name: $bytes)* }
    )* };
    (@all $arguments:tt $elements:tt $($name:ident: $bytes:literal)*) => { $(
        elements! { @one $arguments $elements $name: $bytes }
    )* };
    (@one [$($argument:ident)*] [$elements:expr] $name:ident: $bytes:literal) => {
        /// # Safety
        /// As cuSOLVER's.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(_handle: usize, $($argument: usize,)* answer: *mut c_int) -> c_int {
            // Numbers have four bytes there.
            $(let $argument = length(i64::from($argument as c_int)); let _ = $argument;)*
            // SAFETY: the caller names a place for the answer.
            unsafe { tell(answer, $elements, $bytes) }
        }
    };
}

elements! {
    [m n a lda] panel(m, n);
    cusolverDnSgeqrf_bufferSize: 4 cusolverDnDgeqrf_bufferSize: 8 cusolverDnCgeqrf_bufferSize: 8 cusolverDnZgeqrf_bufferSize: 16;
    [m n a lda] whole(m, n);
    cusolverDnSgetrf_bufferSize: 4 cusolverDnDgetrf_bufferSize: 8 cusolverDnCgetrf_bufferSize: 8 cusolverDnZgetrf_bufferSize: 16;
    [triangle n a lda] panel(n, n);
    cusolverDnSpotrf_bufferSize: 4 cusolverDnDpotrf_bufferSize: 8 cusolverDnCpotrf_bufferSize: 8 cusolverDnZpotrf_bufferSize: 16;
    [m n k a lda tau] panel(m, n);
    cusolverDnSorgqr_bufferSize: 4 cusolverDnDorgqr_bufferSize: 8 cusolverDnCungqr_bufferSize: 8 cusolverDnZungqr_bufferSize: 16;
    [side transposed m n k a lda tau c ldc] panel(m, n);
    cusolverDnSormqr_bufferSize: 4 cusolverDnDormqr_bufferSize: 8 cusolverDnCunmqr_bufferSize: 8 cusolverDnZunmqr_bufferSize: 16;
    [m n] singular(m, n);
    cusolverDnSgesvd_bufferSize: 4 cusolverDnDgesvd_bufferSize: 8 cusolverDnCgesvd_bufferSize: 8 cusolverDnZgesvd_bufferSize: 16;
    [job economy m n a lda s u ldu v ldv] singular(m, n);
    cusolverDnSgesvdj_bufferSize: 4 cusolverDnDgesvdj_bufferSize: 8 cusolverDnCgesvdj_bufferSize: 8
    cusolverDnZgesvdj_bufferSize: 16;
    [job m n a lda s u ldu v ldv] singular(m, n);
    cusolverDnSgesvdjBatched_bufferSize: 4 cusolverDnDgesvdjBatched_bufferSize: 8 cusolverDnCgesvdjBatched_bufferSize: 8
    cusolverDnZgesvdjBatched_bufferSize: 16;
    [job rank m n a lda between_a s between_s u ldu between_u v ldv between_v] singular(m, n);
    cusolverDnSgesvdaStridedBatched_bufferSize: 4 cusolverDnDgesvdaStridedBatched_bufferSize: 8
    cusolverDnCgesvdaStridedBatched_bufferSize: 8 cusolverDnZgesvdaStridedBatched_bufferSize: 16;
    [job triangle n a lda w] eigen(n);
    cusolverDnSsyevd_bufferSize: 4 cusolverDnDsyevd_bufferSize: 8 cusolverDnCheevd_bufferSize: 8 cusolverDnZheevd_bufferSize: 16
    cusolverDnSsyevj_bufferSize: 4 cusolverDnDsyevj_bufferSize: 8 cusolverDnCheevj_bufferSize: 8 cusolverDnZheevj_bufferSize: 16
    cusolverDnSsyevjBatched_bufferSize: 4 cusolverDnDsyevjBatched_bufferSize: 8 cusolverDnCheevjBatched_bufferSize: 8
    cusolverDnZheevjBatched_bufferSize: 16;
    [n a lda] panel(n, n);
    cusolverDnSsytrf_bufferSize: 4 cusolverDnDsytrf_bufferSize: 8 cusolverDnCsytrf_bufferSize: 8 cusolverDnZsytrf_bufferSize: 16;
}

/// Bytes of one `cudaDataType`.
fn bytes_of(kind: usize) -> usize {
    match kind as c_int {
        1 | 4 => 8,
        5 => 16,
        _ => 4,
    }
}

/// Functions of numbers of eight bytes, which say how many bytes a workspace has on the card and on the host: there it has none.
macro_rules! bytes {
    ($($name:ident [$($argument:ident)*] [$($behind:ident)*] $bytes:expr;)*) => { $(
        /// # Safety
        /// As cuSOLVER's.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            _handle: usize, $($argument: usize,)* on_card: *mut usize, on_host: *mut usize $(, $behind: usize)*
        ) -> c_int {
            $(let $argument = length($argument as i64); let _ = $argument;)*
            let bytes = $bytes;
            used(Unmeasured::Solver, bytes);
            // SAFETY: the caller names a place for each answer.
            unsafe {
                on_card.write(bytes);
                on_host.write(0);
            }
            DONE
        }
    )* };
}

bytes! {
    cusolverDnXgeqrf_bufferSize [settings m n kind a lda of_tau tau computed] [] panel(m, n) * bytes_of(kind);
    cusolverDnXpotrf_bufferSize [settings triangle n kind a lda computed] [] panel(n, n) * bytes_of(kind);
    cusolverDnXsyevd_bufferSize [settings job triangle n kind a lda of_w w computed] [] eigen(n) * bytes_of(kind);
    cusolverDnXsyevBatched_bufferSize [settings job triangle n kind a lda of_w w computed] [batch] eigen(n) * batch * bytes_of(kind);
    cusolverDnXgeev_bufferSize [settings left right n kind a lda of_w w of_l l ldl of_r r ldr computed] [] eigen(n) * bytes_of(kind);
    cusolverDnXsytrs_bufferSize [triangle n columns kind a lda pivots of_b b ldb] [] panel(n, n) * bytes_of(kind);
}
