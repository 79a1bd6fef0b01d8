// What the resource stands on: functions of the extension module, handed over as a table of addresses. `src/hooks/rmm.rs`
// declares the same in Rust, and says what each does.
#pragma once

#include <cstddef>
#include <cstdint>

namespace millpond {

struct Failed {
  bool is_out_of_memory;
  const char* text;
};

struct Table {
  size_t bytes;
  void (*forget_failure)(Failed*);
  Failed* (*allocate)(int gpu, uint64_t bytes, uint64_t align, void* stream, void** out);
  void (*free)(int gpu, void* ptr, void* stream);
  Failed* (*wait_for_default_stream)(int gpu);
};

} // namespace millpond
