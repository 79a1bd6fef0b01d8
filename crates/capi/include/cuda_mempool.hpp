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
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
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

namespace detail {

/// The stream that each block was allocated on, by the block's address. Nothing is forgotten at a free: the next block at the
/// address says its own. So neither an allocation nor a free on a stream takes a lock, or memory, where one was before.
class StreamsOfBlocks {
public:
    /// A stream as blocks name it: 0 is the default stream.
    using Number = std::uint16_t;

    struct Stream {
        cudaStream_t handle = nullptr;
        std::thread::id thread{};
        std::atomic<bool> is_forgotten{false};

        /// Whether the handle means the same stream to this thread: 2 is each thread's own default stream.
        bool is_here() const { return !is_of_thread(handle) || thread == std::this_thread::get_id(); }
    };

    /// Blocks start at multiples of `unit` bytes, a power of two.
    explicit StreamsOfBlocks(std::size_t unit) : unit_bits_(bits_of(unit)), leaf_bits_(unit_bits_ + bits_of(places)) {}

    /// Notes the stream of a new block.
    void set(const void *ptr, cudaStream_t stream) {
        const Number number = stream == nullptr ? default_stream : number_of(stream);
        const std::uintptr_t address = reinterpret_cast<std::uintptr_t>(ptr);
        std::atomic<Number> *place = find(address);
        if (place == nullptr) {
            if (number == default_stream) return;
            place = add(address);
        }
        // Relaxed: who frees a block has its address from who allocated it, by a way that orders this, too.
        place->store(number, std::memory_order_relaxed);
    }

    /// The stream of a live block; null for the default stream, and for one that was forgotten. `is_known` is false for one of
    /// more streams than there are numbers.
    const Stream *get(const void *ptr, bool &is_known) const {
        const std::atomic<Number> *place = find(reinterpret_cast<std::uintptr_t>(ptr));
        const Number number = place == nullptr ? default_stream : place->load(std::memory_order_relaxed);
        is_known = number != unknown;
        if (number == default_stream || number == unknown) return nullptr;
        const Stream *stream = streams_[number / chunk].load(std::memory_order_acquire) + number % chunk;
        return stream->is_forgotten.load(std::memory_order_acquire) ? nullptr : stream;
    }

    /// Blocks of this stream are of the default stream from now on, and the handle may be another stream's.
    void forget(cudaStream_t handle) {
        const std::lock_guard<std::mutex> lock(mutex_);
        cache_[place_in_cache(handle)].store(0, std::memory_order_relaxed);
        const auto known = numbers_.find({handle, thread_of(handle)});
        if (known == numbers_.end()) return;
        Stream *stream = streams_[known->second / chunk].load(std::memory_order_relaxed) + known->second % chunk;
        stream->is_forgotten.store(true, std::memory_order_release);
        numbers_.erase(known);
    }

private:
    static constexpr Number default_stream = 0, unknown = 0xffff;
    static constexpr std::size_t chunk = 256, cached = 64;
    /// Of so many units a leaf knows the streams.
    static constexpr std::size_t places = 128;
    static constexpr unsigned address_bits = 48;

    struct Leaf {
        explicit Leaf(std::uintptr_t which) : which(which) {}

        /// Its place among the leaves of all addresses.
        const std::uintptr_t which;
        std::atomic<Number> numbers[places] = {};
    };

    /// Leaves by their places: open addressing, at most half full.
    struct Table {
        explicit Table(std::size_t size) : mask(size - 1), leaves(new std::atomic<Leaf *>[size]()) {}

        std::size_t mask;
        std::unique_ptr<std::atomic<Leaf *>[]> leaves;

        /// Where the leaf is, or would be.
        std::atomic<Leaf *> &at(std::uintptr_t which) const {
            // Fibonacci hashing: long blocks begin at multiples of a large power of two.
            for (std::uint64_t place = (which * std::uint64_t{0x9e3779b97f4a7c15}) >> 32;; ++place) {
                std::atomic<Leaf *> &leaf = leaves[place & mask];
                const Leaf *there = leaf.load(std::memory_order_acquire);
                if (there == nullptr || there->which == which) return leaf;
            }
        }
    };

