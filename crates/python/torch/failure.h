// The table of functions that everything here stands on, and what becomes of their failures.
#pragma once

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>

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
