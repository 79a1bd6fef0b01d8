// A Millpond pool as a resource of CCCL and of RMM, where the compiler finds their headers. Their headers take a second to
// compile, so include this where you use one.
#ifndef MILLPOND_RESOURCES_HPP
#define MILLPOND_RESOURCES_HPP

#include <millpond.hpp>

#include <cstddef>
#include <utility>
#include <vector>

#if defined(__has_include)
#if __has_include(<cuda/memory_resource>) && __has_include(<cuda_runtime_api.h>)
#include <cuda/memory_resource>
// Before CCCL 3.1, as in the toolkits up to CUDA 13.0, its resources are there only where the program asks for them.
#if CCCL_VERSION >= 3001000 || defined(LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE)
#include <cuda/stream_ref>
#define MILLPOND_HAS_CCCL 1
#if __has_include(<rmm/error.hpp>) && CCCL_VERSION >= 3001000
#include <rmm/error.hpp>
#define MILLPOND_HAS_RMM 1
#endif
#endif
#endif
#endif

namespace millpond {

#ifdef MILLPOND_HAS_CCCL

/// A pool as a resource of CCCL: it satisfies cuda::mr::resource_with<cuda::mr::device_accessible> of CCCL 3.1 and
/// later, and the async_resource of CCCL before that (allocate_async).
///
/// A stream_ref costs what a Stream costs while a Stream is registered for it. Any other stream's free records an event.
class StreamResource {
public:
    explicit StreamResource(const Pool &pool) : pool_(pool) {}

    /// Keeps the streams registered, which must outlive every copy of the resource: those of an rmm::cuda_stream_pool, each as
    /// Stream(pool.context(), stream.value()).
    StreamResource(const Pool &pool, std::vector<Stream> registered)
        : pool_(pool), registered_(std::move(registered)) {}

    void *allocate(::cuda::stream_ref stream, std::size_t bytes, std::size_t align = default_alignment) {
        return pool_.allocate_aligned(bytes, align, stream.get());
    }

    void deallocate(::cuda::stream_ref stream, void *ptr, std::size_t, std::size_t = default_alignment) noexcept {
        millpond_free_or_log(pool_.get(), ptr, stream.get());
    }

    void *allocate(const Stream &stream, std::size_t bytes, std::size_t align = default_alignment) {
        return pool_.allocate_aligned(bytes, align, stream);
    }

    void deallocate(const Stream &stream, void *ptr, std::size_t, std::size_t = default_alignment) noexcept {
        millpond_free_or_log(pool_.get(), ptr, stream.get());
    }

    void *allocate_sync(std::size_t bytes, std::size_t align = default_alignment) {
        void *found = pool_.allocate_aligned(bytes, align, nullptr);
        synchronize(pool_.context(), nullptr);
        return found;
    }

    void deallocate_sync(void *ptr, std::size_t, std::size_t = default_alignment) noexcept {
        millpond_free_or_log(pool_.get(), ptr, nullptr);
    }

    // The names before CCCL 3.1.
    void *allocate(std::size_t bytes, std::size_t align = default_alignment) { return allocate_sync(bytes, align); }
    void deallocate(void *ptr, std::size_t bytes, std::size_t align = default_alignment) noexcept {
        deallocate_sync(ptr, bytes, align);
    }
    void *allocate_async(std::size_t bytes, std::size_t align, ::cuda::stream_ref stream) {
        return allocate(stream, bytes, align);
    }
    void *allocate_async(std::size_t bytes, ::cuda::stream_ref stream) { return allocate(stream, bytes); }
    void deallocate_async(void *ptr, std::size_t bytes, std::size_t align, ::cuda::stream_ref stream) noexcept {
        deallocate(stream, ptr, bytes, align);
    }
    void deallocate_async(void *ptr, std::size_t bytes, ::cuda::stream_ref stream) noexcept {
        deallocate(stream, ptr, bytes);
    }

    const Pool &pool() const noexcept { return pool_; }

    friend bool operator==(const StreamResource &a, const StreamResource &b) noexcept { return a.pool_ == b.pool_; }
    friend bool operator!=(const StreamResource &a, const StreamResource &b) noexcept { return !(a == b); }
    friend void get_property(const StreamResource &, ::cuda::mr::device_accessible) noexcept {}

protected:
    static constexpr std::size_t default_alignment = 256;

private:
    Pool pool_;
    std::vector<Stream> registered_;
};

#ifdef MILLPOND_HAS_RMM

/// A pool as a resource of RMM: as StreamResource, but out of memory is an rmm::out_of_memory, which RMM's adaptors and the
/// spilling of cuDF catch. A program that uses it links RMM.
class RmmResource : public StreamResource {
public:
    using StreamResource::StreamResource;

    void *allocate(::cuda::stream_ref stream, std::size_t bytes, std::size_t align = default_alignment) {
        return translate([&] { return StreamResource::allocate(stream, bytes, align); });
    }

    void *allocate_sync(std::size_t bytes, std::size_t align = default_alignment) {
        return translate([&] { return StreamResource::allocate_sync(bytes, align); });
    }

    friend void get_property(const RmmResource &, ::cuda::mr::device_accessible) noexcept {}

private:
    template <class F>
    static void *translate(F allocate) {
        try {
            return allocate();
        } catch (const std::bad_alloc &error) {
            throw rmm::out_of_memory(error.what());
        }
    }
};

#endif // MILLPOND_HAS_RMM

/// A pool of pinned or managed memory as a resource of CCCL: as StreamResource, and cuda::mr::host_accessible. What is allocated on a
/// stream is for the host once the stream was synchronised.
class HostStreamResource : public StreamResource {
public:
    /// Throws NO_HOST_ACCESS for a pool of memory that the CPU cannot reach.
    explicit HostStreamResource(const Pool &pool) : StreamResource(pool) {
        if (!pool.host_access()) pool.wait_for_host_access(nullptr, false);
    }

    friend void get_property(const HostStreamResource &, ::cuda::mr::host_accessible) noexcept {}
};

#endif // MILLPOND_HAS_CCCL

} // namespace millpond

#endif // MILLPOND_RESOURCES_HPP
