# What RMM's declarations use of the package cuda-bindings: names of types, which the CUDA runtime's header defines.
cdef extern from "cuda_runtime_api.h":
    ctypedef void* cudaMemPool_t
    ctypedef void* cudaStream_t
