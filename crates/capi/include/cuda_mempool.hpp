// The interface of a simple pool, over Millpond: change the include, and link libmillpond.
//
// What differs from a pool with power-of-two bins, and what does not, is in docs/cpp.md. In short: every free is
// ordered by its stream, so nothing has to be deferred; memory is not bound to the size class it was first cut for;
// and the pool takes whole pages (2 MiB) from the device, which is what its figures count.
//
// The environment variable MILLPOND_DEVICE, set to "host" or "sim", takes that device instead of the GPU ("cuda").
#ifndef CUDA_MEMPOOL_HPP
#define CUDA_MEMPOOL_HPP

#include <millpond.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#if __has_include(<cuda_runtime.h>)
#include <cuda_runtime.h>
#else
// As CUDA declares it, so that both may be seen.
typedef struct CUstream_st *cudaStream_t;
#endif

namespace mempool {

/// A call that failed; what() says why, with the figures and what to do next.
class CudaError : public std::runtime_error {
public:
    explicit CudaError(const std::string &message, millpond_status status = MILLPOND_STATUS_OTHER)
        : std::runtime_error(message), status_(status) {}

    millpond_status status() const noexcept { return status_; }

private:
    millpond_status status_;
};

/// How a pool is made. Sizes in bytes.
struct PoolConfig {
    /// What the pool may hold, rounded up to whole pages, and what may be allocated from it; 0: no limit.
    std::size_t max_pool_size = 0;
    /// What sizes are rounded up to, and what addresses are a multiple of: from 256 bytes to 2 MiB.
    std::size_t min_block_size = 512;
    /// Not read: Millpond bounds what it keeps by bytes (trim), not by blocks of a class.
    std::size_t max_cached_blocks = 64;
    /// How many sizes cache_stats() lists, from min_block_size up, each twice the one before.
    std::size_t num_size_classes = 32;
    /// Not read: every free is in stream order.
    bool stream_ordered = true;
    /// The GPU's ordinal.
    int device_id = 0;
};

/// A pool of one GPU. Any thread may call anything at any time.
class CudaMemPool {
public:
    CudaMemPool(const PoolConfig &config = {})
        : config_(checked(config)), pool_(translate([&] { return build(config_); })) {}

    CudaMemPool(const CudaMemPool &) = delete;
    CudaMemPool &operator=(const CudaMemPool &) = delete;

    /// Memory for work on the stream; null for no bytes. Throws where there is none, or the pool would be over its
    /// max_pool_size.
    void *allocate(std::size_t size, cudaStream_t stream = nullptr) { return allocate_aligned(size, 1, stream); }

    /// The same at a multiple of `align` bytes, a power of two up to 2 MiB.
    void *allocate_aligned(std::size_t size, std::size_t align, cudaStream_t stream = nullptr) {
        if (size == 0) return nullptr;
        check_limit(size);
        void *found = nullptr;
        check(millpond_alloc_aligned(pool_.get(), size, align, stream, &found));
        if (stream != nullptr) remember(found, stream);
        return found;
    }

    /// Frees after the work given to the stream of the allocation, which must be there: see forget_stream. Throws for
    /// a pointer that is not of this pool, or was freed; null does nothing.
    void deallocate(void *ptr) {
        if (ptr == nullptr) return;
        // Before the free: after it, another thread may get the same address, and remember it.
        const AllocatedOn on = take_stream(ptr);
        const millpond_status status = free_on(ptr, on);
        if (status != MILLPOND_STATUS_OK && on.stream != nullptr) put_back(ptr, on);
        check(status);
    }

    void *allocate_async(std::size_t size, cudaStream_t stream) { return allocate(size, stream); }

    /// Frees after the work given to this stream. Work on others must be ordered before that.
    void deallocate_async(void *ptr, cudaStream_t stream) {
        if (ptr == nullptr) return;
        const AllocatedOn on = take_stream(ptr);
        const millpond_status status = millpond_free(pool_.get(), ptr, stream);
        if (status != MILLPOND_STATUS_OK && on.stream != nullptr) put_back(ptr, on);
        check(status);
    }

    /// To be called before a stream is destroyed that blocks of this pool were allocated on: waits for its work. Those
    /// blocks are freed on the default stream from then on. (No call can ask the driver about a stream that is gone.)
    void forget_stream(cudaStream_t stream) {
        if (stream == nullptr) return;
        check(millpond_stream_synchronize(pool_.context().get(), stream));
        const std::lock_guard<std::mutex> lock(mutex_);
        for (auto it = streams_.begin(); it != streams_.end();) {
            it = it->second.stream == stream && it->second.is_here() ? streams_.erase(it) : std::next(it);
        }
        remembered_.store(streams_.size(), std::memory_order_relaxed);
    }

