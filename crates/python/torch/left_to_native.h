// What is left to PyTorch's own allocator.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "names.h"

namespace millpond {

// The pools that PyTorch's own allocator serves, and the allocations that go there.
class LeftToNative {
 public:
  void add(c10::DeviceIndex gpu, MempoolId_t id) {
    std::lock_guard<std::mutex> lock(mutex_);
    pools_.push_back({gpu, id, nullptr});
    count_ = pools_.size();
  }

  void remove(c10::DeviceIndex gpu, MempoolId_t id) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto is_it = [&](const OfPool& of) { return of.gpu == gpu && of.id == id; };
    pools_.erase(std::remove_if(pools_.begin(), pools_.end(), is_it), pools_.end());
    count_ = pools_.size();
  }

  bool has(c10::DeviceIndex gpu, MempoolId_t id) {
    return with(gpu, id, [](OfPool&) {});
  }

  void begin(c10::DeviceIndex gpu, MempoolId_t id, std::function<bool(cudaStream_t)> filter) {
    with(gpu, id, [&](OfPool& of) { of.filter = std::move(filter); });
  }

  void end(c10::DeviceIndex gpu, MempoolId_t id) {
    with(gpu, id, [](OfPool& of) { of.filter = nullptr; });
  }

  bool takes(c10::DeviceIndex gpu, cudaStream_t stream) {
    if (C10_LIKELY(count_ == 0)) {
      return false;
    }
    std::lock_guard<std::mutex> lock(mutex_);
    for (const OfPool& of : pools_) {
      if (of.gpu == gpu && of.filter && of.filter(stream)) {
        return true;
      }
    }
    return false;
  }

 private:
  struct OfPool {
    c10::DeviceIndex gpu;
    MempoolId_t id;
    std::function<bool(cudaStream_t)> filter;
  };

  template <typename Call>
  bool with(c10::DeviceIndex gpu, MempoolId_t id, Call call) {
    if (count_ == 0) {
      return false;
    }
    std::lock_guard<std::mutex> lock(mutex_);
    for (OfPool& of : pools_) {
      if (of.gpu == gpu && of.id == id) {
        call(of);
        return true;
      }
    }
    return false;
  }

  std::atomic<size_t> count_{0};
  std::mutex mutex_;
  std::vector<OfPool> pools_;
};

} // namespace millpond
