// The table of functions that everything here stands on, and what becomes of their failures.
#pragma once

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>

#include <exception>
#include <string>

#include "pool.h"

namespace millpond {

inline const Table* pool = nullptr;

inline std::string text_of(Failed* failed) {
  std::string text = failed->text;
  pool->forget_failure(failed);
  return text;
}

inline void check(Failed* failed) {
  if (C10_UNLIKELY(failed != nullptr)) {
    TORCH_CHECK(false, text_of(failed));
  }
}

// The first exception of functions that the table calls: none may pass through it.
class Thrown {
 public:
  template <typename Call>
  void keep(Call call) noexcept {
    try {
      call();
    } catch (...) {
      if (!first_) {
        first_ = std::current_exception();
      }
    }
  }

  void rethrow() const {
    if (first_) {
      std::rethrow_exception(first_);
    }
  }

 private:
  std::exception_ptr first_;
};

inline c10::DeviceIndex current_gpu() {
  c10::DeviceIndex gpu = 0;
  C10_CUDA_CHECK(c10::cuda::GetDevice(&gpu));
  return gpu;
}

template <typename To>
void copy(To& to, const Stat& from) {
  to.current = from.current;
  to.peak = from.peak;
  to.allocated = from.allocated;
  to.freed = from.freed;
}

} // namespace millpond
