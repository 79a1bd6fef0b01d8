// Millpond for C++17 and later: RAII over millpond.h, header only.
//
// Contexts, streams, events, pools, budgets, workspaces and captures' memory are handles: a copy is the same thing, and
// the last copy releases it. A Buffer owns memory: it moves, does not copy, and is freed in stream order. Failures are
// exceptions derived from millpond::Error, and from one of the standard library's. Any thread may call any function;
// docs/stream-order.md says who may use memory, and when.
//
// millpond_resources.hpp has a pool as a resource of CCCL and of RMM. Include it where you use one.
#ifndef MILLPOND_HPP
#define MILLPOND_HPP

#include <millpond.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <memory>
#include <memory_resource>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#if __cplusplus >= 202002L && __has_include(<span>)
#include <span>
/// Copies take a std::span, too.
#define MILLPOND_HAS_SPAN 1
#endif

/// What CUDA's headers call what a CUstream and a cudaStream_t point to.
struct CUstream_st;

namespace millpond {

// ---- errors -----------------------------------------------------------------------------------------

/// What every exception of Millpond is, to catch them all: a call that failed.
///
/// Each is one of the standard library's too, and so a std::exception: OutOfMemory is a std::bad_alloc, SizeOverflow a
/// std::bad_array_new_length, and all others are a RuntimeError, which is a std::runtime_error.
class Error {
public:
    virtual ~Error() = default;

    millpond_status status() const noexcept { return status_; }
    /// The library's message, with the figures and what to do next.
    virtual const char *what() const noexcept = 0;

protected:
    explicit Error(millpond_status status) noexcept : status_(status) {}
    Error(const Error &) = default;
    Error &operator=(const Error &) = default;

private:
    millpond_status status_;
};

/// A call that failed for another reason than memory.
class RuntimeError : public Error, public std::runtime_error {
public:
    RuntimeError(millpond_status status, const std::string &message) : Error(status), std::runtime_error(message) {}

    const char *what() const noexcept override { return std::runtime_error::what(); }
};

/// Memory ran out, after everything that could be given back was given back.
class OutOfMemory : public Error, public std::bad_alloc {
public:
    explicit OutOfMemory(const std::string &message) : Error(MILLPOND_STATUS_OUT_OF_MEMORY), message_(message) {
        report_.size = sizeof report_;
        // Leaves zeros where another failure of this thread came between.
        millpond_last_out_of_memory(&report_);
    }

    const char *what() const noexcept override { return message_.what(); }

    /// Where the memory is.
    const millpond_out_of_memory &report() const noexcept { return report_; }

private:
    /// A text whose copies cannot throw.
    std::runtime_error message_;
    millpond_out_of_memory report_{};
};

/// More bytes than can be addressed.
class SizeOverflow : public Error, public std::bad_array_new_length {
public:
    explicit SizeOverflow(const std::string &message) : Error(MILLPOND_STATUS_SIZE_OVERFLOW), message_(message) {}

    const char *what() const noexcept override { return message_.what(); }

private:
    std::runtime_error message_;
};

/// Throws what a status stands for, unless it is OK.
inline void check(millpond_status status) {
    if (status == MILLPOND_STATUS_OK) return;
    const std::string message = millpond_last_error();
    if (status == MILLPOND_STATUS_OUT_OF_MEMORY) throw OutOfMemory(message);
    if (status == MILLPOND_STATUS_SIZE_OVERFLOW) throw SizeOverflow(message);
    throw RuntimeError(status, message);
}

namespace detail {

/// Whether two handles, or a handle and a stream of the driver's, stand for the same thing.
inline bool is_same(const void *one, const void *other) noexcept {
    if (one == other) return true;
    std::int32_t same = 0;
    return one != nullptr && other != nullptr && millpond_is_same(one, other, &same) == MILLPOND_STATUS_OK && same != 0;
}

/// A handle that is released with its last copy. Two that stand for the same thing are equal.
template <class H, millpond_status (*release)(H *)>
class Shared {
public:
    H *get() const noexcept { return static_cast<H *>(handle_.get()); }
    friend bool operator==(const Shared &a, const Shared &b) noexcept { return is_same(a.get(), b.get()); }
    friend bool operator!=(const Shared &a, const Shared &b) noexcept { return !(a == b); }

protected:
    explicit Shared(H *handle) : handle_(static_cast<void *>(handle), &Shared::end) {}

private:
    static void end(void *last) { release(static_cast<H *>(last)); }

    /// Of one type for all handles, so that the compiler makes one of it.
    std::shared_ptr<void> handle_;
};

template <class Signature>
class Callback;

/// A function of the program's that is called with its address as `data`. As a std::function, whose header is a quarter of all that
/// this one would read.
template <class Result, class... Arguments>
class Callback<Result(Arguments...)> {
    struct Kept {
        virtual ~Kept() = default;
        virtual Result call(Arguments... arguments) = 0;
    };

    template <class F>
    struct Of final : Kept {
        explicit Of(F function) : function_(std::move(function)) {}
        Result call(Arguments... arguments) override {
            return static_cast<Result>(function_(std::forward<Arguments>(arguments)...));
        }
        F function_;
    };

public:
    template <class F, std::enable_if_t<!std::is_same_v<std::decay_t<F>, Callback> &&
                                            std::is_invocable_r_v<Result, std::decay_t<F> &, Arguments...>,
                                        int> = 0>
    Callback(F &&function) : kept_(new Of<std::decay_t<F>>(std::forward<F>(function))) {}
    /// None.
    Callback() noexcept = default;

    /// What stands for the function where it is called; it does not move.
    void *data() const noexcept { return kept_.get(); }
    static Result call(void *data, Arguments... arguments) {
        return static_cast<Kept *>(data)->call(std::forward<Arguments>(arguments)...);
    }
    /// Leaves it to whoever calls it last, who gives it up.
    void release() noexcept { (void)kept_.release(); }
    static void give_up(void *data) noexcept { delete static_cast<Kept *>(data); }

private:
    std::unique_ptr<Kept> kept_;
};

/// Whether blocks of every pool are aligned as the type asks: 256 bytes is the least that a pool is made with.
template <class T>
inline constexpr bool is_aligned_by_any_pool = alignof(T) <= 256;

/// The bytes of so many elements; throws SizeOverflow where that is no number.
template <class T>
constexpr std::size_t bytes_of(std::size_t count) {
    if (count > std::numeric_limits<std::size_t>::max() / sizeof(T)) {
        throw SizeOverflow(std::to_string(count) + " elements of " + std::to_string(sizeof(T)) +
                           " bytes are more bytes than can be addressed");
    }
    return count * sizeof(T);
}

} // namespace detail

// ---- devices ----------------------------------------------------------------------------------------

/// Options of the host device, with the defaults.
struct HostOptions : millpond_host_options {
    HostOptions() : millpond_host_options{} { check(millpond_host_options_init(this, sizeof(millpond_host_options))); }
};

/// Options of the simulated device, with the defaults.
struct SimOptions : millpond_sim_options {
    SimOptions() : millpond_sim_options{} { check(millpond_sim_options_init(this, sizeof(millpond_sim_options))); }
};

/// Free and total memory of a device, in bytes.
struct MemoryInfo {
    std::size_t free;
    std::size_t total;
};

class Pool;
struct PoolOptions;

/// The version of the library that the program runs with, such as "0.1.0". That of this header is MILLPOND_VERSION.
inline const char *version() noexcept { return millpond_version(); }

/// A device with its streams and its pools.
class [[nodiscard]] Context : public detail::Shared<millpond_context, millpond_context_release> {
public:
    /// The NVIDIA GPU with this ordinal.
    static Context cuda(int ordinal = 0) {
        millpond_context *handle;
        check(millpond_context_cuda(ordinal, &handle));
        return Context(handle);
    }

