// Buffers keep their pool and their stream without counting references; both end with the last buffer, whichever thread frees it.
#include <cuda_mempool.hpp>
#include <millpond.hpp>

#undef NDEBUG // the assertions are the test
#include <cassert>
#include <atomic>
#include <optional>
#include <thread>
#include <vector>

using namespace millpond;

/// Whether a handle is valid still.
static bool is_there(millpond_pool *pool) { return millpond_pool_name(pool, nullptr, 0, nullptr) == MILLPOND_STATUS_OK; }
static bool is_there(millpond_stream *stream) {
    std::uint64_t id;
    return millpond_stream_id(stream, &id) == MILLPOND_STATUS_OK;
}

struct Handles {
    millpond_pool *pool;
    millpond_stream *stream;

    bool both() const { return is_there(pool) && is_there(stream); }
    bool none() const { return !is_there(pool) && !is_there(stream); }
};

static Handles of(const Pool &pool, const Stream &stream) { return {pool.get(), stream.get()}; }

/// As many allocations before the one that stays that the fast path is taken.
static Buffer<int> made(const Pool &pool, const Stream &stream, std::size_t count = 100) {
    for (int round = 0; round < 10; ++round) Buffer<int>(pool, count, stream);
    return Buffer<int>(pool, count, stream);
}

static void the_last_buffer_ends_both() {
    std::optional<Context> device(Context::host());
    std::optional<Pool> pool(std::in_place, *device);
    std::optional<Stream> stream(std::in_place, *device);
    const Handles handles = of(*pool, *stream);
    Buffer<int> first = made(*pool, *stream), second = made(*pool, *stream), none = made(*pool, *stream, 0);
    device.reset();
    pool.reset();
    assert(handles.both());
    stream.reset();
    assert(handles.both());
    second.fill_bytes(1);
    assert(second.to_vector() == std::vector<int>(100, 0x01010101));
    first = Buffer<int>();
    assert(handles.both());
    // Also where it is given more room, or another stream.
    second.resize(100000);
    assert(handles.both() && second.to_vector()[99] == 0x01010101);
    second = Buffer<int>();
    assert(handles.both());
    none.resize(10);
    none = Buffer<int>();
    assert(handles.none());
}

static void without_buffers_they_end_at_once() {
    const Context device = Context::host();
    std::optional<Pool> pool(std::in_place, device);
    std::optional<Stream> stream(std::in_place, device);
    const Handles handles = of(*pool, *stream);
    (void)made(*pool, *stream);
    {
        const Pool copy(*pool);
        pool.reset();
        assert(is_there(handles.pool));
    }
    assert(!is_there(handles.pool) && is_there(handles.stream));
    stream.reset();
    assert(handles.none());
}

static void what_was_given_up_holds_nothing() {
    const Context device = Context::host();
    std::optional<Pool> pool(std::in_place, device);
    std::optional<Stream> stream(std::in_place, device), other(std::in_place, device);
    const Handles handles = of(*pool, *stream), others = of(*pool, *other);
    Buffer<int> buffer = made(*pool, *stream);
    buffer.set_stream(*other);
    assert(buffer.stream() == *other);
    stream.reset();
    assert(!is_there(handles.stream));
    other.reset();
    assert(others.both());
    int *const block = buffer.release();
    assert(!is_there(others.stream) && is_there(others.pool) && buffer.data() == nullptr);
    pool->deallocate(block);
    assert(buffer.release() == nullptr);
    pool.reset();
    assert(others.none());
}

static void other_threads_free_the_last_one(int rounds) {
    const Context device = Context::host();
    for (int round = 0; round < rounds; ++round) {
        std::optional<Pool> pool(std::in_place, device);
        std::optional<Stream> stream(std::in_place, device);
        const Handles handles = of(*pool, *stream);
        std::vector<Buffer<int>> mine, theirs;
        std::thread([&] {
            for (int n = 0; n < 50; ++n) theirs.push_back(made(*pool, *stream));
        }).join();
        for (int n = 0; n < 50; ++n) mine.push_back(made(*pool, *stream));
        std::atomic<bool> go{false};
        std::vector<std::thread> threads;
        for (auto *buffers : {&mine, &theirs}) {
            threads.emplace_back([&go, buffers] {
                while (!go) std::this_thread::yield();
                buffers->clear();
            });
        }
        // While both threads free.
        go = true;
        pool.reset();
        stream.reset();
        for (std::thread &thread : threads) thread.join();
        assert(handles.none());
    }
}

