// Tensors of several processes: CUDA IPC, as torch.multiprocessing uses it.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "failure.h"
#include "names.h"

namespace millpond {

// What a handle of ours begins with. PyTorch's own begin with a byte below 32.
inline constexpr char HANDLE[] = "millpond/";

inline bool is_ours(const std::string& handle) {
  return handle.compare(0, sizeof(HANDLE) - 1, HANDLE) == 0;
}

// A handle for the block that begins at `base`, and where in it `ptr` lies.
inline native::ShareableHandle share(void* base, void* ptr) {
  char handle[128];
  check(pool->share(base, handle));
  return {static_cast<char*>(ptr) - static_cast<char*>(base), handle};
}

// Blocks of other processes that are open here. Each is open once, as long as somebody uses it.
class OpenedBlocks {
 public:
  std::shared_ptr<void> open(int gpu, const std::string& handle) {
    std::lock_guard<std::mutex> lock(mutex_);
    std::weak_ptr<void>& known = blocks_[{gpu, handle}];
    if (std::shared_ptr<void> block = known.lock()) {
      return block;
    }
    void* ptr = nullptr;
    if (Failed* failed = pool->open_shared(gpu, handle.c_str(), &ptr)) {
      blocks_.erase({gpu, handle});
      check(failed);
    }
    std::shared_ptr<void> block(ptr, [this, gpu, handle](void* ptr) {
      {
        std::lock_guard<std::mutex> lock(mutex_);
        // Another thread may have opened it again.
        auto found = blocks_.find({gpu, handle});
        if (found != blocks_.end() && found->second.expired()) {
          blocks_.erase(found);
        }
      }
      pool->close_shared(gpu, ptr);
    });
    known = block;
    return block;
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<int, std::string>, std::weak_ptr<void>> blocks_;
};

} // namespace millpond