    /// The CPU as a device.
    static Context host() {
        millpond_context *handle;
        check(millpond_context_host(&handle));
        return Context(handle);
    }

    /// A host device of its own.
    static Context host(const HostOptions &options) {
        millpond_context *handle;
        check(millpond_context_host_with(&options, &handle));
        return Context(handle);
    }

    /// A simulated device, which keeps no bytes.
    static Context sim(const SimOptions &options = {}) {
        millpond_context *handle;
        check(millpond_context_sim(&options, &handle));
        return Context(handle);
    }

    /// Waits for all work on the device.
    void synchronize() const { check(millpond_context_synchronize(get())); }

    MemoryInfo memory_info() const {
        MemoryInfo info{};
        check(millpond_context_memory_info(get(), &info.free, &info.total));
        return info;
    }

    millpond_device_properties properties() const {
        millpond_device_properties found{};
        found.size = sizeof found;
        check(millpond_context_properties(get(), &found));
        return found;
    }

    /// A pool of pinned memory: page-locked memory of the host, which the CPU uses in place, and which the device copies to
    /// and from without the host's waiting. The options are those of other pools.
    Pool pinned() const;
    Pool pinned(PoolOptions options) const;

    /// A pool of managed memory: it moves to where it is used, and the CPU uses it in place.
    Pool managed() const;
    Pool managed(PoolOptions options) const;

    /// The pool that is there without being built.
    Pool default_pool() const;
    /// The pool last set as the current one, else the default one.
    Pool current_pool() const;
    /// Makes the pool the current one; null goes back to the default one.
    void set_current_pool(const Pool *pool) const;

private:
    explicit Context(millpond_context *handle) : Shared(handle) {}
};

// ---- streams ----------------------------------------------------------------------------------------

namespace detail {

/// Buffers on the stream keep it.
inline millpond_status give_up(millpond_stream *stream) noexcept { return millpond_stream_give_up(stream, nullptr, nullptr); }

} // namespace detail

/// A stream that millpond knows, which is the fast way.
class [[nodiscard]] Stream : public detail::Shared<millpond_stream, detail::give_up> {
public:
    /// Creates a stream.
    explicit Stream(const Context &context) : Shared(create(context)) {}

    /// Registers a CUstream (cudaStream_t), which must outlive every copy of this and every Buffer on it.
    Stream(const Context &context, void *raw) : Shared(adopt(context, raw)) {}

    /// The CUstream, for launches.
    void *raw() const {
        void *found;
        check(millpond_stream_raw(get(), &found));
        return found;
    }

    /// The stream's identity, which the device never gives to another.
    std::uint64_t id() const {
        std::uint64_t found;
        check(millpond_stream_id(get(), &found));
        return found;
    }

private:
    static millpond_stream *create(const Context &context) {
        millpond_stream *handle;
        check(millpond_stream_create(context.get(), &handle));
        return handle;
    }

    static millpond_stream *adopt(const Context &context, void *raw) {
        millpond_stream *handle;
        check(millpond_stream_register(context.get(), raw, &handle));
        return handle;
    }
};

/// A stream as an argument: a Stream, or a CUstream (cudaStream_t), or nullptr for the default stream. Does not own.
class StreamRef {
public:
    /// Also for a literal 0, as CUDA's launches take it.
    StreamRef(std::nullptr_t = nullptr) noexcept {}
    StreamRef(const Stream &stream) noexcept : any_(stream.get()) {}
    /// Nothing else that is a pointer is a stream.
    template <class T, std::enable_if_t<std::is_same_v<T, millpond_stream> || std::is_same_v<T, CUstream_st> || std::is_same_v<T, void>, int> = 0>
    StreamRef(T *stream) noexcept : any_(stream) {}

    millpond_any_stream get() const noexcept { return any_; }

    friend bool operator==(StreamRef a, StreamRef b) noexcept { return detail::is_same(a.any_, b.any_); }
    friend bool operator!=(StreamRef a, StreamRef b) noexcept { return !(a == b); }

private:
    millpond_any_stream any_ = nullptr;
};

/// A point in a stream's work.
class [[nodiscard]] Event : public detail::Shared<millpond_event, millpond_event_release> {
public:
    /// After all work given to the stream so far.
    Event(const Context &context, StreamRef stream) : Shared(record(context, stream)) {}

    /// Whether the work before it is complete.
    bool query() const {
        std::int32_t complete;
        check(millpond_event_query(get(), &complete));
        return complete != 0;
    }

    /// Waits until the work before it is complete.
    void synchronize() const { check(millpond_event_synchronize(get())); }

    /// The CUevent, for calls of the driver.
    void *raw() const {
        void *found;
        check(millpond_event_raw(get(), &found));
        return found;
    }

private:
    static millpond_event *record(const Context &context, StreamRef stream) {
        millpond_event *handle;
        check(millpond_stream_record(context.get(), stream.get(), &handle));
        return handle;
    }
};

/// Makes later work on the stream wait for the event.
inline void wait(const Context &context, StreamRef stream, const Event &event) {
    check(millpond_stream_wait(context.get(), stream.get(), event.get()));
}

/// Makes later work on the stream wait for all work given to the other so far.
inline void wait_for(const Context &context, StreamRef stream, StreamRef other) {
    check(millpond_stream_wait_for(context.get(), stream.get(), other.get()));
}

/// Waits until all work given to the stream so far is complete.
inline void synchronize(const Context &context, StreamRef stream) {
    check(millpond_stream_synchronize(context.get(), stream.get()));
}

/// Whether all work given to the stream so far is complete.
inline bool is_idle(const Context &context, StreamRef stream) {
    std::int32_t idle;
    check(millpond_stream_is_idle(context.get(), stream.get(), &idle));
    return idle != 0;
}

/// Runs a function on the CPU in stream order, in place of a kernel. On the host device only. What it throws ends the program.
inline void host_launch(const Context &context, StreamRef stream, detail::Callback<void()> work) {
    using Work = detail::Callback<void()>;
    const auto run = [](void *data) noexcept {
        Work::call(data);
        Work::give_up(data);
    };
    check(millpond_host_launch(context.get(), stream.get(), run, work.data()));
    work.release();
}

// ---- bytes ------------------------------------------------------------------------------------------

/// Copies bytes of the device in stream order. The addresses are of live blocks; order them on the stream before.
inline void copy(const Context &context, void *to, const void *from, std::size_t bytes, StreamRef stream) {
    check(millpond_copy(context.get(), to, from, bytes, stream.get()));
}

/// Copies from host memory in stream order. It has been read when this returns.
inline void copy_from_host(const Context &context, void *to, const void *from, std::size_t bytes, StreamRef stream) {
    check(millpond_copy_from_host(context.get(), to, from, bytes, stream.get()));
}

/// Copies to host memory in stream order, and waits.
inline void copy_to_host(const Context &context, void *to, const void *from, std::size_t bytes, StreamRef stream) {
    check(millpond_copy_to_host(context.get(), to, from, bytes, stream.get()));
}

/// Sets bytes of the device in stream order.
inline void fill_bytes(const Context &context, void *at, unsigned char value, std::size_t bytes, StreamRef stream) {
    check(millpond_memset(context.get(), at, value, bytes, stream.get()));
}

// ---- pools ------------------------------------------------------------------------------------------

/// A limit on what all pools with it hold together.
class [[nodiscard]] Budget : public detail::Shared<millpond_budget, millpond_budget_release> {
public:
    explicit Budget(std::size_t bytes) : Shared(create(bytes)) {}

