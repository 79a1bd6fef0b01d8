//! cuBLAS and cuDNN, as PyTorch calls them. Matrix products and the like are done at once.

use std::ffi::{c_int, c_void};
use std::sync::Mutex;

use crate::stubs::{DONE, answers, done, handle};

done! {
    cublasCaxpy_v2 cublasCcopy_v2 cublasCdotc_v2 cublasCdotu_v2 cublasCgemmBatched
    cublasCgemmStridedBatched cublasCgemm_v2 cublasCgemv_v2 cublasCgerc_v2 cublasCgeru_v2
    cublasCgetrfBatched cublasChemm_v2 cublasChemv_v2 cublasCher2_v2 cublasCher2k_v2 cublasCher_v2
    cublasCherk_v2 cublasCrot_v2 cublasCrotg_v2 cublasCscal_v2 cublasCsrot_v2 cublasCsscal_v2 cublasCswap_v2 cublasCsymm_v2
    cublasCsymv_v2 cublasCsyr2_v2 cublasCsyr2k_v2 cublasCsyr_v2 cublasCsyrk_v2 cublasCtrmm_v2 cublasCtrmv_v2
    cublasCtrsmBatched cublasCtrsm_v2 cublasCtrsv_v2 cublasDasum_v2 cublasDaxpy_v2 cublasDcopy_v2 cublasDdot_v2
    cublasDestroy_v2 cublasDgemmBatched cublasDgemmStridedBatched cublasDgemm_v2 cublasDgemv_v2
    cublasDger_v2 cublasDgetrfBatched cublasDnrm2_v2 cublasDotEx cublasDrot_v2
    cublasDrotg_v2 cublasDrotm_v2 cublasDrotmg_v2 cublasDscal_v2 cublasDswap_v2 cublasDsymm_v2 cublasDsymv_v2 cublasDsyr2_v2
    cublasDsyr2k_v2 cublasDsyr_v2 cublasDsyrk_v2 cublasDtrmm_v2 cublasDtrmv_v2 cublasDtrsmBatched cublasDtrsm_v2
    cublasDtrsv_v2 cublasDzasum_v2 cublasDznrm2_v2 cublasGemmEx cublasGemmStridedBatchedEx cublasGetMatrixAsync
    cublasGetVectorAsync cublasIcamax_v2 cublasIcamin_v2 cublasIdamax_v2 cublasIdamin_v2 cublasIsamax_v2 cublasIsamin_v2
    cublasIzamax_v2 cublasIzamin_v2 cublasLtMatmul cublasLtMatmulDescDestroy cublasLtMatmulDescSetAttribute
    cublasLtMatmulPreferenceDestroy cublasLtMatmulPreferenceSetAttribute cublasLtMatrixLayoutDestroy
    cublasLtMatrixLayoutSetAttribute cublasSasum_v2 cublasSaxpy_v2 cublasScasum_v2 cublasScnrm2_v2 cublasScopy_v2
    cublasSdot_v2 cublasSetMathMode cublasSetMatrixAsync cublasSetPointerMode_v2 cublasSetStream_v2 cublasSetVectorAsync
    cublasSgemmBatched cublasSgemmEx cublasSgemmStridedBatched cublasSgemm_v2 cublasSgemv_v2
    cublasSger_v2 cublasSgetrfBatched cublasSnrm2_v2 cublasSrot_v2 cublasSrotg_v2
    cublasSrotm_v2 cublasSrotmg_v2 cublasSscal_v2 cublasSswap_v2 cublasSsymm_v2 cublasSsymv_v2 cublasSsyr2_v2 cublasSsyr2k_v2
    cublasSsyr_v2 cublasSsyrk_v2 cublasStrmm_v2 cublasStrmv_v2 cublasStrsmBatched cublasStrsm_v2 cublasStrsv_v2 cublasZaxpy_v2
    cublasZcopy_v2 cublasZdotc_v2 cublasZdotu_v2 cublasZdrot_v2 cublasZdscal_v2 cublasZgemmBatched
    cublasZgemmStridedBatched cublasZgemm_v2 cublasZgemv_v2 cublasZgerc_v2 cublasZgeru_v2
    cublasZgetrfBatched cublasZhemm_v2 cublasZhemv_v2 cublasZher2_v2 cublasZher2k_v2 cublasZher_v2
    cublasZherk_v2 cublasZrot_v2 cublasZrotg_v2 cublasZscal_v2 cublasZswap_v2 cublasZsymm_v2 cublasZsymv_v2 cublasZsyr2_v2
    cublasZsyr2k_v2 cublasZsyr_v2 cublasZsyrk_v2 cublasZtrmm_v2 cublasZtrmv_v2 cublasZtrsmBatched cublasZtrsm_v2
    cublasZtrsv_v2
    cudnnBackendCreateDescriptor cudnnBackendDestroyDescriptor cudnnBackendExecute cudnnBackendFinalize
    cudnnBackendGetAttribute cudnnBackendSetAttribute cudnnBatchNormalizationBackwardEx
    cudnnBatchNormalizationForwardInference cudnnBatchNormalizationForwardTrainingEx cudnnCTCLoss cudnnCTCLoss_v8
    cudnnConvolutionBackwardData cudnnConvolutionBackwardFilter cudnnConvolutionBiasActivationForward cudnnConvolutionForward
    cudnnDestroyActivationDescriptor cudnnDestroyCTCLossDescriptor cudnnDestroyConvolutionDescriptor
    cudnnDestroyDropoutDescriptor cudnnDestroyFilterDescriptor cudnnDestroyRNNDataDescriptor cudnnDestroyRNNDescriptor
    cudnnDestroySpatialTransformerDescriptor cudnnDestroyTensorDescriptor cudnnFindConvolutionBackwardDataAlgorithmEx
    cudnnFindConvolutionBackwardFilterAlgorithmEx cudnnFindConvolutionForwardAlgorithmEx cudnnGetCTCLossWorkspaceSize
    cudnnGetCTCLossWorkspaceSize_v8 cudnnGetConvolutionBackwardDataAlgorithm_v7 cudnnGetConvolutionBackwardDataWorkspaceSize
    cudnnGetConvolutionBackwardFilterAlgorithm_v7 cudnnGetConvolutionBackwardFilterWorkspaceSize
    cudnnGetConvolutionForwardAlgorithm_v7 cudnnGetConvolutionForwardWorkspaceSize cudnnGetFilterNdDescriptor
    cudnnGetRNNTempSpaceSizes cudnnGetRNNWeightParams  cudnnGetTensorNdDescriptor
    cudnnPoolingForward cudnnRNNBackwardData_v8 cudnnRNNBackwardWeights_v8 cudnnRNNForward cudnnRestoreDropoutDescriptor
    cudnnSetActivationDescriptor cudnnSetCTCLossDescriptorEx cudnnSetCTCLossDescriptor_v9 cudnnSetConvolutionGroupCount
    cudnnSetConvolutionMathType cudnnSetConvolutionNdDescriptor cudnnSetDropoutDescriptor cudnnSetFilterNdDescriptor
    cudnnSetPooling2dDescriptor cudnnSetRNNDataDescriptor cudnnSetRNNDescriptor_v8 cudnnSetSpatialTransformerNdDescriptor
    cudnnSetStream cudnnSetTensorNdDescriptor cudnnSpatialTfGridGeneratorBackward cudnnSpatialTfGridGeneratorForward
    cudnnSpatialTfSamplerBackward cudnnSpatialTfSamplerForward
}

