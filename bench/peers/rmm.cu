// RMM's pool, arena and async resources.
#include <cuda_runtime.h>

#include <rmm/cuda_stream_view.hpp>
#include <rmm/mr/arena_memory_resource.hpp>
#include <rmm/mr/cuda_async_memory_resource.hpp>
#include <rmm/mr/cuda_memory_resource.hpp>
#include <rmm/mr/pool_memory_resource.hpp>

#include "bench.hpp"

template <class Resource>
struct Rmm {
  Resource& resource;
  cudaStream_t streams[64];
  explicit Rmm(Resource& resource) : resource(resource) {
    for (auto& stream : streams) cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  }
  void* alloc(size_t bytes, int thread) { return resource.allocate(cuda::stream_ref{streams[thread]}, bytes, 256); }
  void free(void* block, size_t bytes, int thread) {
    resource.deallocate(cuda::stream_ref{streams[thread]}, block, bytes, 256);
  }
  void thread_init() { cudaSetDevice(0); }
};

template <class Resource>
void run(const char* name, Resource&& resource) {
  Rmm<std::remove_reference_t<Resource>> rmm(resource);
  bench::all(name, rmm);
}

int main() {
  cudaFree(nullptr);
  rmm::mr::cuda_memory_resource upstream;
  run("rmm-pool", rmm::mr::pool_memory_resource{upstream, size_t(32) << 30});
  run("rmm-arena", rmm::mr::arena_memory_resource{upstream, size_t(32) << 30});
  run("rmm-async", rmm::mr::cuda_async_memory_resource{});
}