    /// Does nothing: no free is deferred.
    void process_deferred() {}

    /// Waits for the device, and gives everything back that is free.
    void trim() {
        translate([&] {
            pool_.context().synchronize();
            return pool_.trim(0);
        });
    }

    /// Bytes held from the device now.
    std::size_t total_allocated() const { return attribute(MILLPOND_ATTRIBUTE_RESERVED_CURRENT); }

    /// Bytes held from the device at most so far.
    std::size_t peak_allocated() const { return attribute(MILLPOND_ATTRIBUTE_RESERVED_HIGH); }

    /// Allocations made so far.
    std::size_t num_allocations() const {
        return static_cast<std::size_t>(translate([&] { return pool_.stats().allocations; }));
    }

    /// Sizes and how many free blocks of each: what the pool keeps, cut into as few blocks of these sizes as can be.
    /// (It is not bound to them.) Sizes times counts add up to the bytes kept.
    std::vector<std::pair<std::size_t, std::size_t>> cache_stats() const {
        std::vector<std::pair<std::size_t, std::size_t>> classes;
        std::size_t size = config_.min_block_size;
        for (std::size_t index = 0; index < config_.num_size_classes; ++index) {
            classes.emplace_back(size, 0);
            if (size > std::numeric_limits<std::size_t>::max() / 2) break;
            size *= 2;
        }
        std::size_t left = translate([&] { return static_cast<std::size_t>(pool_.stats().cached); });
        for (auto it = classes.rbegin(); it != classes.rend(); ++it) {
            it->second = left / it->first;
            left %= it->first;
        }
        return classes;
    }

    /// The pool itself, for what this interface does not have.
    const millpond::Pool &pool() const noexcept { return pool_; }

private:
    static PoolConfig checked(PoolConfig config) {
        // As a pool with bins rounds: up to a power of two.
        std::size_t unit = 256;
        while (unit < config.min_block_size && unit < (std::size_t{2} << 20)) unit *= 2;
        config.min_block_size = unit;
        return config;
    }

    static millpond::Context open(int device_id) {
        const char *said = std::getenv("MILLPOND_DEVICE");
        const std::string device = said == nullptr ? "" : said;
        if (device == "host") return millpond::Context::host();
        if (device == "sim") return millpond::Context::sim();
        if (device != "" && device != "cuda") {
            throw millpond::RuntimeError(MILLPOND_STATUS_BAD_OPTION,
                                         "MILLPOND_DEVICE=" + device + ": it may be host, sim or cuda, or unset, for the GPU");
        }
        try {
            return millpond::Context::cuda(device_id);
        } catch (const millpond::Error &error) {
            if (error.status() != MILLPOND_STATUS_DEVICE_UNAVAILABLE) throw;
            // "The host device" is here a word in the environment.
            throw millpond::RuntimeError(error.status(), std::string(error.what()) + ": set MILLPOND_DEVICE=host");
        }
    }

    static millpond::Pool build(const PoolConfig &config) {
        const millpond::Context context = open(config.device_id);
        millpond::PoolOptions options;
        options.name = "mempool";
        options.min_alignment = config.min_block_size;
        if (config.max_pool_size != 0) {
            // Whole pages, and two at least: blocks below 1 MiB have pages of their own.
            const std::size_t page = context.properties().granularity;
            const std::size_t pages = config.max_pool_size / page + (config.max_pool_size % page != 0);
            const std::size_t most = std::numeric_limits<std::size_t>::max() / page;
            options.hard_limit = std::min(std::max<std::size_t>(pages, 2), most) * page;
        }
        return millpond::Pool(context, options);
    }

    static void check(millpond_status status) {
        if (status != MILLPOND_STATUS_OK) throw CudaError(millpond_last_error(), status);
    }

    template <class F>
    static auto translate(F function) -> decltype(function()) {
        try {
            return function();
        } catch (const millpond::Error &error) {
            throw CudaError(error.what(), error.status());
        }
    }

    std::size_t attribute(millpond_attribute which) const {
        return static_cast<std::size_t>(translate([&] { return pool_.attribute(which); }));
    }

