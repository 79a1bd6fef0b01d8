// What a program in C++ may write, beside what raii.cpp has.
#include <millpond.hpp>

#undef NDEBUG // the assertions are the test
#include <atomic>
#include <cassert>
#include <cstring>
#include <functional>
#include <list>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

using namespace millpond;

static_assert(MILLPOND_VERSION_NUMBER == MILLPOND_VERSION_MAJOR * 10000 + MILLPOND_VERSION_MINOR * 100 + MILLPOND_VERSION_PATCH);

static void a_zero_and_null_are_the_default_stream() {
    const Context device = Context::host();
    const Pool pool(device);
    pool.deallocate(pool.allocate(100, 0), 0);
    pool.deallocate(pool.allocate_zeroed(100, NULL), nullptr);
    const Buffer<int> buffer(pool, 10, 0);
    assert(buffer.stream() == StreamRef());
    const CapturePool memory(pool);
    const Capturing capturing(memory, nullptr);
    synchronize(device, 0);
}

static void a_buffer_of_bool_is_a_vector_of_bool() {
    const Context device = Context::host();
    const Pool pool(device);
    Buffer<bool> flags(pool, 5);
    flags.fill_bytes(0);
    const bool some[] = {true, false, true};
    flags.copy_from_host(some, 3, 1);
    assert((flags.to_vector() == std::vector<bool>{false, true, false, true, false}));
}

static void buffers_grow_and_shrink() {
    const Context device = Context::host();
    const Pool pool(device);
    const Stream stream(device), other(device);
    std::vector<int> numbers(1000);
    std::iota(numbers.begin(), numbers.end(), 0);
    Buffer<int> buffer = Buffer<int>::from_host(pool, numbers.data(), 1000, stream);
    const int *const at = buffer.data();
    buffer.resize(10);
    assert(buffer.data() == at && buffer.size() == 10 && buffer.capacity() == 1000);
    buffer.resize(1000);
    assert(buffer.data() == at && buffer.to_vector() == numbers);
    // A copy on another stream reads the old block still.
    const Buffer<int> copy = buffer.clone(pool, other);
    buffer.resize(2000);
    assert(buffer.data() != at && buffer.size() == 2000);
    buffer.fill_bytes(0);
    assert(copy.to_vector() == numbers);
    buffer.copy_from_host(numbers.begin(), numbers.end());
    buffer.resize(3);
    buffer.shrink_to_fit();
    assert(buffer.capacity() == 3 && (buffer.to_vector() == std::vector<int>{0, 1, 2}));
    assert(buffer.clone().to_vector() == buffer.to_vector() && Buffer<int>().clone().empty());
    assert(static_cast<std::size_t>(buffer.end() - buffer.begin()) == buffer.size());
    buffer.resize(0);
    buffer.shrink_to_fit();
    assert(buffer.data() == nullptr);
    buffer.resize(1);
    assert(buffer.data() != nullptr);
}

static void a_buffer_changes_its_stream() {
    const Context device = Context::host();
    const Pool pool(device);
    const Stream stream(device), other(device);
    Buffer<int> buffer(pool, 1000, stream);
    std::atomic<bool> go{false};
    host_launch(device, stream, [&] {
        while (!go) std::this_thread::yield();
        std::memset(buffer.data(), 1, buffer.size_bytes());
    });
    buffer.set_stream(other);
    assert(buffer.stream() == other && !is_idle(device, other));
    go = true;
    assert(buffer.to_vector() == std::vector<int>(1000, 0x01010101));
    buffer.set_stream(reinterpret_cast<CUstream_st *>(2));
    assert(buffer.to_vector()[5] == 0x01010101);
}

static void ranges_of_the_host_are_copied() {
    const Context device = Context::host();
    const Pool pool(device);
    Buffer<int> buffer(pool, 3);
    const std::list<short> from{7, 8, 9};
    buffer.copy_from_host(from.begin(), from.end());
    std::list<long> to(3);
    assert(buffer.copy_to_host(to.begin()) == to.end() && (to == std::list<long>{7, 8, 9}));
    std::vector<int> more;
    buffer.copy_to_host(std::back_inserter(more));
    assert((more == std::vector<int>{7, 8, 9}));
}

