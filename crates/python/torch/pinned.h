// PyTorch's pinned memory (`pin_memory`, `DataLoader(pin_memory=True)`) from the pools of pinned memory.
#pragma once

#include <ATen/core/CachingHostAllocator.h>
#include <c10/cuda/CUDAStream.h>

#include "failure.h"

namespace millpond {

class PinnedAllocator final : public at::HostAllocator {
 public:
  at::DataPtr allocate(size_t bytes) override {
    void* ptr = nullptr;
    if (bytes > 0) {
      check(pool->allocate_pinned(current_gpu(), bytes, &ptr));
    }
    return {ptr, ptr, &free_pinned, c10::DeviceType::CPU};
  }

  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  // PyTorch asks for any memory of the host's that it copies, ours or not.
  bool record_event(void* ptr, void* context, c10::Stream stream) override {
    bool is_known = false;
    void* handle = c10::cuda::CUDAStream(stream).stream();
    check(pool->record_pinned(context, ptr, stream.device_index(), handle, &is_known));
    return is_known;
  }

  void empty_cache() override {
    check(pool->empty_pinned());
  }

  at::HostStats get_stats() override {
    PinnedFigures figures;
    pool->pinned_figures(&figures);
    at::HostStats stats;
    Stat blocks{figures.blocks, figures.blocks, figures.device_allocs, figures.device_frees};
    Stat reserved{figures.reserved, figures.reserved_peak, 0, 0};
#if MILLPOND_TORCH >= 210
    copy(stats.active_requests, figures.requests);
    copy(stats.active_bytes, figures.requested);
    copy(stats.allocations, blocks);
    copy(stats.allocated_bytes, reserved);
#else
    copy(stats.allocation, figures.requests);
    copy(stats.allocated_bytes, figures.requested);
    copy(stats.segment, blocks);
    copy(stats.reserved_bytes, reserved);
#endif
    stats.num_host_alloc = figures.device_allocs;
    stats.num_host_free = figures.device_frees;
    return stats;
  }

  void reset_accumulated_stats() override {
    pool->reset_pinned(false);
  }

  void reset_peak_stats() override {
    pool->reset_pinned(true);
  }

#if MILLPOND_TORCH >= 211
  // A block that a captured copy uses is never freed, as with PyTorch's own allocator: a replay uses it again. So a
  // graph's memory needs no pool of its own.
  void begin_allocate_to_pool(c10::MempoolId_t, std::function<bool(c10::Stream)>) override {}
  void end_allocate_to_pool(c10::MempoolId_t) override {}
  void release_pool(c10::MempoolId_t) override {}
#endif

 private:
  static void free_pinned(void* ptr) {
    pool->free_pinned(ptr);
  }
};

} // namespace millpond