answers! {
    cublasCreate_v2: usize = handle();
    cublasLtCreate: usize = handle();
    cublasLtMatmulDescCreate: usize = handle();
    cublasLtMatrixLayoutCreate: usize = handle();
    cublasLtMatmulPreferenceCreate: usize = handle();
    cudnnCreate: usize = handle();
    cudnnCreateActivationDescriptor: usize = handle();
    cudnnCreateCTCLossDescriptor: usize = handle();
    cudnnCreateConvolutionDescriptor: usize = handle();
    cudnnCreateDropoutDescriptor: usize = handle();
    cudnnCreateFilterDescriptor: usize = handle();
    cudnnCreatePoolingDescriptor: usize = handle();
    cudnnCreateRNNDataDescriptor: usize = handle();
    cudnnCreateRNNDescriptor: usize = handle();
    cudnnCreateSpatialTransformerDescriptor: usize = handle();
    cudnnCreateTensorDescriptor: usize = handle();
}

/// Functions that answer 0 behind a handle: a mode, a stream, a size.
macro_rules! zero {
    ($($name:ident: $type:ty;)*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(_handle: usize, answer: *mut $type) -> c_int {
            // SAFETY: the caller names a place for the answer.
            unsafe { answer.write(0) };
            DONE
        }
    )* };
}

zero! {
    cublasGetMathMode: c_int;
    cublasGetPointerMode_v2: c_int;
    cudnnGetStream: usize;
    cudnnDropoutGetStatesSize: usize;
}

