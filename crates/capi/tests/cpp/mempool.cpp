// A program written against the simple pool's interface compiles unchanged, and gets what the interface promises.
#include <cuda_mempool.hpp>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#undef NDEBUG // the assertions are the test
#include <cassert>

using mempool::CudaError;
using mempool::CudaMemPool;
using mempool::PoolConfig;
using mempool::PoolPtr;

static_assert(std::is_base_of<std::runtime_error, CudaError>::value, "caught as such");
static_assert(!std::is_copy_constructible<PoolPtr<float>>::value, "an owner");
static_assert(std::is_nothrow_move_constructible<PoolPtr<float>>::value, "moves");

template <class F>
static bool throws(F call) {
    try {
        call();
    } catch (const CudaError &error) {
        return error.what()[0] != '\0';
    }
    return false;
}

static void nothing_is_nothing() {
    CudaMemPool pool;
    assert(pool.allocate(0) == nullptr);
    assert(pool.allocate_async(0, nullptr) == nullptr);
    pool.deallocate(nullptr);
    pool.deallocate_async(nullptr, nullptr);
    assert(pool.total_allocated() == 0 && pool.peak_allocated() == 0 && pool.num_allocations() == 0);
}

static void figures_count_bytes_held_from_the_device() {
    CudaMemPool pool;
    void *block = pool.allocate(std::size_t{3} << 20);
    assert(block != nullptr && pool.num_allocations() == 1);
    const std::size_t held = pool.total_allocated();
    assert(held >= std::size_t{3} << 20 && pool.peak_allocated() == held);
    pool.deallocate(block);
    assert(pool.total_allocated() == held);
    std::size_t kept = 0;
    for (const auto &[size, free_count] : pool.cache_stats()) kept += size * free_count;
    assert(kept == held);
    assert(pool.allocate(std::size_t{3} << 20) == block);
    assert(pool.total_allocated() == held);
    pool.deallocate(block);
    pool.process_deferred();
    pool.trim();
    assert(pool.total_allocated() == 0 && pool.peak_allocated() == held);
    for (const auto &entry : pool.cache_stats()) assert(entry.second == 0);
}

static void mistakes_throw() {
    CudaMemPool pool, other;
    int on_the_stack = 0;
    assert(throws([&] { pool.deallocate(&on_the_stack); }));
    assert(throws([&] { pool.deallocate_async(&on_the_stack, nullptr); }));
    void *block = pool.allocate(100);
    assert(throws([&] { other.deallocate(block); }));
    assert(throws([&] { pool.deallocate(static_cast<char *>(block) + 1); }));
    pool.deallocate(block);
    assert(throws([&] { pool.deallocate(block); }));
    assert(throws([&] { (void)pool.allocate(static_cast<std::size_t>(-1)); }));
    assert(throws([&] { PoolPtr<double> much(pool, static_cast<std::size_t>(-1) / 4); }));
}

static void the_limit_holds() {
    PoolConfig config;
    config.max_pool_size = std::size_t{64} << 20;
    CudaMemPool pool(config);
    void *half = pool.allocate(std::size_t{32} << 20);
    void *rest = pool.allocate(std::size_t{32} << 20);
    assert(throws([&] { (void)pool.allocate(1); }));
    pool.deallocate(rest);
    rest = pool.allocate(std::size_t{16} << 20);
    assert(pool.total_allocated() <= config.max_pool_size);
    pool.deallocate(half);
    pool.deallocate(rest);

    config.max_pool_size = 1 << 20; // less than a page
    CudaMemPool small(config);
    void *block = small.allocate(512 << 10);
    assert(throws([&] { (void)small.allocate(1 << 20); }));
    small.deallocate(block);
    small.deallocate(small.allocate(1 << 20));
}

static void options_that_the_pool_cannot_take_are_rounded() {
    for (const std::size_t size : {0, 1, 100, 256, 1000, 4096, 1 << 30}) {
        PoolConfig config;
        config.min_block_size = size;
        config.num_size_classes = 100;
        CudaMemPool pool(config);
        void *block = pool.allocate(1);
        assert(reinterpret_cast<std::size_t>(block) % 256 == 0);
        pool.deallocate(block);
    }
    const PoolConfig listed{std::size_t{1} << 30, 256, 8, 20, true, 0};
    CudaMemPool pool(listed);
    assert(pool.cache_stats().size() == 20 && pool.cache_stats()[1].first == 512);
}

static void a_block_is_freed_on_the_stream_that_it_was_allocated_on() {
    CudaMemPool pool;
    millpond_stream *made = nullptr;
    void *raw = nullptr;
    assert(millpond_stream_create(pool.pool().context().get(), &made) == MILLPOND_STATUS_OK);
    assert(millpond_stream_raw(made, &raw) == MILLPOND_STATUS_OK);
    const cudaStream_t stream = static_cast<cudaStream_t>(raw);

    pool.deallocate(pool.allocate(1000, stream));
    pool.deallocate_async(pool.allocate_async(1000, stream), stream);
    void *late = pool.allocate(1000, stream);
    // Its stream is destroyed before it is freed, and no call is given the handle after that.
    pool.forget_stream(stream);
    assert(millpond_stream_release(made) == MILLPOND_STATUS_OK);
    pool.deallocate(late);
    assert(pool.pool().stats().blocks.current == 0);
}