    void check_limit(std::size_t size) const {
        const std::size_t limit = config_.max_pool_size;
        if (limit == 0) return;
        const std::size_t used = attribute(MILLPOND_ATTRIBUTE_USED_CURRENT);
        if (used > limit || size > limit - used) {
            throw CudaError("out of memory: " + std::to_string(size) + " bytes requested, and " + std::to_string(used) +
                                " of max_pool_size " + std::to_string(limit) +
                                " are live; free some, or raise max_pool_size",
                            MILLPOND_STATUS_OUT_OF_MEMORY);
        }
    }

    /// The stream that a block was allocated on.
    struct AllocatedOn {
        cudaStream_t stream = nullptr;
        std::thread::id thread{};

        /// Whether the handle means the same stream to this thread: 2 is each thread's own default stream.
        bool is_here() const {
            return reinterpret_cast<std::uintptr_t>(stream) != 2 || thread == std::this_thread::get_id();
        }
    };

    void remember(void *ptr, cudaStream_t stream) { put_back(ptr, {stream, std::this_thread::get_id()}); }

    void put_back(void *ptr, AllocatedOn on) {
        const std::lock_guard<std::mutex> lock(mutex_);
        streams_[ptr] = on;
        // Relaxed, here and below: who frees a block has it from who allocated it, so sees it counted.
        remembered_.store(streams_.size(), std::memory_order_relaxed);
    }

    /// The stream that the block was allocated on, which is forgotten.
    AllocatedOn take_stream(void *ptr) {
        if (remembered_.load(std::memory_order_relaxed) == 0) return {};
        const std::lock_guard<std::mutex> lock(mutex_);
        const auto known = streams_.find(ptr);
        if (known == streams_.end()) return {};
        const AllocatedOn on = known->second;
        streams_.erase(known);
        remembered_.store(streams_.size(), std::memory_order_relaxed);
        return on;
    }

    /// Frees on the stream, or, where that is another thread's default stream, once all its work is complete.
    millpond_status free_on(void *ptr, const AllocatedOn &on) {
        if (on.is_here()) return millpond_free(pool_.get(), ptr, on.stream);
        const millpond_status waited = millpond_context_synchronize(pool_.context().get());
        return waited == MILLPOND_STATUS_OK ? millpond_free(pool_.get(), ptr, nullptr) : waited;
    }

    PoolConfig config_;
    millpond::Pool pool_;
    /// Streams of the blocks that were not allocated on the default stream.
    std::unordered_map<void *, AllocatedOn> streams_;
    std::mutex mutex_;
    std::atomic<std::size_t> remembered_{0};
};

/// `count` elements of a pool, freed with this. Moves, does not copy. The pool must outlive it.
template <class T>
class PoolPtr {
public:
    PoolPtr() noexcept = default;

    PoolPtr(CudaMemPool &pool, std::size_t count, cudaStream_t stream = nullptr)
        : pool_(&pool), count_(count) {
        if (count > std::numeric_limits<std::size_t>::max() / sizeof(T)) {
            throw CudaError("more bytes than can be addressed", MILLPOND_STATUS_SIZE_OVERFLOW);
        }
        ptr_ = static_cast<T *>(pool.allocate_aligned(count * sizeof(T), alignof(T), stream));
    }

    PoolPtr(PoolPtr &&other) noexcept { swap(other); }

    PoolPtr &operator=(PoolPtr &&other) noexcept {
        PoolPtr(std::move(other)).swap(*this);
        return *this;
    }

    PoolPtr(const PoolPtr &) = delete;
    PoolPtr &operator=(const PoolPtr &) = delete;

    ~PoolPtr() {
        if (ptr_ == nullptr) return;
        try {
            pool_->deallocate(ptr_);
        } catch (const CudaError &) {
            // The block was freed by hand, which is the program's mistake; a destructor has nobody to tell.
        }
    }

    T *get() const noexcept { return ptr_; }
    T *operator->() const noexcept { return ptr_; }
    T &operator*() const noexcept { return *ptr_; }
    explicit operator bool() const noexcept { return ptr_ != nullptr; }
    std::size_t count() const noexcept { return count_; }
    std::size_t size_bytes() const noexcept { return count_ * sizeof(T); }

    /// Gives up the memory without freeing it; free it with CudaMemPool::deallocate.
    T *release() noexcept {
        count_ = 0;
        return std::exchange(ptr_, nullptr);
    }

    void swap(PoolPtr &other) noexcept {
        std::swap(pool_, other.pool_);
        std::swap(ptr_, other.ptr_);
        std::swap(count_, other.count_);
    }

private:
    CudaMemPool *pool_ = nullptr;
    T *ptr_ = nullptr;
    std::size_t count_ = 0;
};

} // namespace mempool

#endif // CUDA_MEMPOOL_HPP
