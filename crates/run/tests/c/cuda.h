/* What the tests need of NVIDIA's cuda.h, which is not on every machine. */

#ifndef MILLPOND_TESTS_CUDA_H
#define MILLPOND_TESTS_CUDA_H

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef uint64_t CUdeviceptr;
typedef struct context *CUcontext;
typedef struct stream *CUstream;
typedef struct event *CUevent;
typedef struct pool *CUmemoryPool;
typedef struct graph *CUgraph;

enum { CUDA_SUCCESS = 0, CUDA_ERROR_INVALID_VALUE = 1, CUDA_ERROR_OUT_OF_MEMORY = 2, CUDA_ERROR_NOT_SUPPORTED = 801 };

CUresult cuInit(unsigned flags);
CUresult cuDeviceGet(CUdevice *device, int ordinal);
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device);
CUresult cuGreenCtxCreate(void **context, void *description, CUdevice device, unsigned flags);
CUresult cuDevicePrimaryCtxReset_v2(CUdevice device);
CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device);
CUresult cuCtxDestroy_v2(CUcontext context);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuCtxSynchronize(void);
CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags);
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream);
CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext a, CUdeviceptr from, CUcontext b, size_t bytes, CUstream stream);
CUresult cuStreamCreate(CUstream *stream, unsigned flags);
CUresult cuStreamDestroy_v2(CUstream stream);
CUresult cuStreamSynchronize(CUstream stream);
CUresult cuStreamBeginCapture_v2(CUstream stream, int mode);
CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph);
CUresult cuMemAlloc_v2(CUdeviceptr *at, size_t bytes);
CUresult cuMemAllocPitch_v2(CUdeviceptr *at, size_t *pitch, size_t width, size_t height, unsigned element);
CUresult cuMemFree_v2(CUdeviceptr at);
CUresult cuMemAllocAsync(CUdeviceptr *at, size_t bytes, CUstream stream);
CUresult cuMemAllocFromPoolAsync(CUdeviceptr *at, size_t bytes, CUmemoryPool pool, CUstream stream);
CUresult cuMemFreeAsync(CUdeviceptr at, CUstream stream);
CUresult cuMemAllocManaged(CUdeviceptr *at, size_t bytes, unsigned flags);
CUresult cuMemAllocHost_v2(void **at, size_t bytes);
CUresult cuMemHostAlloc(void **at, size_t bytes, unsigned flags);
CUresult cuMemFreeHost(void *at);
CUresult cuMemGetInfo_v2(size_t *free, size_t *total);
CUresult cuMemCreate(unsigned long long *handle, size_t bytes, const int *props, unsigned long long flags);
CUresult cuMemRelease(unsigned long long handle);
CUresult cuMemAddressReserve(CUdeviceptr *at, size_t bytes, size_t alignment, CUdeviceptr wanted, unsigned long long flags);
CUresult cuMemMap(CUdeviceptr at, size_t bytes, size_t offset, unsigned long long handle, unsigned long long flags);
CUresult cuMemSetAccess(CUdeviceptr at, size_t bytes, const int *access, size_t entries);
CUresult cuMemUnmap(CUdeviceptr at, size_t bytes);
CUresult cuMemGetAddressRange_v2(CUdeviceptr *start, size_t *bytes, CUdeviceptr at);
CUresult cuPointerGetAttribute(void *value, int attribute, CUdeviceptr at);
CUresult cuPointerGetAttributes(unsigned count, int *attributes, void **values, CUdeviceptr at);
CUresult cuPointerSetAttribute(const void *value, int attribute, CUdeviceptr at);
CUresult cuMemRetainAllocationHandle(unsigned long long *handle, void *at);
CUresult cuCtxGetFlags(unsigned *flags);
typedef struct { char bytes[64]; } CUipcMemHandle;
CUresult cuIpcGetMemHandle(void *handle, CUdeviceptr at);
CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *at, CUipcMemHandle handle, unsigned flags);
CUresult cuIpcCloseMemHandle(CUdeviceptr at);
CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device);
CUresult cuMemPoolCreate(CUmemoryPool *pool, const void *props);
CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool);
CUresult cuMemSetMemPool(const int *location, int kind, CUmemoryPool pool);
CUresult cuMemPoolDestroy(CUmemoryPool pool);
CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *handle, int type, unsigned long long flags);
CUresult cuMemPoolSetAccess(CUmemoryPool pool, const void *access, size_t count);
CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep);
CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value);
CUresult cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void *value);
CUresult cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status);

/* Of the stand-in alone. */

/* How often the program, or a pool, called this function of the driver. */
unsigned long standin_calls(const char *name);
/* Gives a stream work that is done when the host waits for it. */
void standin_work(CUstream stream);
/* How often pages of one GPU were given to another. */
int standin_granted(int owner, int peer);
/* Bytes that a GPU gave. */
size_t standin_held(int device);
/* What the driver takes of a GPU itself, and taking more of it. */
size_t standin_overhead(int device);
void standin_load(size_t bytes);
/* Whether a stream's work is done. */
int standin_is_idle(CUstream stream);

#endif