    static unsigned bits_of(std::size_t size) {
        unsigned bits = 0;
        while ((std::size_t{1} << bits) < size) ++bits;
        return bits;
    }

    static bool is_of_thread(cudaStream_t stream) { return reinterpret_cast<std::uintptr_t>(stream) == 2; }
    static std::thread::id thread_of(cudaStream_t stream) {
        return is_of_thread(stream) ? std::this_thread::get_id() : std::thread::id();
    }
    static std::size_t place_in_cache(cudaStream_t stream) {
        return (static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(stream)) * 0x9e3779b97f4a7c15) >> 58;
    }

    std::atomic<Number> *find(std::uintptr_t address) const {
        const Table *table = table_.load(std::memory_order_acquire);
        if (table == nullptr) return nullptr;
        Leaf *leaf = table->at(address >> leaf_bits_).load(std::memory_order_acquire);
        return leaf == nullptr ? nullptr : &leaf->numbers[(address >> unit_bits_) % places];
    }

    std::atomic<Number> *add(std::uintptr_t address) {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (std::atomic<Number> *there = find(address)) return there;
        if (tables_.empty() || 2 * (leaves_.size() + 1) > tables_.back()->mask + 1) {
            // Threads may look into the old one as long as this lives.
            const std::size_t size = tables_.empty() ? 64 : 2 * (tables_.back()->mask + 1);
            tables_.push_back(std::make_unique<Table>(size));
            for (const auto &leaf : leaves_) tables_.back()->at(leaf->which).store(leaf.get(), std::memory_order_relaxed);
        }
        leaves_.push_back(std::make_unique<Leaf>(address >> leaf_bits_));
        Leaf *const leaf = leaves_.back().get();
        tables_.back()->at(leaf->which).store(leaf, std::memory_order_release);
        table_.store(tables_.back().get(), std::memory_order_release);
        return &leaf->numbers[(address >> unit_bits_) % places];
    }

    Number number_of(cudaStream_t stream) {
        const std::uint64_t bits = reinterpret_cast<std::uintptr_t>(stream);
        const std::uint64_t cached = cache_[place_in_cache(stream)].load(std::memory_order_relaxed);
        const bool is_there = (cached & ((std::uint64_t{1} << address_bits) - 1)) == bits && cached != 0;
        return is_there ? static_cast<Number>(cached >> address_bits) : number_of_slow(stream);
    }

    Number number_of_slow(cudaStream_t stream) {
        const std::uint64_t bits = reinterpret_cast<std::uintptr_t>(stream);
        const std::lock_guard<std::mutex> lock(mutex_);
        const auto [known, is_new] = numbers_.try_emplace({stream, thread_of(stream)}, unknown);
        if (is_new && next_ < unknown) {
            if (next_ % chunk == 0 || chunks_.empty()) {
                chunks_.push_back(std::make_unique<Stream[]>(chunk));
                streams_[next_ / chunk].store(chunks_.back().get(), std::memory_order_release);
            }
            Stream &made = chunks_.back()[next_ % chunk];
            made.handle = stream;
            made.thread = thread_of(stream);
            known->second = next_++;
        }
        // A thread's own default stream has one handle for all.
        if (!is_of_thread(stream) && bits >> address_bits == 0) {
            cache_[place_in_cache(stream)].store(std::uint64_t{known->second} << address_bits | bits, std::memory_order_relaxed);
        }
        return known->second;
    }

    const unsigned unit_bits_, leaf_bits_;
    std::atomic<const Table *> table_{nullptr};
    std::atomic<std::uint64_t> cache_[cached] = {};
    std::atomic<Stream *> streams_[(std::size_t{unknown} + 1) / chunk] = {};
    /// What follows is changed under it.
    std::mutex mutex_;
    std::vector<std::unique_ptr<Leaf>> leaves_;
    std::vector<std::unique_ptr<Table>> tables_;
    std::vector<std::unique_ptr<Stream[]>> chunks_;
    std::map<std::pair<cudaStream_t, std::thread::id>, Number> numbers_;
    Number next_ = 1;
};

} // namespace detail