/// Functions on several matrices at once, which say on the host whether their arguments were right: they were. In brackets stand the
/// arguments before that.
macro_rules! right {
    ($([$($argument:ident)*] $($name:ident)*;)*) => { $(
        right! { @all [$($argument)*] $($name)* }
    )* };
    (@all $arguments:tt $($name:ident)*) => { $(
        right! { @one $arguments $name }
    )* };
    (@one [$($argument:ident)*] $name:ident) => {
        /// # Safety
        /// As cuBLAS'.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: usize,)* answer: *mut c_int) -> c_int {
            $(let _ = $argument;)*
            // SAFETY: the caller names a place for the answer.
            unsafe { answer.write(0) };
            DONE
        }
    };
}

right! {
    [library rows columns a lda tau] cublasSgeqrfBatched cublasDgeqrfBatched cublasCgeqrfBatched cublasZgeqrfBatched;
    [library how rows columns sides a lda c ldc] cublasSgelsBatched cublasDgelsBatched cublasCgelsBatched cublasZgelsBatched;
    [library how n sides a lda pivots b ldb] cublasSgetrsBatched cublasDgetrsBatched cublasCgetrsBatched cublasZgetrsBatched;
}

/// More than any buffer has. So PyTorch does not look where each weight lies in its buffer.
///
/// # Safety
/// As cuDNN's.
#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnGetRNNWeightSpaceSize(_handle: usize, _layers: usize, bytes: *mut usize) -> c_int {
    // SAFETY: the caller names a place for the answer.
    unsafe { bytes.write(1 << 50) };
    DONE
}

/// The workspaces that PyTorch has given to cuBLAS, by address.
static WORKSPACES: Mutex<Vec<usize>> = Mutex::new(Vec::new());

#[unsafe(no_mangle)]
extern "C" fn cublasSetWorkspace_v2(_handle: usize, address: usize, _bytes: usize) -> c_int {
    if let Ok(mut workspaces) = WORKSPACES.lock()
        && !workspaces.contains(&address)
    {
        workspaces.push(address);
    }
    DONE
}

/// The address of the workspace of this number, and 0 behind the last: for the hook of `millpond predict`.
#[unsafe(no_mangle)]
extern "C" fn millpond_card_workspace(number: usize) -> usize {
    WORKSPACES.lock().ok().and_then(|workspaces| workspaces.get(number).copied()).unwrap_or(0)
}

/// Says that there is one way to multiply, which needs no workspace beside PyTorch's.
///
/// # Safety
/// As cuBLAS'. `results` has room for one `cublasLtMatmulHeuristicResult_t`.
#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtMatmulAlgoGetHeuristic(
    _handle: usize,
    _product: usize,
    _a: usize,
    _b: usize,
    _c: usize,
    _d: usize,
    _preference: usize,
    _asked: c_int,
    results: *mut c_void,
    found: *mut c_int,
) -> c_int {
    /// `sizeof(cublasLtMatmulHeuristicResult_t)`: its workspace and its state are 0.
    const RESULT: usize = 96;
    // SAFETY: the caller has room for a result, and for their number.
    unsafe {
        std::ptr::write_bytes(results.cast::<u8>(), 0, RESULT);
        found.write(1);
    }
    DONE
}

/// # Safety
/// As cuDNN's.
#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnGetBatchNormalizationTrainingExReserveSpaceSize(
    _handle: usize,
    _mode: c_int,
    _operations: c_int,
    _activation: usize,
    _x: usize,
    bytes: *mut usize,
) -> c_int {
    // SAFETY: the caller names a place for the answer.
    unsafe { bytes.write(0) };
    DONE
}

/// # Safety
/// As cuDNN's.
#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
    _handle: usize,
    _mode: c_int,
    _operations: c_int,
    _x: usize,
    _z: usize,
    _y: usize,
    _scale: usize,
    _activation: usize,
    bytes: *mut usize,
) -> c_int {
    // SAFETY: the caller names a place for the answer.
    unsafe { bytes.write(0) };
    DONE
}

/// # Safety
/// As cuDNN's.
#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnGetBatchNormalizationBackwardExWorkspaceSize(
    _handle: usize,
    _mode: c_int,
    _operations: c_int,
    _x: usize,
    _y: usize,
    _dy: usize,
    _dz: usize,
    _dx: usize,
    _scale: usize,
    _activation: usize,
    bytes: *mut usize,
) -> c_int {
    // SAFETY: the caller names a place for the answer.
    unsafe { bytes.write(0) };
    DONE
}
