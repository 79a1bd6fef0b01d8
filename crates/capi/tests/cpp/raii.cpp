// millpond.hpp: everything lets go of itself, failures are exceptions, and containers can live in a pool.
#include <millpond.hpp>

#undef NDEBUG // the assertions are the test
#include <cassert>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

using namespace millpond;

// Each exception is caught as a millpond::Error, and as one of the standard library's.
template <class T, class... Bases>
constexpr bool is_caught_as = (std::is_convertible_v<T *, Bases *> && ...);
static_assert(is_caught_as<OutOfMemory, Error, std::bad_alloc, std::exception>);
static_assert(is_caught_as<SizeOverflow, Error, std::bad_array_new_length, std::bad_alloc, std::exception>);
static_assert(is_caught_as<RuntimeError, Error, std::runtime_error, std::exception>);
static_assert(std::is_nothrow_copy_constructible_v<OutOfMemory> && std::is_nothrow_copy_constructible_v<RuntimeError>);
static_assert(!std::is_copy_constructible_v<Buffer<int>> && std::is_nothrow_move_assignable_v<Buffer<int>>);
static_assert(!std::is_convertible_v<int *, StreamRef>, "only streams are streams");
static_assert(std::is_convertible_v<CUstream_st *, StreamRef>, "a cudaStream_t is one");

static void buffers_free_themselves() {
    const Context device = Context::host();
    const Pool pool(device);
    {
        const Stream stream(device);
        Buffer<int> first(pool, 1000, stream);
        std::vector<int> numbers(1000, 7);
        first.copy_from_host(numbers.data(), numbers.size());
        assert(first.to_vector() == numbers && first.size_bytes() == 4000);
        Buffer<int> second(std::move(first));
        assert(first.empty() && first.data() == nullptr && second.to_vector() == numbers);
        second.fill_bytes(0);
        assert(second.to_vector() == std::vector<int>(1000, 0));
        second.record_use(nullptr);
        int *kept = second.release();
        assert(second.data() == nullptr && pool.size_of(kept) == 4000);
        pool.deallocate(kept, stream);
        first = Buffer<int>(pool, 10, stream);
        const Buffer<int> none(pool, 0, nullptr);
        assert(none.data() == nullptr && none.to_vector().empty());
    }
    assert(pool.stats().blocks.current == 0);
}

/// What a copy beyond the buffer throws.
template <class Copy>
static void is_refused(Copy copy, const char *message) {
    try {
        copy();
        assert(false);
    } catch (const Error &error) {
        assert(error.status() == MILLPOND_STATUS_LENGTH_MISMATCH && std::string(error.what()) == message);
    }
}

