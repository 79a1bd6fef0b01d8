// cudaMalloc and cudaFree, cudaMallocAsync and cudaFreeAsync.
#include <cuda_runtime.h>

#include "bench.hpp"

struct Raw {
  void* alloc(size_t bytes, int) {
    void* block = nullptr;
    cudaMalloc(&block, bytes);
    return block;
  }
  void free(void* block, size_t, int) { cudaFree(block); }
  void thread_init() { cudaSetDevice(0); }
};

// The driver's own pool, which keeps what it has.
struct Async {
  cudaStream_t streams[64];
  Async() {
    cudaMemPool_t pool;
    cudaDeviceGetDefaultMemPool(&pool, 0);
    uint64_t keep = UINT64_MAX;
    cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep);
    for (auto& stream : streams) cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  }
  void* alloc(size_t bytes, int thread) {
    void* block = nullptr;
    cudaMallocAsync(&block, bytes, streams[thread]);
    return block;
  }
  void free(void* block, size_t, int thread) { cudaFreeAsync(block, streams[thread]); }
  void thread_init() { cudaSetDevice(0); }
};

int main() {
  cudaFree(nullptr);
  Raw raw;
  bench::all("cudaMalloc", raw, true);
  Async async;
  bench::all("cudaMallocAsync", async);
}
