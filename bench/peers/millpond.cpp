// Millpond, through its C interface. The argument says on which device: cuda (the default), host or sim.
#include <millpond.h>

#include <cstdlib>
#include <cstring>

#include "bench.hpp"

static void must(millpond_status status) {
  if (status == MILLPOND_STATUS_OK) return;
  fprintf(stderr, "bench_millpond: %s\n", millpond_last_error());
  exit(1);
}

struct Millpond {
  millpond_context* context = nullptr;
  millpond_pool* pool = nullptr;
  millpond_stream* streams[64];
  explicit Millpond(const char* device) {
    if (strcmp(device, "host") == 0)
      must(millpond_context_host(&context));
    else if (strcmp(device, "sim") == 0)
      must(millpond_context_sim(nullptr, &context));
    else
      must(millpond_context_cuda(0, &context));
    must(millpond_pool_create(context, nullptr, &pool));
    for (auto& stream : streams) must(millpond_stream_create(context, &stream));
  }
  void* alloc(size_t bytes, int thread) {
    void* block;
    must(millpond_alloc(pool, bytes, streams[thread], &block));
    return block;
  }
  void free(void* block, size_t, int thread) { must(millpond_free(pool, block, streams[thread])); }
  void thread_init() {}
};

int main(int argc, char** argv) {
  Millpond millpond(argc > 1 ? argv[1] : "cuda");
  bench::all("millpond", millpond);
}