static void a_block_of_a_default_stream_is_freed_after_its_own_threads_work() {
    CudaMemPool pool;
    const cudaStream_t per_thread = reinterpret_cast<cudaStream_t>(2);
    static std::atomic<bool> go{false}, done{false};
    const auto work = [](void *) {
        while (!go.load()) std::this_thread::yield();
        done.store(true);
    };
    void *block = pool.allocate(1000, per_thread);
    millpond::Buffer<char> buffer(pool.pool(), 1000, per_thread);
    const millpond_status given = millpond_host_launch(pool.pool().context().get(), per_thread, work, nullptr);
    assert(given == MILLPOND_STATUS_OK || std::getenv("MILLPOND_DEVICE") == nullptr);
    std::thread([&] { millpond::Buffer<char>(std::move(buffer)); }).join();
    std::thread opens([&] { go.store(true); });
    std::thread([&] { pool.deallocate(block); }).join();
    assert(done.load() || given != MILLPOND_STATUS_OK);
    opens.join();
    assert(pool.pool().stats().blocks.current == 0);
}

static void every_block_has_the_stream_that_it_was_allocated_on_last() {
    CudaMemPool pool;
    const millpond::Context &device = pool.pool().context();
    // More streams and more addresses than are remembered at first.
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 3; ++thread) {
        threads.emplace_back([&] {
            std::vector<millpond::Stream> streams;
            std::vector<void *> blocks;
            for (int n = 0; n < 30; ++n) streams.emplace_back(device);
            for (int round = 0; round < 3; ++round) {
                for (std::size_t n = 0; n < 300; ++n) {
                    const millpond::Stream &stream = streams[n % streams.size()];
                    blocks.push_back(pool.allocate(n % 7 == 0 ? 1 << 20 : 1000, static_cast<cudaStream_t>(stream.raw())));
                    if (n % 3 == 0) blocks.push_back(pool.allocate(1000));
                }
                for (void *block : blocks) pool.deallocate(block);
                blocks.clear();
            }
            for (const millpond::Stream &stream : streams) pool.forget_stream(static_cast<cudaStream_t>(stream.raw()));
        });
    }
    for (std::thread &thread : threads) thread.join();
    // The streams are gone. Whatever is allocated where their blocks were is the default stream's.
    std::vector<void *> blocks;
    for (int n = 0; n < 2000; ++n) blocks.push_back(pool.allocate(1000));
    for (void *block : blocks) pool.deallocate(block);
    assert(pool.pool().stats().blocks.current == 0);
}

static void owners_move_and_free() {
    CudaMemPool pool;
    {
        PoolPtr<float> first(pool, 1000);
        assert(first.get() != nullptr && first && first.count() == 1000 && first.size_bytes() == 4000);
        assert(&*first == first.get() && first.operator->() == first.get());
        float *at = first.get();
        PoolPtr<float> second(std::move(first));
        assert(first.get() == nullptr && first.count() == 0 && second.get() == at);
        PoolPtr<float> third(pool, 10);
        third = std::move(second);
        assert(third.get() == at && pool.pool().stats().blocks.current == 1);
        PoolPtr<float> empty;
        assert(!empty);
        float *kept = third.release();
        assert(kept == at && third.get() == nullptr);
        pool.deallocate(kept);
        PoolPtr<float> none(pool, 0);
        assert(none.get() == nullptr);
    }
    assert(pool.pool().stats().blocks.current == 0);
}

static void threads_share_a_pool() {
    CudaMemPool pool;
    std::vector<std::thread> threads;
    for (int index = 0; index < 4; ++index) {
        threads.emplace_back([&pool, index] {
            for (std::size_t turn = 1; turn <= 200; ++turn) {
                PoolPtr<char> a(pool, turn * 100), b(pool, turn * 1000 + static_cast<std::size_t>(index));
                assert(a.get() != b.get());
            }
        });
    }
    for (std::thread &thread : threads) thread.join();
    assert(pool.pool().stats().blocks.current == 0 && pool.num_allocations() == 1600);
}

static void the_variable_that_chooses_the_device_is_named_where_there_is_no_gpu_and_where_it_is_wrong() {
    const std::string device = std::getenv("MILLPOND_DEVICE") == nullptr ? "" : std::getenv("MILLPOND_DEVICE");
    unsetenv("MILLPOND_DEVICE");
    bool is_there = true, is_refused = false;
    try {
        (void)millpond::Context::cuda(0);
    } catch (const millpond::Error &) {
        is_there = false;
    }
    try {
        CudaMemPool pool;
    } catch (const CudaError &error) {
        is_refused = true;
        assert(std::string(error.what()).find("MILLPOND_DEVICE=host") != std::string::npos);
    }
    assert(is_refused == !is_there);

    setenv("MILLPOND_DEVICE", "gpu", 1);
    try {
        CudaMemPool pool;
        assert(false);
    } catch (const CudaError &error) {
        assert(error.status() == MILLPOND_STATUS_BAD_OPTION);
        assert(std::string(error.what()).find("MILLPOND_DEVICE=gpu: it may be host, sim or cuda") == 0);
    }
    setenv("MILLPOND_DEVICE", "sim", 1);
    CudaMemPool simulated;
    assert(simulated.pool().context().properties().kind == MILLPOND_DEVICE_KIND_SIM);
    unsetenv("MILLPOND_DEVICE");
    if (!device.empty()) setenv("MILLPOND_DEVICE", device.c_str(), 1);
}

int main() {
    nothing_is_nothing();
    figures_count_bytes_held_from_the_device();
    mistakes_throw();
    the_limit_holds();
    options_that_the_pool_cannot_take_are_rounded();
    a_block_is_freed_on_the_stream_that_it_was_allocated_on();
    a_block_of_a_default_stream_is_freed_after_its_own_threads_work();
    every_block_has_the_stream_that_it_was_allocated_on_last();
    owners_move_and_free();
    threads_share_a_pool();
    the_variable_that_chooses_the_device_is_named_where_there_is_no_gpu_and_where_it_is_wrong();
}