    std::size_t limit() const { return read().first; }
    std::size_t held() const { return read().second; }

    /// Changes the limit; that of a named budget, for all processes.
    void set_limit(std::size_t bytes) const { check(millpond_budget_set_limit(get(), bytes)); }

    /// A budget of a fraction (0 to 1) of the device's memory.
    static Budget fraction(const Context &context, double fraction) {
        millpond_budget *handle;
        check(millpond_budget_fraction(context.get(), fraction, &handle));
        return Budget(handle, Made{});
    }

    /// A budget that all processes of this user share which give the same name. The first process sets the limit.
    /// docs/budgets.md says what it promises.
    static Budget named(const std::string &name, std::size_t bytes) {
        millpond_budget *handle;
        check(millpond_budget_named(name.c_str(), bytes, &handle));
        return Budget(handle, Made{});
    }

    /// The named budget, with the limit that it has, if any process has it.
    static std::optional<Budget> find(const std::string &name) {
        millpond_budget *handle;
        check(millpond_budget_find(name.c_str(), &handle));
        return handle != nullptr ? std::optional<Budget>(Budget(handle, Made{})) : std::nullopt;
    }

    /// Keeps bytes of a named budget for this process.
    void set_floor(std::size_t bytes) const { check(millpond_budget_set_floor(get(), bytes)); }

    /// The most that this process takes of a named budget.
    void set_claim(std::size_t bytes) const { check(millpond_budget_set_claim(get(), bytes)); }

    /// How long a request waits until other processes free memory. With 0 it takes what is free there already.
    void set_patience(std::chrono::milliseconds patience) const {
        check(millpond_budget_set_patience(get(), patience.count() > 0 ? static_cast<std::uint64_t>(patience.count()) : 0));
    }

    /// The processes that have a named budget, this one too.
    std::vector<millpond_tenant> tenants() const {
        std::vector<millpond_tenant> found(64); // no budget has more
        std::size_t count;
        check(millpond_budget_tenants(get(), found.data(), sizeof(millpond_tenant), found.size(), &count));
        found.resize(count < found.size() ? count : found.size());
        return found;
    }

private:
    struct Made {}; // so that Budget(0) is one of no bytes
    Budget(millpond_budget *handle, Made) : Shared(handle) {}

    static millpond_budget *create(std::size_t bytes) {
        millpond_budget *handle;
        check(millpond_budget_create(bytes, &handle));
        return handle;
    }

    std::pair<std::size_t, std::size_t> read() const {
        std::pair<std::size_t, std::size_t> found;
        check(millpond_budget_read(get(), &found.first, &found.second));
        return found;
    }
};

/// Options of a pool, with the defaults. `name` and `budget` must live until the pool is built.
struct PoolOptions : millpond_pool_options {
    PoolOptions() : millpond_pool_options{} { check(millpond_pool_options_init(this, sizeof(millpond_pool_options))); }
};

/// A kind of memory.
enum class Memory : std::int32_t {
    device = MILLPOND_MEMORY_DEVICE,
    pinned = MILLPOND_MEMORY_PINNED,
    managed = MILLPOND_MEMORY_MANAGED,
};

/// What becomes of the bytes of a pool that sleeps.
enum class Keep : std::int32_t {
    nothing = MILLPOND_KEEP_NOTHING,
    in_pinned_memory = MILLPOND_KEEP_IN_PINNED_MEMORY,
};

/// Where managed memory lies.
enum class Place : std::int32_t {
    device = MILLPOND_PLACE_DEVICE,
    host = MILLPOND_PLACE_HOST,
};

/// What was said of managed memory, where it is the same of all its pages.
struct Residency {
    /// Where it was last prefetched to. It may lie elsewhere by now.
    std::optional<Place> last_prefetch;
    std::optional<Place> preferred_location;
    bool read_mostly = false;
};

/// What a pool holds and did; millpond.h explains each figure.
using Stats = millpond_stats;

namespace detail {

/// What the copies of a Pool share. It is there until the last of them and the last buffer are gone.
struct PoolState {
    millpond_pool *handle;
    Context context;

    /// The last copy is gone. Where that fails, as in a forked child, nobody else will end this.
    static void give_up(PoolState *state) noexcept {
        const auto ended = [](void *data) noexcept { delete static_cast<PoolState *>(data); };
        if (millpond_pool_give_up(state->handle, ended, state) != MILLPOND_STATUS_OK) delete state;
    }
};

} // namespace detail

/// A memory pool of one device. Two that stand for the same pool are equal.
class [[nodiscard]] Pool {
public:
    explicit Pool(const Context &context, const PoolOptions &options = {})
        : Pool(context, create(context, options)) {}

    millpond_pool *get() const noexcept { return state_ ? state_->handle : nullptr; }
    friend bool operator==(const Pool &a, const Pool &b) noexcept { return detail::is_same(a.get(), b.get()); }
    friend bool operator!=(const Pool &a, const Pool &b) noexcept { return !(a == b); }

    const Context &context() const noexcept { return state_->context; }

    /// Allocates for work on the stream. Zero bytes give null.
    [[nodiscard]] void *allocate(std::size_t bytes, StreamRef stream = nullptr) const {
        void *found;
        check(millpond_alloc(get(), bytes, stream.get(), &found));
        return found;
    }

    /// Allocates `count` elements, aligned as their type asks, for work on the stream. No elements give null.
    template <class T>
    [[nodiscard]] T *allocate_array(std::size_t count, StreamRef stream = nullptr) const {
        const std::size_t bytes = detail::bytes_of<T>(count);
        return static_cast<T *>(detail::is_aligned_by_any_pool<T> ? allocate(bytes, stream)
                                                                  : allocate_aligned(bytes, alignof(T), stream));
    }

    /// Allocates at a multiple of `align` bytes, a power of two up to 2 MiB.
    [[nodiscard]] void *allocate_aligned(std::size_t bytes, std::size_t align, StreamRef stream = nullptr) const {
        void *found;
        check(millpond_alloc_aligned(get(), bytes, align, stream.get(), &found));
        return found;
    }

    /// Allocates, and sets all bytes to zero in stream order.
    [[nodiscard]] void *allocate_zeroed(std::size_t bytes, StreamRef stream = nullptr) const {
        void *found;
        check(millpond_alloc_zeroed(get(), bytes, stream.get(), &found));
        return found;
    }

    /// Frees after the work given to the stream so far, and to the streams of recorded uses.
    void deallocate(void *ptr, StreamRef stream = nullptr) const {
        check(millpond_free(get(), ptr, stream.get()));
    }

    /// Copies the first bytes of another pool's block, or another block of this one, to a block of this pool, each with its
    /// stream. The streams are ordered, and the source stays until the copy is done. The host does not wait.
    void copy_block(void *to, StreamRef to_stream, const Pool &from_pool, const void *from, StreamRef from_stream,
                    std::size_t bytes) const {
        check(millpond_copy_block(get(), to, to_stream.get(), from_pool.get(), from, from_stream.get(), bytes));
    }