/// A pool of one GPU. Any thread may call anything at any time.
class CudaMemPool {
public:
    CudaMemPool(const PoolConfig &config = {})
        : config_(checked(config)), pool_(translate([&] { return build(config_); })), streams_(config_.min_block_size) {}

    CudaMemPool(const CudaMemPool &) = delete;
    CudaMemPool &operator=(const CudaMemPool &) = delete;

    /// Memory for work on the stream; null for no bytes. Throws where there is none, or the pool would be over its
    /// max_pool_size.
    void *allocate(std::size_t size, cudaStream_t stream = nullptr) {
        if (size == 0) return nullptr;
        if (config_.max_pool_size != 0) check_limit(size);
        void *found;
        check(millpond_alloc(pool_.get(), size, stream, &found));
        streams_.set(found, stream);
        return found;
    }

    /// The same at a multiple of `align` bytes, a power of two up to 2 MiB.
    void *allocate_aligned(std::size_t size, std::size_t align, cudaStream_t stream = nullptr) {
        if (size == 0) return nullptr;
        if (config_.max_pool_size != 0) check_limit(size);
        void *found;
        check(millpond_alloc_aligned(pool_.get(), size, align, stream, &found));
        streams_.set(found, stream);
        return found;
    }

    /// Frees after the work given to the stream of the allocation, which must be there: see forget_stream. Throws for
    /// a pointer that is not of this pool, or was freed; null does nothing.
    void deallocate(void *ptr) {
        if (ptr == nullptr) return;
        // Before the free: after it, another thread may get the same address.
        bool is_known = true;
        const detail::StreamsOfBlocks::Stream *on = streams_.get(ptr, is_known);
        if (on == nullptr && is_known) return check(millpond_free(pool_.get(), ptr, nullptr));
        if (on != nullptr && on->is_here()) return check(millpond_free(pool_.get(), ptr, on->handle));
        // Another thread's default stream, or an unknown one: once all work is complete.
        check(millpond_context_synchronize(pool_.context().get()));
        check(millpond_free(pool_.get(), ptr, nullptr));
    }

    /// The same for who cannot fail, as a destructor: a failure is counted and logged (millpond_free_or_log).
    void deallocate_or_log(void *ptr) noexcept {
        bool is_known = true;
        const detail::StreamsOfBlocks::Stream *on = streams_.get(ptr, is_known);
        const bool is_here = is_known && (on == nullptr || on->is_here());
        // Without the device's answer, the free says what is wrong.
        if (!is_here) millpond_context_synchronize(pool_.context().get());
        millpond_free_or_log(pool_.get(), ptr, on != nullptr && is_here ? on->handle : nullptr);
    }

    void *allocate_async(std::size_t size, cudaStream_t stream) { return allocate(size, stream); }

    /// Frees after the work given to this stream. Work on others must be ordered before that.
    void deallocate_async(void *ptr, cudaStream_t stream) {
        if (ptr == nullptr) return;
        check(millpond_free(pool_.get(), ptr, stream));
    }

    /// To be called before a stream is destroyed that blocks of this pool were allocated on: waits for its work. Those
    /// blocks are freed on the default stream from then on. (No call can ask the driver about a stream that is gone.)
    void forget_stream(cudaStream_t stream) {
        if (stream == nullptr) return;
        check(millpond_stream_synchronize(pool_.context().get(), stream));
        streams_.forget(stream);
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
        const std::size_t used = attribute(MILLPOND_ATTRIBUTE_USED_CURRENT);
        if (used > limit || size > limit - used) {
            throw CudaError("out of memory: " + std::to_string(size) + " bytes requested, and " + std::to_string(used) +
                                " of max_pool_size " + std::to_string(limit) +
                                " are live; free some, or raise max_pool_size",
                            MILLPOND_STATUS_OUT_OF_MEMORY);
        }
    }

    PoolConfig config_;
    millpond::Pool pool_;
    detail::StreamsOfBlocks streams_;
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
        if (ptr_ != nullptr) pool_->deallocate_or_log(ptr_);
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