static void copies_stay_within_their_buffer() {
    const Context device = Context::host();
    const Pool pool(device);
    Buffer<int> buffer(pool, 10);
    std::vector<int> numbers{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, found(3);
    buffer.copy_from_host(numbers.data(), 10);
    buffer.copy_to_host(found.data(), 3, 7);
    assert((found == std::vector<int>{8, 9, 10}));
    buffer.copy_from_host(found.data(), 2, 1);
    assert((buffer.to_vector() == std::vector<int>{1, 8, 9, 4, 5, 6, 7, 8, 9, 10}));
    buffer.copy_from_host(nullptr, 0, 10);
    is_refused([&] { buffer.copy_from_host(numbers.data(), 11); },
               "copy_from_host: count 11 from element 0 on; the buffer has 10");
    is_refused([&] { buffer.copy_to_host(found.data(), 3, 8); },
               "copy_to_host: count 3 from element 8 on; the buffer has 10");
    is_refused([&] { buffer.copy_from_host(numbers.data(), static_cast<std::size_t>(-1), 2); },
               "copy_from_host: count 18446744073709551615 from element 2 on; the buffer has 10");
    is_refused([&] { Buffer<int>().copy_to_host(found.data(), 1); },
               "copy_to_host: count 1 from element 0 on; the buffer has 0");
    is_refused([&] { buffer.copy_to_host(found.data(), 0, 11); },
               "copy_to_host: count 0 from element 11 on; the buffer has 10");
    try {
        buffer.copy_from_host(nullptr, 1);
        assert(false);
    } catch (const Error &error) {
        assert(error.status() == MILLPOND_STATUS_NULL_ARGUMENT);
    }
#ifdef MILLPOND_HAS_SPAN
    buffer.copy_from_host(numbers);
    int some[2];
    buffer.copy_to_host(some);
    assert(some[0] == 1 && some[1] == 2);
    numbers.push_back(11);
    is_refused([&] { buffer.copy_from_host(numbers); },
               "copy_from_host: count 11 from element 0 on; the buffer has 10");
#else
    static_assert(__cplusplus < 202002L, "C++20 has spans");
#endif
}

static void a_buffer_keeps_its_pool_and_stream() {
    const auto make = [] {
        const Context device = Context::host();
        return Buffer<char>(Pool(device), 100, Stream(device));
    };
    Buffer<char> kept = make();
    kept.fill_bytes(9);
    assert(kept.to_vector() == std::vector<char>(100, 9));
}

static void streams_wait_for_each_other() {
    const Context device = Context::host();
    const Stream a(device), b(device);
    assert(a.id() != b.id() && a != b);
    int turns = 0;
    const auto work = [](void *data) { ++*static_cast<int *>(data); };
    check(millpond_host_launch(device.get(), a.get(), work, &turns));
    const Event event(device, a);
    wait(device, b, event);
    wait_for(device, b, a);
    check(millpond_host_launch(device.get(), b.get(), work, &turns));
    synchronize(device, b);
    assert(turns == 2 && event.query() && is_idle(device, b));
    event.synchronize();
    const Stream registered(device, a.raw());
    assert(registered.id() == a.id());
}

static void failures_are_exceptions() {
    HostOptions small;
    small.capacity = std::size_t{16} << 20;
    const Context device = Context::host(small);
    PoolOptions options;
    options.name = "small";
    const Pool pool(device, options);
    assert(pool.name() == "small");
    try {
        (void)pool.allocate(std::size_t{64} << 20);
        assert(false);
    } catch (const OutOfMemory &error) {
        assert(error.report().requested == std::size_t{64} << 20 && std::string(error.report().pool) == "small");
        assert(std::strstr(error.what(), "requested, but") != nullptr);
        const std::bad_alloc &standard = error;
        assert(std::strcmp(standard.what(), error.what()) == 0);
    }
    try {
        MemoryResource resource(pool);
        std::pmr::vector<char> much(std::size_t{64} << 20, &resource);
        assert(false);
    } catch (const std::bad_alloc &error) {
        assert(dynamic_cast<const Error &>(error).status() == MILLPOND_STATUS_OUT_OF_MEMORY);
    }
    try {
        const Buffer<char> much(pool, std::size_t{64} << 20);
        assert(false);
    } catch (const std::exception &error) {
        assert(dynamic_cast<const OutOfMemory *>(&error) != nullptr);
    }
    try {
        pool.deallocate(&options);
        assert(false);
    } catch (const std::runtime_error &error) {
        assert(dynamic_cast<const Error &>(error).status() == MILLPOND_STATUS_FOREIGN_POINTER);
    }
    try {
        Buffer<double> much(pool, static_cast<std::size_t>(-1) / 4);
        assert(false);
    } catch (const std::bad_alloc &error) {
        assert(dynamic_cast<const Error &>(error).status() == MILLPOND_STATUS_SIZE_OVERFLOW);
    }
    try {
        (void)pool.allocate(static_cast<std::size_t>(-1));
        assert(false);
    } catch (const SizeOverflow &error) {
        assert(error.status() == MILLPOND_STATUS_SIZE_OVERFLOW);
    }
    options.min_alignment = 3;
    try {
        const Pool bad(device, options);
        assert(false);
    } catch (const Error &error) {
        assert(error.status() == MILLPOND_STATUS_BAD_OPTION);
    }
}

static void reclaim_is_asked_and_may_throw() {
    const Budget budget(std::size_t{64} << 20);
    PoolOptions options;
    options.budget = budget.get();
    const Pool pool(Context::sim(), options);
    void *cached = pool.allocate(std::size_t{40} << 20);
    int asked = 0;
    {
        const Reclaim reclaim(pool, [&](std::size_t bytes) {
            assert(bytes == std::size_t{40} << 20);
            if (++asked > 1) throw std::logic_error("nothing left");
            pool.deallocate(cached);
            return true;
        });
        void *block = pool.allocate(std::size_t{40} << 20);
        assert(asked == 1 && budget.limit() == std::size_t{64} << 20 && budget.held() >= std::size_t{40} << 20);
        try {
            (void)pool.allocate(std::size_t{40} << 20);
            assert(false);
        } catch (const OutOfMemory &error) {
            assert(asked == 2 && error.report().limit == MILLPOND_LIMIT_BUDGET);
        }
        pool.deallocate(block);
    }
    try {
        (void)pool.allocate(std::size_t{100} << 20);
        assert(false);
    } catch (const OutOfMemory &) {
        assert(asked == 2);
    }
}

static void processes_share_a_named_budget() {
    char folder[] = "/tmp/millpond-cpp-XXXXXX";
    assert(mkdtemp(folder) != nullptr && setenv("XDG_RUNTIME_DIR", folder, 1) == 0);
    const std::string name = "cpp-" + std::to_string(getpid());
    assert(!Budget::find(name));
    const Budget budget = Budget::named(name, std::size_t{64} << 20);
    budget.set_floor(std::size_t{8} << 20);
    budget.set_claim(std::size_t{48} << 20);
    budget.set_patience(std::chrono::milliseconds(1));
    PoolOptions options;
    options.budget = budget.get();
    const Pool pool(Context::sim(), options);
    void *block = pool.allocate(std::size_t{40} << 20);
    const std::optional<Budget> found = Budget::find(name);
    assert(found && found->held() == std::size_t{40} << 20);
    const std::vector<millpond_tenant> tenants = found->tenants();
    assert(tenants.size() == 1 && tenants[0].pid == static_cast<std::uint32_t>(getpid()));
    assert(tenants[0].held == std::size_t{40} << 20 && tenants[0].floor == std::size_t{8} << 20);
    assert(tenants[0].claim == std::size_t{48} << 20);
    found->set_limit(std::size_t{80} << 20);
    assert(budget.limit() == std::size_t{80} << 20);
    try {
        (void)pool.allocate(std::size_t{40} << 20);
        assert(false);
    } catch (const OutOfMemory &error) {
        assert(error.report().limit_bytes == std::size_t{48} << 20);
    }
    pool.deallocate(block);
    const std::string millpond = std::string(folder) + "/millpond";
    assert(unlink((millpond + "/" + name).c_str()) == 0);
    assert(rmdir(millpond.c_str()) == 0 && rmdir(folder) == 0);
}

static void pools_have_figures_and_attributes() {
    const Context device = Context::sim();
    const Pool pool = device.default_pool();
    device.set_current_pool(&pool);
    const Pool current = device.current_pool();
    device.set_current_pool(nullptr);
    void *zeroed = pool.allocate_zeroed(100);
    void *aligned = pool.allocate_aligned(100, 4096);
    assert(reinterpret_cast<std::size_t>(aligned) % 4096 == 0);
    assert(current.stats().blocks.current == 2 && current.attribute(MILLPOND_ATTRIBUTE_USED_CURRENT) == 1024);
    pool.set_attribute(MILLPOND_ATTRIBUTE_RELEASE_THRESHOLD, 5);
    assert(current.attribute(MILLPOND_ATTRIBUTE_RELEASE_THRESHOLD) == 5);
    pool.deallocate(zeroed);
    pool.deallocate(aligned);
    pool.trim();
    pool.reset_high_water();
    assert(pool.stats().reserved.high == 0 && device.memory_info().total == device.properties().total_memory);
    const Workspace workspace(pool, 4096);
    assert(workspace.allocate_array<float>(4) != nullptr && workspace.used() == 512);
    workspace.reset();
    assert(workspace.used() == 0);
    const Pool doomed(device);
    doomed.destroy();
    try {
        (void)doomed.allocate(1);
        assert(false);
    } catch (const Error &error) {
        assert(error.status() == MILLPOND_STATUS_POOL_DESTROYED);
    }
}

static void containers_live_in_a_pool() {
    const Context device = Context::host();
    const Stream stream(device);
    for (const Pool &pool : {Pool(device), device.pinned(), device.managed()}) {
        MemoryResource resource(pool, stream);
        {
            std::pmr::vector<std::pmr::string> words(&resource);
            for (int index = 0; index < 100; ++index) words.emplace_back(std::string(100, 'x'));
            assert(words[99].size() == 100 && pool.stats().blocks.current == 101);
        }
        assert(pool.stats().blocks.current == 0);
        assert(resource == MemoryResource(pool, stream) && !(resource == MemoryResource(pool)));
    }
}

/// Work of a stream that is late, so that whoever does not wait sees the old bytes.
static void late(void *) {
    volatile unsigned turns = 0;
    while (turns < 1000000) turns = turns + 1;
}

static void pinned_memory_is_used_in_place() {
    const Context device = Context::host();
    const Pool pool(device), pinned = device.pinned();
    const Stream upload(device), compute(device), download(device);
    assert(pinned.memory() == Memory::pinned && pinned.host_access() && pinned.name() == "pinned");
    assert(pool.memory() == Memory::device && !pool.host_access());
    pinned.reserve(8 << 20, upload);
    assert(pinned.stats().reserved.current >= 8 << 20 && pinned.memory_info().total > 0);
    Buffer<int> staging(pinned, 1000, upload), inputs(pool, 1000, compute), results(pinned, 1000, download);
    for (int round = 1; round <= 5; ++round) {
        int *const in = staging.host_data(); // waits for the copy of the round before
        for (int index = 0; index < 1000; ++index) in[index] = round + index;
        check(millpond_host_launch(device.get(), compute.get(), late, nullptr));
        inputs.copy_from_pinned(staging);
        inputs.copy_to_pinned(results);
        const int *const out = std::as_const(results).host_data();
        assert(out[0] == round && out[999] == round + 999);
    }
    // Writes come after copies that read the buffer elsewhere.
    staging.fill_bytes(1);
    check(millpond_host_launch(device.get(), download.get(), late, nullptr));
    results.copy_from(staging);
    staging.fill_bytes(2);
    assert(results.host_data()[999] == 0x01010101 && staging.host_data()[999] == 0x02020202);
#ifdef MILLPOND_HAS_SPAN
    staging.as_span()[3] = 7;
    assert(std::as_const(staging).as_span()[3] == 7 && Buffer<int>(pinned, 0).as_span().empty());
#endif
    Buffer<int> moved(std::move(staging));
    assert(moved.host_data()[999] == 0x02020202 && Buffer<int>().host_data() == nullptr);
}

static void managed_memory_is_prefetched_and_advised() {
    const Context device = Context::host();
    const Pool managed = device.managed();
    const Stream stream(device), other(device);
    assert(managed.memory() == Memory::managed && managed.host_access() && managed.name() == "managed");
    const void *at = nullptr;
    {
        Buffer<int> table(managed, 1 << 20, stream);
        table.host_data()[5] = 5;
        table.prefetch(Place::device);
        table.prefetch(Place::host, other);
        assert(table.host_data()[5] == 5);
        assert(table.residency().last_prefetch.has_value() && !table.residency().preferred_location);
        table.advise(MILLPOND_ADVICE_READ_MOSTLY);
        table.advise(MILLPOND_ADVICE_PREFERRED_LOCATION, Place::device);
        Buffer<int> moved(std::move(table));
        assert(moved.residency().read_mostly && moved.residency().preferred_location == Place::device);
        moved.advise(MILLPOND_ADVICE_PREFERRED_LOCATION);
        assert(!moved.residency().preferred_location);
        at = moved.data();
    }
    const Buffer<int> next(managed, 1 << 20, stream);
    assert(next.data() == at && !next.residency().read_mostly);
    Buffer<int>().prefetch(Place::host);
}

template <class Call>
static void refused(millpond_status status, const char *said, const Call &call) {
    try {
        call();
    } catch (const Error &error) {
        assert(error.status() == status && std::string(error.what()).find(said) != std::string::npos);
        return;
    }
    assert(false);
}

static void other_memory_is_refused_in_words() {
    const Context device = Context::host();
    const Pool pool(device), pinned = device.pinned();
    Buffer<int> inputs(pool, 10), staging(pinned, 10), shorter(pinned, 9);
    refused(MILLPOND_STATUS_NO_HOST_ACCESS, "the CPU cannot read", [&] { inputs.host_data(); });
    refused(MILLPOND_STATUS_NOT_PINNED, "copy_to_pinned: pool 'pool' is not of pinned memory",
            [&] { staging.copy_to_pinned(inputs); });
    refused(MILLPOND_STATUS_NOT_PINNED, "build one with Context::pinned", [&] { staging.copy_from_pinned(inputs); });
    refused(MILLPOND_STATUS_LENGTH_MISMATCH, "the other buffer has 9 elements, and this one 10",
            [&] { inputs.copy_from(shorter); });
    refused(MILLPOND_STATUS_NOT_MANAGED, "is not of managed memory", [&] { staging.prefetch(Place::device); });
    refused(MILLPOND_STATUS_NOT_MANAGED, "is not of managed memory", [&] { inputs.residency(); });
    PoolOptions options;
    options.node = 3;
    refused(MILLPOND_STATUS_DEVICE_UNSUPPORTED, "NUMA node", [&] { (void)device.pinned(options); });
}

static void threads_free_what_others_allocated() {
    const Context device = Context::host();
    const Pool pool(device);
    std::vector<Buffer<char>> buffers;
    for (std::size_t size = 1; size <= 100; ++size) buffers.emplace_back(pool, size * 100, Stream(device));
    std::thread other([moved = std::move(buffers)]() mutable { moved.clear(); });
    other.join();
    assert(pool.stats().blocks.current == 0);
}

/// Frees when its thread's variables are destroyed, after those of the library may be gone.
struct AtThreadExit {
    Buffer<char> buffer;
};

static void a_thread_may_free_while_it_ends() {
    const Context device = Context::host();
    const Pool pool(device);
    for (int turn = 0; turn < 20; ++turn) {
        std::thread ending([&] {
            thread_local AtThreadExit late;
            late.buffer = Buffer<char>(pool, 1000);
        });
        ending.join();
    }
    assert(pool.stats().blocks.current == 0 && pool.stats().frees == 20);
}

static void captures_have_memory_of_their_own() {
    const Context device = Context::host();
    const Pool pool(device);
    const Stream stream(device), other(device);
    Buffer<char> kept;
    {
        const CapturePool memory(pool);
        {
            const Capturing capturing(memory, stream);
            try {
                const Capturing again(memory, other);
                assert(false);
            } catch (const Error &error) {
                assert(error.status() == MILLPOND_STATUS_CAPTURE_UNDER_WAY);
                // By the name that the class has here, in Rust and in Python.
                assert(std::string(error.what()).find("this CapturePool of pool ") == 0);
            }
            kept = Buffer<char>(pool, 3 << 20, stream);
            const Buffer<char> beside(pool, 3 << 20, other);
            assert(memory.used() == 3 << 20 && memory.reserved() == 4 << 20);
        }
        const Capturing filtered(memory, [raw = other.raw()](void *asked) { return asked == raw; });
        const Buffer<char> captured(pool, 1 << 20, other);
        assert(memory.used() == 4 << 20);
    }
    kept.fill_bytes(3);
    assert(kept.to_vector() == std::vector<char>(3 << 20, 3));
}

static void pools_and_tags_sleep_and_wake() {
    const Context device = Context::host();
    const Pool pool(device), weights = pool.tagged("weights");
    const Stream stream(device);
    Buffer<char> kept(weights, 3 << 20, stream), beside(pool, 100, stream);
    kept.fill_bytes(3);
    assert(weights.name() == "pool/weights" && weights.sleep(Keep::in_pinned_memory) >= 3 << 20);
    assert(weights.is_asleep() && !pool.is_asleep() && weights.stats().reserved.current == 0);
    refused(MILLPOND_STATUS_ASLEEP, "wake it first", [&] { Buffer<char>(weights, 1, stream); });
    weights.wake();
    assert(kept.to_vector() == std::vector<char>(3 << 20, 3));
    pool.sleep(Keep::nothing);
    assert(weights.is_asleep());
    pool.wake();
    assert(pool.trim_staging() >= 3 << 20);
    refused(MILLPOND_STATUS_CANNOT_SLEEP, "cannot sleep", [&] { device.pinned().sleep(Keep::nothing); });
}

static void tags_are_evicted_and_restored() {
    const Context device = Context::host();
    const Pool pool(device), optimizer = pool.tagged("optimizer");
    const Stream stream(device);
    Buffer<char> kept(optimizer, 3 << 20, stream);
    kept.fill_bytes(3);
    assert(optimizer.evict(stream) >= 3 << 20);
    assert(optimizer.is_evicted() && !optimizer.is_asleep() && optimizer.stats().reserved.current == 0);
    refused(MILLPOND_STATUS_EVICTED, "restore it first", [&] { Buffer<char>(optimizer, 1, stream); });
    {
        Buffer<char> other(pool, 3 << 20, stream);
        other.fill_bytes(9);
        // The addresses may still lead to the pages, which are the other buffer's now.
        char byte = 5;
        refused(MILLPOND_STATUS_EVICTED, "restore it first", [&] { kept.fill_bytes(4); });
        refused(MILLPOND_STATUS_EVICTED, "restore it first", [&] { kept.copy_from_host(&byte, 1); });
        refused(MILLPOND_STATUS_EVICTED, "restore it first", [&] { kept.copy_to_host(&byte, 1); });
        refused(MILLPOND_STATUS_EVICTED, "restore it first", [&] { (void)kept.to_vector(); });
        assert(byte == 5 && other.to_vector() == std::vector<char>(3 << 20, 9));
    }
    optimizer.restore_ahead();
    assert(optimizer.restore_free() == 0);
    optimizer.restore(stream);
    assert(!optimizer.is_evicted() && kept.to_vector() == std::vector<char>(3 << 20, 3));
    optimizer.sleep(Keep::in_pinned_memory);
    refused(MILLPOND_STATUS_ASLEEP, "wake it first", [&] { kept.fill_bytes(4); });
    optimizer.wake();
    refused(MILLPOND_STATUS_CANNOT_EVICT, "no part of another pool", [&] { pool.evict(stream); });
}

static void pools_are_recorded_under_tags() {
    const Context device = Context::host();
    const Pool pool(device);
    const char *folder = std::getenv("TMPDIR");
    pool.start_recording(std::string(folder == nullptr ? "/tmp" : folder) + "/millpond-raii-%p.mprec");
    {
        const Tag outer("outer"), inner("inner");
        const Buffer<char> buffer(pool, 1000, nullptr);
    }
    assert(pool.recording().recorded == 1);
    const millpond_recording found = pool.stop_recording();
    assert(found.events >= 2 && found.bytes > 0 && found.dropped == 0);
    assert(std::remove(found.path) == 0);
    assert(pool.recording().recorded == 0);
}

static void devices_work_together() {
    HostOptions options;
    options.capacity = 256u << 20;
    const Context first = Context::host(options), second = Context::host(options);
    const Pool pool(first), other(second);
    // Both default streams are null, and two streams.
    Buffer<int> from(pool, 1 << 20), to(other, 1 << 20);
    for (int round = 1; round <= 5; ++round) {
        from.copy_from_host(std::vector<int>(1 << 20, round).data(), 1 << 20);
        to.copy_from(from);
        from.fill_bytes(0);
        assert(to.to_vector() == std::vector<int>(1 << 20, round));
    }
    assert(pool.is_accessible_from(from.data(), second) && !other.is_accessible_from(to.data(), first));
    pool.take_back_access(second);
    assert(!pool.is_accessible_from(from.data(), second));
    from.allow_access(second);
    assert(pool.is_accessible_from(from.data(), second));
    const Stream theirs(second);
    from.record_use(theirs);
    other.allow_access(first);
    assert(other.is_accessible_from(to.data(), first));
}

int main() {
    buffers_free_themselves();
    copies_stay_within_their_buffer();
    a_buffer_keeps_its_pool_and_stream();
    streams_wait_for_each_other();
    failures_are_exceptions();
    reclaim_is_asked_and_may_throw();
    processes_share_a_named_budget();
    pools_have_figures_and_attributes();
    containers_live_in_a_pool();
    pinned_memory_is_used_in_place();
    managed_memory_is_prefetched_and_advised();
    devices_work_together();
    other_memory_is_refused_in_words();
    threads_free_what_others_allocated();
    captures_have_memory_of_their_own();
    pools_and_tags_sleep_and_wake();
    tags_are_evicted_and_restored();
    pools_are_recorded_under_tags();
    a_thread_may_free_while_it_ends();
}