    /// Notes that work on the stream uses the block, as PyTorch's record_stream does.
    void record_use(void *ptr, StreamRef stream) const {
        check(millpond_record_use(get(), ptr, stream.get()));
    }

    /// Bytes asked for in the live block that starts at `ptr`.
    std::size_t size_of(const void *ptr) const {
        std::size_t found;
        check(millpond_size_of(get(), ptr, &found));
        return found;
    }

    /// What memory the pool is of.
    Memory memory() const { return static_cast<Memory>(attribute(MILLPOND_ATTRIBUTE_MEMORY)); }

    /// Whether the CPU can use the memory in place, when `wait_for_host_access` returns.
    bool host_access() const { return attribute(MILLPOND_ATTRIBUTE_HOST_ACCESS) != 0; }

    /// Waits until the CPU may read the block in place, and write to it if `to_write`. The stream is the block's own.
    void wait_for_host_access(const void *ptr, bool to_write, StreamRef stream = nullptr) const {
        check(millpond_wait_for_host_access(get(), ptr, stream.get(), to_write ? 1 : 0));
    }

    /// Moves a block of managed memory in the order of the stream, which may be any. On a GPU, the call takes
    /// most of the time of the move.
    void prefetch(const void *ptr, Place to, StreamRef stream = nullptr) const {
        check(millpond_prefetch(get(), ptr, static_cast<std::int32_t>(to), stream.get()));
    }

    /// Says how a block of managed memory will be used, until it is taken back. No place is `std::nullopt`.
    void advise(const void *ptr, millpond_advice advice, std::optional<Place> place = std::nullopt) const {
        check(millpond_advise(get(), ptr, advice, place ? static_cast<std::int32_t>(*place) : MILLPOND_PLACE_NONE));
    }

    /// Takes back all advice on a block of managed memory: before it is freed.
    void take_back_advice(const void *ptr) const { check(millpond_take_back_advice(get(), ptr)); }

    /// Where a block of managed memory was last prefetched to, and the advice on it.
    Residency residency(const void *ptr) const {
        millpond_residency found{};
        found.size = sizeof found;
        check(millpond_block_residency(get(), ptr, &found));
        const auto place = [](std::int32_t number) {
            return number == MILLPOND_PLACE_NONE ? std::nullopt : std::optional<Place>(static_cast<Place>(number));
        };
        return {place(found.last_prefetch), place(found.preferred_location), found.read_mostly != 0};
    }

    /// Lets the GPU of another context use all memory of the pool, what there is and what comes. About 40 µs a page (H100).
    void allow_access(const Context &peer) const { check(millpond_pool_allow_access(get(), peer.get())); }

    /// Takes that back, after all work of that GPU.
    void take_back_access(const Context &peer) const { check(millpond_pool_take_back_access(get(), peer.get())); }

    /// Lets the GPU of another context use one block.
    void allow_access(const void *ptr, const Context &peer) const { check(millpond_allow_access(get(), ptr, peer.get())); }

    /// Whether the GPU of another context may use a block.
    bool is_accessible_from(const void *ptr, const Context &peer) const {
        std::uint32_t found = 0;
        check(millpond_is_accessible_from(get(), ptr, peer.get(), &found));
        return found != 0;
    }

    /// Takes memory in advance, so that blocks of `bytes` in all can be allocated on the stream without a device call.
    void reserve(std::size_t bytes, StreamRef stream = nullptr) const {
        check(millpond_pool_reserve(get(), bytes, stream.get()));
    }

    /// Free and total bytes of the memory that the pool is of.
    MemoryInfo memory_info() const {
        MemoryInfo info{};
        check(millpond_pool_memory_info(get(), &info.free, &info.total));
        return info;
    }

    /// Gives free memory back until at most `bytes_to_keep` are reserved; answers the bytes given back.
    std::size_t trim(std::size_t bytes_to_keep = 0) const {
        std::size_t released = 0;
        check(millpond_pool_trim(get(), bytes_to_keep, &released));
        return released;
    }

    /// Gives all of the pool's memory back to the device, with that of its tags; answers the bytes given back. Blocks stay, and
    /// `wake` brings them back to where they were. Waits for the device.
    std::size_t sleep(Keep keep) const {
        std::size_t released = 0;
        check(millpond_pool_sleep(get(), static_cast<std::int32_t>(keep), &released));
        return released;
    }

    /// Ends a sleep. Where it throws OUT_OF_MEMORY, the pool sleeps as before: make room, and try again.
    void wake() const { check(millpond_pool_wake(get())); }

    bool is_asleep() const { return attribute(MILLPOND_ATTRIBUTE_IS_ASLEEP) != 0; }

    /// Has the memory of a tag serve its pool for a while: behind all work so far its bytes are copied to pinned memory, and its
    /// pages serve other addresses. The host does not wait. Answers the bytes that the pool got.
    std::size_t evict(StreamRef stream = nullptr) const {
        std::size_t moved = 0;
        check(millpond_pool_evict(get(), stream.get(), &moved));
        return moved;
    }

    /// Ends an eviction: `stream` waits for the bytes. Where it throws OUT_OF_MEMORY, the tag is evicted as before.
    void restore(StreamRef stream = nullptr) const { check(millpond_pool_restore(get(), stream.get())); }

    /// Begins a restore, which then only has its stream wait.
    void restore_ahead() const { check(millpond_pool_restore_ahead(get())); }

    /// The same, for as much as the pool has free memory; answers the bytes that are still away.
    std::size_t restore_free() const {
        std::size_t away;
        check(millpond_pool_restore_free(get(), &away));
        return away;
    }

    bool is_evicted() const { return attribute(MILLPOND_ATTRIBUTE_IS_EVICTED) != 0; }

    /// The part of the pool for a tag, to be put to sleep, or evicted, on its own: a pool under the same hard limit.
    Pool tagged(const std::string &tag) const {
        millpond_pool *handle;
        check(millpond_pool_tagged(get(), tag.c_str(), &handle));
        return Pool(context(), handle);
    }

    /// Gives the pinned memory back that sleeps left for the next one; answers the bytes given back.
    std::size_t trim_staging() const {
        std::size_t released = 0;
        check(millpond_pool_trim_staging(get(), &released));
        return released;
    }

    Stats stats() const {
        Stats found{};
        found.size = sizeof found;
        check(millpond_pool_stats(get(), &found));
        return found;
    }

    std::uint64_t attribute(millpond_attribute which) const {
        std::uint64_t found;
        check(millpond_pool_get(get(), which, &found));
        return found;
    }

    void set_attribute(millpond_attribute which, std::uint64_t value) const {
        check(millpond_pool_set(get(), which, value));
    }

    /// Records what the pool does to a file; `flags` is 0 or a sum of MILLPOND_RECORD_….
    void start_recording(const std::string &path, std::uint32_t flags = 0) const {
        check(millpond_pool_start_recording(get(), path.c_str(), flags));
    }

    /// Stops recording once all is written; answers what was recorded.
    millpond_recording stop_recording() const {
        millpond_recording found{};
        found.size = sizeof found;
        check(millpond_pool_stop_recording(get(), &found));
        return found;
    }

    /// The recording that runs.
    millpond_recording recording() const {
        millpond_recording found{};
        found.size = sizeof found;
        check(millpond_pool_recording(get(), &found));
        return found;
    }

    void reset_high_water() const { check(millpond_pool_reset_high_water(get())); }

