// A GPU's pool as a resource of RMM's. `scripts/rmm-resources` builds a library for each version of RMM from the headers
// in RMM's wheels.
#pragma once

#include "pool.h"

#include <rmm/aligned.hpp>
#include <rmm/error.hpp>

#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>

#if defined(MILLPOND_RMM_DERIVES)
#if __has_include(<rmm/mr/device_memory_resource.hpp>)
#include <rmm/mr/device_memory_resource.hpp>
#else
#include <rmm/mr/device/device_memory_resource.hpp>
#endif
#else
#include <cuda/memory_resource>
#include <cuda/stream>
#endif

namespace millpond {

// The pool, which stays until the process ends: so copies may outlive the Python object.
class Pool {
 public:
  Pool(int gpu, const Table* table) : gpu_(gpu), table_(table) {
    if (table->bytes != sizeof(Table)) throw std::runtime_error("this library is of another version of millpond");
  }

  void* allocate(void* stream, std::size_t bytes, std::size_t align) const {
    void* found = nullptr;
    if (Failed* failed = table_->allocate(gpu_, bytes, align, stream, &found)) fail(failed);
    return found;
  }

  void deallocate(void* stream, void* ptr) const noexcept { table_->free(gpu_, ptr, stream); }

  void* allocate_sync(std::size_t bytes, std::size_t align) const {
    void* found = allocate(nullptr, bytes, align);
    if (Failed* failed = table_->wait_for_default_stream(gpu_)) {
      deallocate(nullptr, found);
      fail(failed);
    }
    return found;
  }

  bool operator==(const Pool& other) const noexcept { return gpu_ == other.gpu_; }

 private:
  // Fallbacks and spilling catch out_of_memory; all else is a bad_alloc, as of RMM's own resources.
  [[noreturn]] void fail(Failed* failed) const {
    const std::unique_ptr<Failed, void (*)(Failed*)> owned(failed, table_->forget_failure);
    if (owned->is_out_of_memory) throw rmm::out_of_memory(std::string(owned->text));
    throw rmm::bad_alloc(std::string(owned->text));
  }

  int gpu_;
  const Table* table_;
};

#if defined(MILLPOND_RMM_DERIVES)

// Until RMM 26.4 a resource derives from a class of RMM's.
class Resource final : public rmm::mr::device_memory_resource {
 public:
  Resource(int gpu, std::uintptr_t table) : pool_(gpu, reinterpret_cast<const Table*>(table)) {}

 private:
  void* do_allocate(std::size_t bytes, rmm::cuda_stream_view stream) override {
    return pool_.allocate(stream.value(), bytes, rmm::CUDA_ALLOCATION_ALIGNMENT);
  }

  void do_deallocate(void* ptr, std::size_t, rmm::cuda_stream_view stream) noexcept override {
    pool_.deallocate(stream.value(), ptr);
  }

  bool do_is_equal(const device_memory_resource& other) const noexcept override {
    const auto* same = dynamic_cast<const Resource*>(&other);
    return same != nullptr && same->pool_ == pool_;
  }

  Pool pool_;
};

// RMM keeps references to it, which may outlive the Python object: it is never destroyed.
inline std::shared_ptr<rmm::mr::device_memory_resource> make_resource(int gpu, std::uintptr_t table) {
  return {new Resource(gpu, table), [](rmm::mr::device_memory_resource*) {}};
}

#else

// Since RMM 26.6 a resource is any class with these functions, and RMM copies it.
class Resource {
 public:
  Resource(int gpu, std::uintptr_t table) : pool_(gpu, reinterpret_cast<const Table*>(table)) {}

  void* allocate(cuda::stream_ref stream, std::size_t bytes, std::size_t align = rmm::CUDA_ALLOCATION_ALIGNMENT) {
    return pool_.allocate(stream.get(), bytes, align);
  }

  void deallocate(
      cuda::stream_ref stream,
      void* ptr,
      std::size_t,
      std::size_t = rmm::CUDA_ALLOCATION_ALIGNMENT) noexcept {
    pool_.deallocate(stream.get(), ptr);
  }

  void* allocate_sync(std::size_t bytes, std::size_t align = rmm::CUDA_ALLOCATION_ALIGNMENT) {
    return pool_.allocate_sync(bytes, align);
  }

  void deallocate_sync(void* ptr, std::size_t, std::size_t = rmm::CUDA_ALLOCATION_ALIGNMENT) noexcept {
    pool_.deallocate(nullptr, ptr);
  }

  bool operator==(const Resource& other) const noexcept { return pool_ == other.pool_; }
  bool operator!=(const Resource& other) const noexcept { return !(*this == other); }
  friend void get_property(const Resource&, cuda::mr::device_accessible) noexcept {}

 private:
  Pool pool_;
};

static_assert(cuda::mr::resource_with<Resource, cuda::mr::device_accessible>);

#endif

} // namespace millpond
