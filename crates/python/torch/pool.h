// What the shim stands on: functions of the extension module, handed over as a table of addresses. `src/hooks/shim/`
// declares the same in Rust, and says what each does.
#pragma once

#include <cstddef>
#include <cstdint>

namespace millpond {

struct PoolId {
  uint64_t first, second;
};

struct Failed {
  bool is_out_of_memory;
  const char* text;
};

struct Entry {
  void* ptr;
  int gpu;
  uint64_t bytes, requested;
  void* stream;
  PoolId pool;
  uint64_t allocated, reserved;
  void* elsewhere;
};

struct Segment {
  void* start;
  uint64_t bytes;
  PoolId pool;
};

struct Stat {
  int64_t current, peak, allocated, freed;
};

struct Figures {
  Stat blocks[3], allocated[3], requested[3];
  Stat pages, reserved;
  int64_t retries, out_of_memory, device_allocs, device_frees;
};

struct PinnedFigures {
  Stat requests, requested;
  int64_t blocks, reserved, reserved_peak, device_allocs, device_frees;
};

struct Filter {
  void* filter;
  bool (*takes)(void* filter, void* stream);
  void (*drop)(void* filter);
};

struct Table {
  size_t bytes;
  void (*forget_failure)(Failed*);
  Failed* (*allocate)(int gpu, uint64_t bytes, void* stream, Entry* out);
  bool (*strike)(void* ptr, Entry* out);
  void (*free)(const Entry*);
  Failed* (*record_use)(void* ptr, int gpu, void* stream);
  void* (*block_at)(void* ptr, uint64_t* bytes);
  bool (*is_forked)();
  Failed* (*empty_cache)();
  uint64_t (*largest_allocation)(int gpu);
  void (*memory_info)(int gpu, uint64_t* free, uint64_t* total);
  Failed* (*set_fraction)(int gpu, double fraction);
  double (*fraction)(int gpu);
  void (*figures)(int gpu, Figures* out);
  void (*reset_peaks)(int gpu);
  void (*reset_accumulated)(int gpu);
  void (*snapshot)(
      int gpu,
      const PoolId* only,
      void* context,
      void (*segment)(void* context, const Segment*),
      void (*block)(void* context, const Entry*));
  void (*watch_pages)(void (*told)(int gpu, void* at, uint64_t bytes, bool is_mapped));
  Failed* (*claim_pool)(int gpu, PoolId);
  Failed* (*begin_pool)(int gpu, PoolId, Filter);
  bool (*end_pool)(int gpu, PoolId);
  void (*release_pool)(int gpu, PoolId);
  Failed* (*pool_uses)(int gpu, PoolId, int* out);
  Failed* (*set_use_on_oom)(int gpu, PoolId, bool);
  bool (*are_live)(int gpu, PoolId, void* const* expected, size_t count);
  void* (*checkpoint)(int gpu, PoolId);
  void (*forget_checkpoint)(void*);
  Failed* (*restore)(
      int gpu,
      const void* checkpoint,
      void* context,
      void (*freed)(void* context, const Entry*),
      void (*allocated)(void* context, const Entry*));
  // `handle` has room for 128 bytes, the last one a 0.
  Failed* (*share)(void* ptr, char* handle);
  Failed* (*open_shared)(int gpu, const char* handle, void** out);
  void (*close_shared)(int gpu, void* ptr);
  Failed* (*allocate_pinned)(int gpu, uint64_t bytes, void** out);
  void (*free_pinned)(void* ptr);
  Failed* (*record_pinned)(void* ctx, void* ptr, int gpu, void* stream, bool* is_known);
  Failed* (*empty_pinned)();
  void (*pinned_figures)(PinnedFigures* out);
  void (*reset_pinned)(bool peaks);
};

} // namespace millpond