    std::string name() const {
        return text([this](char *text, std::size_t capacity, std::size_t *length) {
            return millpond_pool_name(get(), text, capacity, length);
        });
    }

    /// What the guard found (`PoolOptions::guard`): one text each.
    std::vector<std::string> guard_findings() const {
        std::vector<std::string> found(attribute(MILLPOND_ATTRIBUTE_GUARD_FINDINGS));
        for (std::size_t number = 0; number < found.size(); ++number)
            found[number] = text([this, number](char *text, std::size_t capacity, std::size_t *length) {
                return millpond_pool_guard_finding(get(), number, text, capacity, length);
            });
        return found;
    }

    /// Destroys the pool for all its copies. Throws LIVE_BLOCKS where blocks are live, and is destroyed all the same.
    void destroy() const { check(millpond_pool_destroy(get())); }

private:
    /// A text of whatever length, by a call that cuts it and says how long it is.
    template <class Call>
    static std::string text(Call call) {
        std::size_t length = 0;
        check(call(nullptr, 0, &length));
        std::string found(length + 1, '\0');
        check(call(&found[0], found.size(), nullptr));
        found.resize(length);
        return found;
    }

    friend class Context;
    friend class Sharing;
    template <class T>
    friend class Buffer;

    Pool(const Context &context, millpond_pool *handle)
        : state_(new detail::PoolState{handle, context}, &detail::PoolState::give_up) {}

    /// For the time of a call, by who holds the pool: no reference is counted.
    explicit Pool(detail::PoolState *borrowed) noexcept : state_(std::shared_ptr<void>(), borrowed) {}

    static millpond_pool *create(const Context &context, const PoolOptions &options) {
        millpond_pool *handle;
        check(millpond_pool_create(context.get(), &options, &handle));
        return handle;
    }

    std::shared_ptr<detail::PoolState> state_;
};

inline Pool Context::pinned() const { return pinned({}); }

inline Pool Context::pinned(PoolOptions options) const {
    options.memory = MILLPOND_MEMORY_PINNED;
    return Pool(*this, options);
}

inline Pool Context::managed() const { return managed({}); }

inline Pool Context::managed(PoolOptions options) const {
    options.memory = MILLPOND_MEMORY_MANAGED;
    return Pool(*this, options);
}

inline Pool Context::default_pool() const {
    millpond_pool *handle;
    check(millpond_context_default_pool(get(), &handle));
    return Pool(*this, handle);
}

inline Pool Context::current_pool() const {
    millpond_pool *handle;
    check(millpond_context_current_pool(get(), &handle));
    return Pool(*this, handle);
}

inline void Context::set_current_pool(const Pool *pool) const {
    check(millpond_context_set_current_pool(get(), pool == nullptr ? nullptr : pool->get()));
}

/// Files what this thread does with pools under a name, in recordings, as long as this lives. Tags nest.
class [[nodiscard]] Tag {
public:
    [[nodiscard]] explicit Tag(const std::string &name) { check(millpond_tag_begin(name.c_str())); }
    Tag(const Tag &) = delete;
    Tag &operator=(const Tag &) = delete;
    ~Tag() { millpond_tag_end(); }
};

/// Memory for what is captured into CUDA graphs. It stays at its addresses until the last copy of this goes: keep one as
/// long as the graph. The last copy's end waits for the device, and gives back what is free.
class [[nodiscard]] CapturePool : public detail::Shared<millpond_capture, millpond_capture_release> {
public:
    explicit CapturePool(const Pool &pool) : Shared(create(pool)) {}

    /// Physical bytes held.
    std::size_t reserved() const { return read().first; }
    /// Bytes in live blocks.
    std::size_t used() const { return read().second; }

private:
    static millpond_capture *create(const Pool &pool) {
        millpond_capture *handle;
        check(millpond_capture_create(pool.get(), &handle));
        return handle;
    }

    std::pair<std::size_t, std::size_t> read() const {
        std::pair<std::size_t, std::size_t> found;
        check(millpond_capture_read(get(), &found.first, &found.second));
        return found;
    }
};

/// As long as this lives, allocations for a stream, and for those that are part of its capture, come from the memory.
class [[nodiscard]] Capturing {
public:
    [[nodiscard]] Capturing(const CapturePool &memory, StreamRef stream) : memory_(memory) {
        check(millpond_capture_begin(memory_.get(), stream.get()));
    }

    /// For the streams (as CUstream) for which the function returns true. An exception counts as false.
    template <class F, std::enable_if_t<std::is_invocable_r_v<bool, F &, void *>, int> = 0>
    [[nodiscard]] Capturing(const CapturePool &memory, F takes)
        : memory_(memory), takes_(std::move(takes)) {
        check(millpond_capture_begin_where(memory_.get(), &Capturing::ask, takes_.data()));
    }

    Capturing(const Capturing &) = delete;
    Capturing &operator=(const Capturing &) = delete;
    ~Capturing() { millpond_capture_end(memory_.get()); }

private:
    static std::int32_t ask(void *raw, void *data) noexcept {
        try {
            return detail::Callback<bool(void *)>::call(data, raw) ? 1 : 0;
        } catch (...) {
            return 0;
        }
    }

    CapturePool memory_;
    detail::Callback<bool(void *)> takes_;
};

/// As long as this lives, the pool calls the function when memory is short. It frees what it can, and returns whether to
/// try again; an exception counts as no. It runs on the allocating thread, and must not release the pool. The end of this
/// object waits for calls that other threads are in.
class [[nodiscard]] Reclaim {
public:
    [[nodiscard]] Reclaim(const Pool &pool, detail::Callback<bool(std::size_t)> function)
        : pool_(pool), function_(std::move(function)) {
        check(millpond_pool_on_reclaim(pool_.get(), &Reclaim::ask, function_.data(), &id_));
    }

    Reclaim(const Reclaim &) = delete;
    Reclaim &operator=(const Reclaim &) = delete;
    ~Reclaim() { millpond_pool_remove_reclaim(pool_.get(), id_); }

private:
    static std::int32_t ask(std::size_t bytes, void *data) noexcept {
        try {
            return detail::Callback<bool(std::size_t)>::call(data, bytes) ? 1 : 0;
        } catch (...) {
            return 0;
        }
    }

    Pool pool_;
    detail::Callback<bool(std::size_t)> function_;
    std::uint64_t id_ = 0;
};

/// Told of each request for which there was no memory, as long as this lives. It runs on the thread that asked, and must not
/// release the pool. What it throws is dropped. The end of this object waits for calls that other threads are in.
class [[nodiscard]] OutOfMemoryObserver {
    using Function = detail::Callback<void(const millpond_out_of_memory &)>;

public:
    [[nodiscard]] OutOfMemoryObserver(const Pool &pool, Function function)
        : pool_(pool), function_(std::move(function)) {
        check(millpond_pool_on_out_of_memory(pool_.get(), &OutOfMemoryObserver::tell, function_.data(), &id_));
    }

    OutOfMemoryObserver(const OutOfMemoryObserver &) = delete;
    OutOfMemoryObserver &operator=(const OutOfMemoryObserver &) = delete;
    ~OutOfMemoryObserver() { millpond_pool_remove_out_of_memory(pool_.get(), id_); }

private:
    static void tell(const millpond_out_of_memory *report, void *data) noexcept {
        try {
            Function::call(data, *report);
        } catch (...) {
        }
    }

