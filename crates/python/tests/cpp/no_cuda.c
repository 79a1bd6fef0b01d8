// A CUDA runtime and driver of one GPU that does nothing, so that PyTorch's CUDA build starts on a machine without one.
// Memory is a pool's on the CPU; no kernel can run. Preloaded by scripts/check-torch-shims, and named libcuda.so.1.
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

// Calls that PyTorch makes, with all results 0: done, none, not capturing.
#define DONE(name) \
  int name(void) { return 0; }
DONE(cudaSetDevice)
DONE(cudaInitDevice)
DONE(cudaGetLastError)
DONE(cudaPeekAtLastError)
DONE(cudaDeviceSynchronize)
DONE(cudaStreamSynchronize)
DONE(cudaStreamQuery)
DONE(cudaStreamWaitEvent)
DONE(cudaMemcpyAsync)
DONE(cudaEventRecord)
DONE(cudaEventRecordWithFlags)
DONE(cudaEventQuery)
DONE(cudaEventSynchronize)
DONE(cudaEventDestroy)
DONE(cudaIpcGetEventHandle)
DONE(cudaIpcOpenEventHandle)
DONE(cudaThreadExchangeStreamCaptureMode)
DONE(cuInit)
DONE(cuDevicePrimaryCtxGetState)

static int one(int* out) {
  *out = 1;
  return 0;
}

static int zero(int* out) {
  *out = 0;
  return 0;
}

int cudaGetDeviceCount(int* count) { return one(count); }
int cudaGetDevice(int* gpu) { return zero(gpu); }
int cudaStreamIsCapturing(void* stream, int* status) { return (void)stream, zero(status); }
int cudaDeviceCanAccessPeer(int* can, int from, int to) { return (void)from, (void)to, zero(can); }
int cudaDeviceGetStreamPriorityRange(int* least, int* greatest) { return zero(least), zero(greatest); }

int cudaDriverGetVersion(int* version) {
  *version = 13000;
  return 0;
}

int cudaRuntimeGetVersion(int* version) { return cudaDriverGetVersion(version); }

int cudaMemGetInfo(size_t* free, size_t* total) {
  *free = (size_t)1 << 30;
  *total = (size_t)2 << 30;
  return 0;
}

int cudaStreamCreateWithPriority(void** stream, unsigned flags, int priority) {
  static uintptr_t last = 0x1000;
  (void)flags, (void)priority;
  *stream = (void*)(last += 16);
  return 0;
}

int cudaEventCreateWithFlags(void** event, unsigned flags) {
  (void)flags;
  *event = (void*)1;
  return 0;
}

// What PyTorch's own allocator gets.
int cudaMalloc(void** ptr, size_t bytes) {
  *ptr = aligned_alloc(512, (bytes + 511) / 512 * 512);
  return 0;
}

int cudaFree(void* ptr) {
  free(ptr);
  return 0;
}

// `cudaDeviceProp` has 1,008 bytes or more in CUDA 12 and 13. It begins with the name. At 288 are the bytes of memory.
int cudaGetDeviceProperties(char* properties, int gpu) {
  (void)gpu;
  memset(properties, 0, 1008);
  strcpy(properties, "none");
  size_t total = (size_t)2 << 30;
  memcpy(properties + 288, &total, sizeof total);
  return 0;
}

int cudaGetDeviceProperties_v2(char* properties, int gpu) { return cudaGetDeviceProperties(properties, gpu); }

int cudaDeviceGetAttribute(int* value, int attribute, int gpu) {
  (void)gpu;
  // The compute capability's first number.
  *value = attribute == 75 ? 9 : 0;
  return 0;
}

static int nothing(void) { return 0; }

int cudaGetDriverEntryPointByVersion(const char* name, void** found, unsigned version, uint64_t flags, int* how) {
  (void)name, (void)version, (void)flags;
  *found = (void*)nothing;
  return how ? zero(how) : 0;
}

int cudaGetDriverEntryPoint(const char* name, void** found, uint64_t flags, int* how) {
  return cudaGetDriverEntryPointByVersion(name, found, 0, flags, how);
}