static void pools_and_streams_end_while_threads_use_them(int rounds) {
    const Context device = Context::host();
    std::vector<std::thread> threads;
    for (int thread = 0; thread < (rounds > 2 ? 4 : 2); ++thread) {
        threads.emplace_back([&device, rounds] {
            for (int round = 0; round < rounds; ++round) {
                std::vector<Buffer<char>> kept;
                Handles last{};
                for (int n = 0; n < (rounds > 2 ? 4 : 1); ++n) {
                    const Pool pool(device);
                    const Stream stream(device), other(device);
                    for (int turn = 0; turn < 20; ++turn) {
                        Buffer<char>(pool, 1000, stream);
                        Buffer<char>(pool, 1000, other);
                    }
                    kept.emplace_back(pool, 1000, stream);
                    kept.emplace_back(pool, 1000, other);
                    std::thread([&] { kept.emplace_back(pool, 1000, stream); }).join();
                    last = of(pool, stream);
                }
                assert(last.both());
                std::thread([&] { kept.clear(); }).join();
                assert(last.none());
            }
        });
    }
    for (std::thread &thread : threads) thread.join();
}

static void more_streams_than_a_thread_remembers() {
    const Context device = Context::host();
    std::optional<Pool> pool(std::in_place, device);
    millpond_pool *const handle = pool->get();
    std::vector<millpond_stream *> handles;
    std::vector<Buffer<int>> buffers;
    {
        std::vector<Stream> streams;
        for (int n = 0; n < 100; ++n) streams.emplace_back(device);
        for (int round = 0; round < 5; ++round) {
            for (const Stream &stream : streams) {
                buffers.push_back(made(*pool, stream));
                if (round == 0) handles.push_back(stream.get());
            }
        }
    }
    pool.reset();
    for (millpond_stream *stream : handles) assert(is_there(stream));
    buffers.clear();
    assert(!is_there(handle));
    for (millpond_stream *stream : handles) assert(!is_there(stream));
}

static void mistakes_are_answered() {
    const Context device = Context::host();
    const Pool pool(device);
    assert(millpond_pool_give_up(nullptr, nullptr, nullptr) == MILLPOND_STATUS_NULL_ARGUMENT);
    millpond_pool *raw;
    check(millpond_pool_create(device.get(), nullptr, &raw));
    void *block;
    check(millpond_alloc_held(raw, 100, 1, nullptr, &block));
    check(millpond_pool_give_up(raw, nullptr, nullptr));
    assert(millpond_pool_give_up(raw, nullptr, nullptr) == MILLPOND_STATUS_BAD_OPTION);
    millpond_free_held(raw, block, nullptr);
    assert(!is_there(raw));
    assert(millpond_alloc_held(pool.get(), 100, 3, nullptr, &block) == MILLPOND_STATUS_BAD_ALIGNMENT && block == nullptr);
    // By hand, while a block holds it.
    check(millpond_pool_create(device.get(), nullptr, &raw));
    check(millpond_alloc_held(raw, 100, 1, nullptr, &block));
    check(millpond_pool_release(raw));
    check(millpond_context_free(device.get(), block, nullptr));
    millpond_end_hold(raw, nullptr);
    try {
        Buffer<int>().resize(10);
        assert(false);
    } catch (const Error &error) {
        assert(error.status() == MILLPOND_STATUS_NULL_ARGUMENT);
    }
}

/// With an argument, briefly: under valgrind, the addresses that pools reserve are few.
int main(int argc, char **) {
    const int rounds = argc > 1 ? 2 : 30;
    the_last_buffer_ends_both();
    without_buffers_they_end_at_once();
    what_was_given_up_holds_nothing();
    other_threads_free_the_last_one(rounds);
    pools_and_streams_end_while_threads_use_them(rounds);
    more_streams_than_a_thread_remembers();
    mistakes_are_answered();
}