    Pool pool_;
    Function function_;
    std::uint64_t id_ = 0;
};

/// Told what the library says up to a level, as long as this lives. A later one takes its place. What the function throws is
/// dropped.
class [[nodiscard]] Log {
    using Function = detail::Callback<void(millpond_log_level, const char *)>;

public:
    [[nodiscard]] Log(millpond_log_level most, Function function) : function_(std::move(function)) {
        check(millpond_set_log(most, &Log::tell, function_.data()));
    }

    Log(const Log &) = delete;
    Log &operator=(const Log &) = delete;
    ~Log() { millpond_end_log(function_.data()); }

private:
    static void tell(std::int32_t level, const char *text, void *data) noexcept {
        try {
            Function::call(data, static_cast<millpond_log_level>(level), text);
        } catch (...) {
        }
    }

    Function function_;
};

// ---- memory that frees itself -----------------------------------------------------------------------

namespace detail {

/// Whether the handle means another stream on each thread: the raw one of a thread's default stream.
inline bool is_of_thread(StreamRef stream) noexcept { return reinterpret_cast<std::uintptr_t>(stream.get()) == 2; }

/// A registered stream is this thread's.
inline std::optional<Stream> kept_if_of_thread(const Pool &pool, StreamRef stream) {
    return is_of_thread(stream) ? std::optional<Stream>(Stream(pool.context(), stream.get())) : std::nullopt;
}

} // namespace detail

/// `count` elements of a pool's memory on one stream, freed after the work given to it so far. The pool and a Stream are kept for
/// it, without a count of references. A stream that is passed raw must exist as long as the buffer.
template <class T>
class [[nodiscard]] Buffer {
    static_assert(std::is_trivially_copyable_v<T>, "device memory is copied byte by byte");

public:
    using value_type = T;

    /// No elements, and no pool.
    Buffer() noexcept = default;

    Buffer(const Pool &pool, std::size_t count, StreamRef stream = nullptr) {
        if (detail::is_of_thread(stream)) {
            const Stream kept(pool.context(), stream.get());
            allocate(pool, count, kept);
        } else {
            allocate(pool, count, stream);
        }
    }

    Buffer(Buffer &&other) noexcept { swap(other); }

    Buffer &operator=(Buffer &&other) noexcept {
        Buffer(std::move(other)).swap(*this);
        return *this;
    }

    Buffer(const Buffer &) = delete;
    Buffer &operator=(const Buffer &) = delete;

    ~Buffer() {
        if (pool_ == nullptr) return;
        if (advised_) millpond_take_back_advice(pool_->handle, data_);
        millpond_free_held(pool_->handle, data_, stream_);
    }

    /// A buffer with the elements of host memory, which has been read when this returns.
    static Buffer from_host(const Pool &pool, const T *from, std::size_t count, StreamRef stream = nullptr) {
        Buffer made(pool, count, stream);
        made.copy_from_host(from, count);
        return made;
    }

    /// A copy, of the same pool and on the same stream.
    Buffer clone() const { return pool_ == nullptr ? Buffer() : clone(borrowed(), stream_); }

    /// A copy of another pool, or on another stream. The host does not wait.
    Buffer clone(const Pool &pool, StreamRef stream) const {
        Buffer made(pool, count_, stream);
        made.copy_from(*this);
        return made;
    }

    /// The address, for kernels.
    T *data() const noexcept { return data_; }
    std::size_t size() const noexcept { return count_; }
    std::size_t size_bytes() const noexcept { return count_ * sizeof(T); }
    bool empty() const noexcept { return count_ == 0; }
    StreamRef stream() const noexcept { return stream_; }

    /// Addresses of the device, as Thrust's algorithms take them with a policy. The host reads by `host_data` or `to_vector`.
    T *begin() const noexcept { return data_; }
    T *end() const noexcept { return data_ + count_; }

    /// Elements that there is room for without another allocation.
    std::size_t capacity() const noexcept { return capacity_; }

    /// Changes the length. Elements that stay keep their bytes; what comes behind them has no defined content. Where there is too
    /// little room, another block takes the place of this one, at another address and without advice. The host does not wait.
    void resize(std::size_t count) {
        if (count > capacity_) move_to_block_of(count);
        count_ = count;
    }

    /// Gives back the room that `resize` left. The address changes.
    void shrink_to_fit() {
        if (capacity_ > count_) move_to_block_of(count_);
    }

    /// Makes another stream the buffer's own. It waits for the work given to the present one so far. The host does not wait.
    void set_stream(StreamRef stream) {
        if (pool_ == nullptr) {
            throw RuntimeError(MILLPOND_STATUS_NULL_ARGUMENT, "set_stream: the buffer has no pool; construct it with one");
        }
        const std::optional<Stream> kept = detail::kept_if_of_thread(borrowed(), stream);
        const StreamRef next = kept ? StreamRef(*kept) : stream;
        wait_for(pool_->context, next, stream_);
        millpond_hold(pool_->handle, next.get());
        millpond_end_hold(pool_->handle, std::exchange(stream_, next.get()));
    }

    /// Sets all bytes, in stream order.
    void fill_bytes(unsigned char value) {
        if (empty()) return;
        order_after_reads();
        check(millpond_pool_memset(pool_->handle, data_, value, size_bytes(), stream_));
    }

    /// Copies `count` elements from host memory to the buffer's elements from `first` on, in stream order. `from` has been
    /// read when this returns. Throws LENGTH_MISMATCH where the buffer has fewer.
    void copy_from_host(const T *from, std::size_t count, std::size_t first = 0) {
        check_range("copy_from_host", count, first);
        if (count == 0) return;
        order_after_reads();
        check(millpond_pool_copy_from_host(pool_->handle, data_ + first, from, count * sizeof(T), stream_));
    }

    /// Copies `count` elements from `first` on to host memory, and waits. Throws LENGTH_MISMATCH where the buffer has fewer.
    void copy_to_host(T *to, std::size_t count, std::size_t first = 0) const {
        check_range("copy_to_host", count, first);
        if (count == 0) return;
        check(millpond_pool_copy_to_host(pool_->handle, to, data_ + first, count * sizeof(T), stream_));
    }

    /// Copies a range of the host to the first elements, by way of contiguous memory.
    template <class Iterator, class = typename std::iterator_traits<Iterator>::iterator_category,
              std::enable_if_t<!std::is_convertible_v<Iterator, std::size_t>, int> = 0>
    void copy_from_host(Iterator first, Iterator last) {
        const std::size_t count = static_cast<std::size_t>(std::distance(first, last));
        const std::unique_ptr<T[]> elements(new T[count]);
        for (T *to = elements.get(); first != last; ++first) *to++ = static_cast<T>(*first);
        copy_from_host(elements.get(), count);
    }

    /// Copies all elements to where the iterator points, and waits. Answers where they end.
    template <class Iterator, class = typename std::iterator_traits<Iterator>::iterator_category>
    Iterator copy_to_host(Iterator to) const {
        const std::unique_ptr<T[]> elements = on_host();
        for (std::size_t at = 0; at < count_; ++at) *to++ = elements[at];
        return to;
    }

#ifdef MILLPOND_HAS_SPAN
    /// The same for a span, and so for vectors and arrays, from the buffer's first element on.
    void copy_from_host(std::span<const T> from) { copy_from_host(from.data(), from.size()); }

    /// The same for a span, and so for vectors and arrays, from the buffer's first element on.
    void copy_to_host(std::span<T> to) const { copy_to_host(to.data(), to.size()); }
#endif