static void bytes_are_copied_between_blocks() {
    const Context device = Context::host();
    const Pool pool(device), pinned = device.pinned();
    const Stream stream(device), other(device);
    char *const one = pool.allocate_array<char>(100, stream), *const two = pool.allocate_array<char>(100, stream);
    char *const staging = pinned.allocate_array<char>(100, other);
    char found[100] = {};
    fill_bytes(device, one, 3, 100, stream);
    copy(device, two + 50, one, 50, stream);
    copy_from_host(device, two, found, 50, stream);
    pinned.copy_block(staging, other, pool, two, stream, 100);
    copy_to_host(device, found, staging, 100, other);
    assert(found[49] == 0 && found[50] == 3);
    pool.deallocate(one, stream);
    pool.deallocate(two, stream);
    pinned.deallocate(staging, other);
}

static void want_of_memory_is_told() {
    PoolOptions options;
    options.name = "small";
    options.hard_limit = std::size_t{16} << 20;
    const Pool pool(Context::sim(), options);
    int told = 0;
    const auto fails = [&] {
        try {
            (void)pool.allocate(std::size_t{64} << 20);
            assert(false);
        } catch (const OutOfMemory &) {
        }
    };
    {
        const OutOfMemoryObserver observer(pool, [&](const millpond_out_of_memory &report) {
            ++told;
            assert(report.requested == std::size_t{64} << 20 && std::strcmp(report.pool, "small") == 0);
            throw 1; // is dropped
        });
        fails();
        assert(told == 1);
    }
    fails();
    assert(told == 1);
}

static int refused = 0;
static void count_refused(const millpond_out_of_memory &) { ++refused; }

/// Functions, those that only move, and a std::function of the program's.
static void anything_that_can_be_called_is_told() {
    PoolOptions options;
    options.hard_limit = std::size_t{16} << 20;
    const Pool pool(Context::sim(), options);
    auto once = std::make_unique<int>(0);
    int *const moved = once.get();
    int seen = 0;
    const std::function<void(const millpond_out_of_memory &)> copied = [&](const millpond_out_of_memory &) { ++seen; };
    const OutOfMemoryObserver one(pool, count_refused), two(pool, copied);
    const OutOfMemoryObserver three(pool, [once = std::move(once)](const millpond_out_of_memory &) { ++*once; });
    const Reclaim asked(pool, [&](std::size_t) { return ++seen > 100; }); // an int is a truth value, too
    try {
        (void)pool.allocate(std::size_t{64} << 20);
        assert(false);
    } catch (const OutOfMemory &) {
    }
    assert(refused == 1 && *moved == 1 && seen >= 1);
    copied({});
}

static void handles_have_what_c_has() {
    const Context device = Context::host();
    const Stream stream(device);
    assert(std::strcmp(version(), MILLPOND_VERSION) == 0);
    assert(Event(device, stream).raw() != nullptr);
    const Budget half = Budget::fraction(device, 0.5);
    assert(half.limit() <= device.memory_info().total / 2 + 1 && half.limit() > 0);
    assert(millpond_budget_fraction(nullptr, 0.5, nullptr) == MILLPOND_STATUS_NULL_ARGUMENT);
}

/// A struct of a version to come is longer than ours.
static void structs_can_grow() {
    struct Later {
        millpond_tenant tenant;
        std::uint64_t more;
    } later[2];
    std::memset(later, 0xff, sizeof later);
    const Budget budget(1 << 20);
    std::size_t count = 0;
    check(millpond_budget_tenants(budget.get(), &later[0].tenant, sizeof later[0], 2, &count));
    assert(count == 0);
    static_assert(sizeof(millpond_device_calls) == 16 * sizeof(std::uint64_t), "with room for calls that come");
    for (const std::uint64_t reserved : Pool(Context::sim()).stats().calls.reserved) assert(reserved == 0);
}

int main() {
    a_zero_and_null_are_the_default_stream();
    a_buffer_of_bool_is_a_vector_of_bool();
    buffers_grow_and_shrink();
    a_buffer_changes_its_stream();
    ranges_of_the_host_are_copied();
    bytes_are_copied_between_blocks();
    want_of_memory_is_told();
    anything_that_can_be_called_is_told();
    handles_have_what_c_has();
    structs_can_grow();
}
