// PyTorch's caching allocator, called from C++.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include "bench.hpp"

namespace caching = c10::cuda::CUDACachingAllocator;

struct Torch {
  cudaStream_t streams[64];
  Torch() {
    for (auto& stream : streams) cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  }
  void* alloc(size_t bytes, int thread) { return caching::raw_alloc_with_stream(bytes, streams[thread]); }
  void free(void* block, size_t, int) { caching::raw_delete(block); }
  void thread_init() { cudaSetDevice(0); }
};

int main() {
  caching::init(1);
  cudaSetDevice(0);
  cudaFree(nullptr);
  Torch torch;
  bench::all("torch-caching", torch);
}