    /// Copies from a buffer of the same length, of any pool of the device or of another GPU. The host does not wait. If the
    /// other is on another stream, this stream waits for that one; the other's memory stays until the copy is done, and what
    /// is written to it later comes after the copy.
    void copy_from(const Buffer &from) {
        if (from.count_ != count_) {
            throw RuntimeError(MILLPOND_STATUS_LENGTH_MISMATCH,
                               "copy_from: the other buffer has " + std::to_string(from.count_) +
                                   " elements, and this one " + std::to_string(count_));
        }
        copy_first(from, count_);
    }

    /// As copy_from, from a buffer of pinned memory: the copy runs beside the work of other streams.
    void copy_from_pinned(const Buffer &from) {
        from.check_pinned("copy_from_pinned");
        copy_from(from);
    }

    /// Copies to a buffer of pinned memory, on that buffer's stream.
    void copy_to_pinned(Buffer &to) const {
        to.check_pinned("copy_to_pinned");
        to.copy_from(*this);
    }

    /// The elements in place, for the CPU to read, after the work given to the stream so far: waits for it. Throws
    /// NO_HOST_ACCESS for memory that the CPU cannot reach. Give the stream no work that writes to the buffer while you read.
    const T *host_data() const {
        if (!empty()) borrowed().wait_for_host_access(data_, false, stream_);
        return data_;
    }

    /// The elements in place, for the CPU to write. Also waits for copies on other streams and recorded uses. Work that is
    /// given later sees what was written. Give no stream work that uses the buffer while you write.
    T *host_data() {
        if (empty()) return data_;
        borrowed().wait_for_host_access(data_, true, stream_);
        read_elsewhere_ = false;
        return data_;
    }

#ifdef MILLPOND_HAS_SPAN
    /// The elements as `host_data` has them.
    std::span<const T> as_span() const { return {host_data(), count_}; }
    std::span<T> as_span() { return {host_data(), count_}; }
#endif

    /// Moves managed memory to where it will be used, in the order of the buffer's stream or of another one. The host does not
    /// wait, and no byte changes. Throws NOT_MANAGED for other memory.
    void prefetch(Place to) const { prefetch(to, stream_); }
    void prefetch(Place to, StreamRef stream) const {
        if (pool_ != nullptr) borrowed().prefetch(data_, to, stream);
    }

    /// Says how managed memory will be used: one of MILLPOND_ADVICE_…, with a place where it needs one. The buffer's end takes
    /// it back.
    void advise(millpond_advice advice, std::optional<Place> place = std::nullopt) {
        if (pool_ == nullptr) return;
        borrowed().advise(data_, advice, place);
        advised_ = true;
    }

    /// Where managed memory was last prefetched to, and the advice on it.
    Residency residency() const { return pool_ != nullptr ? borrowed().residency(data_) : Residency{}; }

    /// The elements, after the work given to the stream so far. Waits.
    std::vector<T> to_vector() const {
        if constexpr (std::is_same_v<T, bool>) {
            // It has no array of its own.
            const std::unique_ptr<T[]> elements = on_host();
            return std::vector<T>(elements.get(), elements.get() + count_);
        } else {
            std::vector<T> elements(count_);
            copy_to_host(elements.data(), elements.size());
            return elements;
        }
    }

    /// Lets the GPU of another context use the buffer at its address.
    void allow_access(const Context &peer) const {
        if (!empty()) borrowed().allow_access(data_, peer);
    }

    /// Notes that work on the stream uses the buffer. A stream of another GPU is a `Stream`, and no `CUstream`.
    void record_use(StreamRef stream) const {
        if (!empty()) borrowed().record_use(data_, stream);
    }

    /// Gives up the block without freeing it; free it with Pool::deallocate. Advice stays with it. The pool and the stream are
    /// not kept for it.
    [[nodiscard]] T *release() noexcept {
        if (pool_ != nullptr) millpond_end_hold(std::exchange(pool_, nullptr)->handle, stream_);
        advised_ = false;
        count_ = capacity_ = 0;
        return std::exchange(data_, nullptr);
    }

    void swap(Buffer &other) noexcept {
        std::swap(pool_, other.pool_);
        std::swap(stream_, other.stream_);
        std::swap(data_, other.data_);
        std::swap(count_, other.count_);
        std::swap(capacity_, other.capacity_);
        std::swap(advised_, other.advised_);
        // Relaxed: nobody else has either of them now.
        const bool theirs = other.read_elsewhere_.load(std::memory_order_relaxed);
        other.read_elsewhere_.store(read_elsewhere_.load(std::memory_order_relaxed), std::memory_order_relaxed);
        read_elsewhere_.store(theirs, std::memory_order_relaxed);
    }

private:
    friend class Sharing;

    void allocate(const Pool &pool, std::size_t count, StreamRef stream) {
        void *found;
        check(millpond_alloc_held(pool.get(), detail::bytes_of<T>(count), alignof(T), stream.get(), &found));
        pool_ = pool.state_.get();
        stream_ = stream.get();
        data_ = static_cast<T *>(found);
        count_ = capacity_ = count;
    }

    /// What the buffer holds is there as long as the buffer.
    Pool borrowed() const noexcept { return Pool(pool_); }

    /// Copies the first elements of another buffer, which has as many.
    void copy_first(const Buffer &from, std::size_t count) {
        if (count == 0) return;
        check(millpond_copy_block(pool_->handle, data_, stream_, from.pool_->handle, from.data_, from.stream_, count * sizeof(T)));
        if (from.stream_ != stream_ || from.pool_->context.get() != pool_->context.get()) from.read_elsewhere_ = true;
    }

    void move_to_block_of(std::size_t count) {
        if (pool_ == nullptr) {
            throw RuntimeError(MILLPOND_STATUS_NULL_ARGUMENT, "resize: the buffer has no pool; construct it with one");
        }
        Buffer other;
        other.allocate(borrowed(), count, stream_);
        other.copy_first(*this, count < count_ ? count : count_);
        swap(other);
    }

    std::unique_ptr<T[]> on_host() const {
        std::unique_ptr<T[]> elements(new T[count_]);
        copy_to_host(elements.get(), count_);
        return elements;
    }

    void check_pinned(const char *what) const {
        if (empty() || borrowed().memory() == Memory::pinned) return;
        throw RuntimeError(MILLPOND_STATUS_NOT_PINNED,
                           std::string(what) + ": pool '" + borrowed().name() +
                               "' is not of pinned memory: build one with Context::pinned, or use copy_from");
    }

    /// Before a write is given to the stream: orders it after the copies that read the buffer on other streams.
    void order_after_reads() {
        if (!read_elsewhere_) return;
        check(millpond_wait_for_uses(pool_->handle, data_, stream_));
        read_elsewhere_ = false;
    }

    void check_range(const char *what, std::size_t count, std::size_t first) const {
        if (first <= count_ && count <= count_ - first) return;
        throw RuntimeError(MILLPOND_STATUS_LENGTH_MISMATCH,
                           std::string(what) + ": count " + std::to_string(count) + " from element " +
                               std::to_string(first) + " on; the buffer has " + std::to_string(count_));
    }

    /// Held, or null: for a buffer made without arguments, and after `release`.
    detail::PoolState *pool_ = nullptr;
    /// Held where it is a handle of millpond's.
    millpond_any_stream stream_ = nullptr;
    T *data_ = nullptr;
    std::size_t count_ = 0;
    std::size_t capacity_ = 0;
    /// Whether copies read it that its own stream may not have waited for. Set by who has it as const, on any thread.
    mutable std::atomic<bool> read_elsewhere_{false};
    /// Whether there may be advice on its memory.
    bool advised_ = false;
};

/// A pool and a stream as a std::pmr::memory_resource. Containers may live in pinned and managed memory: an allocation there
/// waits for the work given to the stream so far, which may use the memory still. A GPU's own memory is for code that only passes
/// pointers on, since the host must not touch it; on the host device containers may live in it, too. A free never throws: see
/// millpond_free_or_log. Resources of one pool and one stream are equal.
class MemoryResource : public std::pmr::memory_resource {
public:
    explicit MemoryResource(const Pool &pool) : pool_(pool), waits_(pool.host_access()) {}
    MemoryResource(const Pool &pool, const Stream &stream)
        : pool_(pool), kept_(stream), stream_(stream), waits_(pool.host_access()) {}
    MemoryResource(const Pool &pool, StreamRef stream)
        : pool_(pool), kept_(detail::kept_if_of_thread(pool, stream)), stream_(kept_ ? StreamRef(*kept_) : stream),
          waits_(pool.host_access()) {}

    const Pool &pool() const noexcept { return pool_; }

private:
    void *do_allocate(std::size_t bytes, std::size_t align) override {
        // Other resources give an address for no bytes too.
        void *found = pool_.allocate_aligned(bytes == 0 ? 1 : bytes, align, stream_);
        if (waits_) wait_or_free(found);
        return found;
    }

    void wait_or_free(void *found) {
        try {
            pool_.wait_for_host_access(found, false, stream_);
        } catch (...) {
            do_deallocate(found, 0, 0);
            throw;
        }
    }

    void do_deallocate(void *ptr, std::size_t, std::size_t) noexcept override {
        millpond_free_or_log(pool_.get(), ptr, stream_.get());
    }

    bool do_is_equal(const std::pmr::memory_resource &other) const noexcept override {
        const MemoryResource *&asks = asking();
        if (asks != nullptr && asks == &other) return is_same(*asks);
        // What the other one is, it says itself: this works without run-time types, too.
        const MemoryResource *const before = std::exchange(asks, this);
        const bool same = other.is_equal(*this);
        asks = before;
        return same;
    }

    bool is_same(const MemoryResource &other) const noexcept { return other.pool_ == pool_ && other.stream_ == stream_; }

    /// The resource that asks another one on this thread whether both are equal.
    static const MemoryResource *&asking() noexcept {
        thread_local const MemoryResource *resource = nullptr;
        return resource;
    }

    Pool pool_;
    std::optional<Stream> kept_;
    StreamRef stream_;
    bool waits_;
};

/// One block, handed out from front to back and taken back all at once.
class [[nodiscard]] Workspace : public detail::Shared<millpond_workspace, millpond_workspace_release> {
public:
    Workspace(const Pool &pool, std::size_t bytes, StreamRef stream = nullptr)
        : Shared(create(pool, bytes, stream)) {}

    /// Bytes with no defined content, until the next reset, at a multiple of 512 bytes.
    [[nodiscard]] void *allocate(std::size_t bytes) const {
        void *found;
        check(millpond_workspace_alloc(get(), bytes, &found));
        return found;
    }

    /// The same at a multiple of `align` bytes, a power of two.
    [[nodiscard]] void *allocate_aligned(std::size_t bytes, std::size_t align) const {
        void *found;
        check(millpond_workspace_alloc_aligned(get(), bytes, align, &found));
        return found;
    }

    /// `count` elements, aligned as their type asks.
    template <class T>
    [[nodiscard]] T *allocate_array(std::size_t count) const {
        return static_cast<T *>(allocate_aligned(detail::bytes_of<T>(count), alignof(T)));
    }

    void reset() const { check(millpond_workspace_reset(get())); }

    std::size_t used() const {
        std::size_t found;
        check(millpond_workspace_read(get(), nullptr, &found, nullptr));
        return found;
    }

private:
    static millpond_workspace *create(const Pool &pool, std::size_t bytes, StreamRef stream) {
        millpond_workspace *handle;
        check(millpond_workspace_create(pool.get(), bytes, stream.get(), &handle));
        return handle;
    }
};

/// A block that several processes use. In the process that has it: what others need to open it. In one that opened it: the
/// order of their work. docs/sharing.md says what others can reach, and what happens when a process dies.
class [[nodiscard]] Sharing : public detail::Shared<millpond_shared, millpond_shared_release> {
public:
    /// Lets other processes open the buffer's memory, after the work given so far to its stream. It stays allocated as long as
    /// this, or another process that has it open.
    template <class T>
    explicit Sharing(const Buffer<T> &buffer)
        : Sharing(buffer.pool_ != nullptr ? buffer.pool_->handle : nullptr, buffer.data_, buffer.stream_) {}

    Sharing(const Pool &pool, const void *block, StreamRef stream) : Sharing(pool.get(), block, stream.get()) {}

    /// Sends it over a connected Unix socket, to one process for each call.
    void send(int socket) const { check(millpond_shared_send(get(), socket)); }

    /// Lets the event stand for all work given to the stream so far. Tell the other process then.
    void record(StreamRef stream) const { check(millpond_shared_record(get(), stream.get())); }

    /// Makes later work on the stream wait for what the event stands for now, whichever process recorded it.
    void wait(StreamRef stream) const { check(millpond_shared_wait(get(), stream.get())); }

    /// Waits for what another process sends, and opens it for work on the stream. The other process may use the memory for
    /// something else once both are gone.
    template <class T>
    static std::pair<Buffer<T>, Sharing> receive(const Context &context, int socket, StreamRef stream = nullptr) {
        void *data;
        std::size_t bytes;
        millpond_shared *handle;
        check(millpond_shared_receive(context.get(), socket, stream.get(), &data, &bytes, &handle));
        const Sharing shared(handle);
        millpond_pool *of;
        check(millpond_shared_pool(handle, &of));
        const Pool pool(context, of);
        if (reinterpret_cast<std::uintptr_t>(data) % alignof(T) != 0) {
            millpond_context_free(context.get(), data, stream.get());
            throw RuntimeError(MILLPOND_STATUS_BAD_ALIGNMENT,
                               "Sharing::receive: the block is not aligned to " + std::to_string(alignof(T)) +
                                   " bytes, as its elements are: let the other process allocate it so");
        }
        const std::optional<Stream> kept = detail::kept_if_of_thread(pool, stream);
        Buffer<T> buffer;
        buffer.stream_ = (kept ? StreamRef(*kept) : stream).get();
        millpond_hold(of, buffer.stream_);
        buffer.pool_ = pool.state_.get();
        buffer.data_ = static_cast<T *>(data);
        buffer.count_ = buffer.capacity_ = bytes / sizeof(T);
        return {std::move(buffer), shared};
    }

private:
    explicit Sharing(millpond_shared *handle) : Shared(handle) {}

    Sharing(millpond_pool *pool, const void *block, millpond_any_stream stream) : Shared(create(pool, block, stream)) {}

    static millpond_shared *create(millpond_pool *pool, const void *block, millpond_any_stream stream) {
        millpond_shared *handle;
        check(millpond_share(pool, block, stream, &handle));
        return handle;
    }
};

} // namespace millpond

#endif // MILLPOND_HPP
