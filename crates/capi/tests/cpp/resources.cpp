// What RMM asks of a resource (its tests `mr_ref_test_*`), of the resources in millpond_resources.hpp: allocations of many sizes,
// alignment, random mixes, streams of one's own, several threads. On the device that MILLPOND_DEVICE names: host, or cuda. With
// -DEXPECT_RMM and -lrmm, RMM's own adaptors stand on it, too.
#undef NDEBUG
#include <millpond_resources.hpp>

#ifdef EXPECT_RMM
#include <rmm/mr/failure_callback_resource_adaptor.hpp>
#include <rmm/mr/statistics_resource_adaptor.hpp>
#endif

#include <cassert>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <iostream>
#include <memory_resource>
#include <mutex>
#include <new>
#include <random>
#include <thread>
#include <vector>

using namespace millpond;

namespace {

constexpr std::size_t KiB = 1024, MiB = 1024 * KiB, GiB = 1024 * MiB, PiB = 1024 * 1024 * GiB;
constexpr std::size_t RMM_ALIGNMENT = 256;
constexpr std::size_t ALLOCATIONS = 100, MOST = 5 * MiB, THREADS = 4;

struct Block {
    void *ptr;
    std::size_t bytes;
};

bool is_aligned(const void *ptr, std::size_t align) { return reinterpret_cast<std::uintptr_t>(ptr) % align == 0; }

// ---- resources, as the cases call them --------------------------------------------------------------

/// A pool and a stream as a std::pmr::memory_resource.
struct Pmr {
    static constexpr const char *name = "MemoryResource";
    static constexpr bool synchronous = false;

    Pmr(const Pool &pool, StreamRef stream) : resource(pool, stream), pool(pool), stream(stream) {}
    void *allocate(std::size_t bytes, std::size_t align = RMM_ALIGNMENT) { return resource.allocate(bytes, align); }
    void deallocate(Block block, std::size_t align = RMM_ALIGNMENT) {
        resource.deallocate(block.ptr, block.bytes, align);
    }
    bool operator==(const Pmr &other) const { return resource.is_equal(other.resource); }

    MemoryResource resource;
    Pool pool;
    StreamRef stream;
};

#ifdef MILLPOND_HAS_CCCL

::cuda::stream_ref ref_of(StreamRef stream) { return ::cuda::stream_ref(static_cast<CUstream_st *>(stream.get())); }

/// A resource of CCCL, called on a stream.
template <class Resource>
struct OnStream {
    static constexpr const char *name = "StreamResource on a stream";

    OnStream(const Pool &pool, StreamRef stream) : resource(pool), pool(pool), stream(stream) {}
    void *allocate(std::size_t bytes, std::size_t align = RMM_ALIGNMENT) {
        return resource.allocate(ref_of(stream), bytes, align);
    }
    void deallocate(Block block, std::size_t align = RMM_ALIGNMENT) {
        resource.deallocate(ref_of(stream), block.ptr, block.bytes, align);
    }
    bool operator==(const OnStream &other) const { return resource == other.resource; }

    Resource resource;
    Pool pool;
    StreamRef stream;
};

/// The same without a stream: what it gives can be used at once, on any.
template <class Resource>
struct Sync : OnStream<Resource> {
    static constexpr const char *name = "StreamResource without a stream";

    using OnStream<Resource>::OnStream;
    void *allocate(std::size_t bytes, std::size_t align = RMM_ALIGNMENT) {
        return this->resource.allocate_sync(bytes, align);
    }
    void deallocate(Block block, std::size_t align = RMM_ALIGNMENT) {
        this->resource.deallocate_sync(block.ptr, block.bytes, align);
    }
};

#endif

// ---- cases -----------------------------------------------------------------------------------------

template <class R>
void one_of(R &resource, std::size_t bytes) {
    try {
        const Block block{resource.allocate(bytes), bytes};
        assert(block.ptr != nullptr && is_aligned(block.ptr, RMM_ALIGNMENT));
        synchronize(resource.pool.context(), resource.stream);
        resource.deallocate(block);
    } catch (const std::bad_alloc &error) {
        // A machine may have less.
        assert(bytes >= GiB && dynamic_cast<const Error &>(error).status() == MILLPOND_STATUS_OUT_OF_MEMORY);
    }
}

template <class R>
void various_sizes(R &resource) {
    resource.deallocate({resource.allocate(0), 0});
    for (const std::size_t bytes : {std::size_t{4}, KiB, MiB, GiB}) one_of(resource, bytes);
    void *ptr = nullptr;
    try {
        ptr = resource.allocate(PiB);
        assert(false);
    } catch (const std::bad_alloc &error) {
        assert(ptr == nullptr && std::strlen(error.what()) > 0);
    }
}

template <class R>
void two_at_once_are_different(R &resource) {
    const Block a{resource.allocate(8), 8}, b{resource.allocate(8), 8};
    assert(a.ptr != b.ptr);
    resource.deallocate(a);
    resource.deallocate(b);
}

template <class R>
void every_alignment(R &resource) {
    for (std::size_t align = 1; align <= 2 * MiB; align *= 2) {
        for (const std::size_t bytes : {std::size_t{1}, align, 3 * align / 2 + 1}) {
            const Block block{resource.allocate(bytes, align), bytes};
            assert(is_aligned(block.ptr, align));
            resource.deallocate(block, align);
        }
    }
}

template <class R>
void random_sizes(R &resource) {
    std::default_random_engine random;
    std::uniform_int_distribution<std::size_t> sizes(1, MOST);
    std::vector<Block> blocks;
    for (std::size_t n = 0; n < ALLOCATIONS; ++n) {
        const std::size_t bytes = sizes(random);
        blocks.push_back({resource.allocate(bytes), bytes});
        assert(blocks.back().ptr != nullptr && is_aligned(blocks.back().ptr, RMM_ALIGNMENT));
    }
    for (const Block &block : blocks) resource.deallocate(block);
}

/// Allocates with 53 % of the steps, as RMM's case does, and frees any of the live blocks with the others.
template <class R>
void random_mix(R &resource) {
    std::default_random_engine random;
    std::uniform_int_distribution<std::size_t> sizes(1, MOST), any(0, ALLOCATIONS - 1);
    std::uniform_int_distribution<int> percent(0, 99);
    std::vector<Block> live;
    std::size_t made = 0;
    for (std::size_t step = 0; step < 2 * ALLOCATIONS; ++step) {
        if (live.empty() || (percent(random) < 53 && made < ALLOCATIONS)) {
            const std::size_t bytes = sizes(random);
            live.push_back({resource.allocate(bytes), bytes});
            assert(live.back().ptr != nullptr && is_aligned(live.back().ptr, RMM_ALIGNMENT));
            ++made;
        } else {
            const std::size_t index = any(random) % live.size();
            resource.deallocate(live[index]);
            live.erase(live.begin() + static_cast<std::ptrdiff_t>(index));
        }
    }
    for (const Block &block : live) resource.deallocate(block);
}

template <class Task>
void on_threads(Task task) {
    std::vector<std::thread> threads;
    for (std::size_t n = 0; n < THREADS; ++n) threads.emplace_back(task);
    for (std::thread &thread : threads) thread.join();
}

/// One thread allocates, another frees, perhaps on another stream, which waits first.
template <class R>
void freed_by_another_thread(const Pool &pool, StreamRef from, StreamRef to) {
    R allocates(pool, from), frees(pool, to);
    std::mutex mutex;
    std::condition_variable there;
    std::deque<Block> blocks;
    std::thread producer([&] {
        std::default_random_engine random;
        std::uniform_int_distribution<std::size_t> sizes(1, MiB);
        for (std::size_t n = 0; n < ALLOCATIONS; ++n) {
            const std::size_t bytes = sizes(random);
            const Block block{allocates.allocate(bytes), bytes};
            const std::lock_guard<std::mutex> lock(mutex);
            blocks.push_back(block);
            there.notify_one();
        }
    });
    std::thread consumer([&] {
        for (std::size_t n = 0; n < ALLOCATIONS; ++n) {
            std::unique_lock<std::mutex> lock(mutex);
            there.wait(lock, [&] { return !blocks.empty(); });
            const Block block = blocks.front();
            blocks.pop_front();
            wait_for(pool.context(), to, from);
            frees.deallocate(block);
        }
    });
    producer.join();
    consumer.join();
}

/// All cases of one kind of resource on one stream.
template <class R>
void all_cases(const Pool &pool, StreamRef stream) {
    R resource(pool, stream);
    assert(resource == resource && resource == R(pool, stream));
    two_at_once_are_different(resource);
    various_sizes(resource);
    every_alignment(resource);
    random_sizes(resource);
    random_mix(resource);
    on_threads([&] { various_sizes(resource); });
    on_threads([&] { random_sizes(resource); });
    on_threads([&] { random_mix(resource); });
    freed_by_another_thread<R>(pool, stream, stream);
    const Stream other(pool.context());
    freed_by_another_thread<R>(pool, stream, static_cast<CUstream_st *>(other.raw()));
    pool.context().synchronize();
}

template <class R>
void on_every_stream(const Context &device) {
    const Pool pool(device);
    const Stream own(device);
    auto *const per_thread = reinterpret_cast<CUstream_st *>(2);
    all_cases<R>(pool, nullptr);
    all_cases<R>(pool, static_cast<CUstream_st *>(own.raw()));
    on_threads([&] {
        R resource(pool, per_thread);
        various_sizes(resource);
        random_mix(resource);
    });
    assert(pool.stats().requested.current == 0 && pool.stats().blocks.current == 0);
    std::cout << R::name << ": as RMM asks\n";
}

/// What spills on std::bad_alloc, spills here.
template <class R>
void spills_when_memory_runs_out(const Context &device) {
    PoolOptions options;
    options.hard_limit = 64 * MiB;
    const Pool pool(device, options);
    R resource(pool, nullptr);
    const Block held{resource.allocate(40 * MiB), 40 * MiB};
    int asked = 0;
    const auto allocate = [&] {
        for (;;) {
            try {
                return resource.allocate(40 * MiB);
            } catch (const std::bad_alloc &) {
                assert(asked++ == 0);
                resource.deallocate(held);
            }
        }
    };
    resource.deallocate({allocate(), 40 * MiB});
    assert(asked == 1);
}

#ifdef EXPECT_RMM

void rmms_adaptors_stand_on_it(const Context &device) {
    PoolOptions options;
    options.hard_limit = 64 * MiB;
    const Pool pool(device, options);
    const cudaStream_t stream{nullptr};
    RmmResource resource(pool);
    void *const held = resource.allocate(::cuda::stream_ref(stream), 40 * MiB);
    int asked = 0;
    const auto spill = [&](std::size_t bytes, void *) {
        assert(bytes == 40 * MiB);
        resource.deallocate(::cuda::stream_ref(stream), held, 40 * MiB);
        return ++asked == 1;
    };
    rmm::mr::failure_callback_resource_adaptor<> retries(resource, spill, nullptr);
    rmm::mr::statistics_resource_adaptor counts(retries);
    void *const found = counts.allocate(::cuda::stream_ref(stream), 40 * MiB, RMM_ALIGNMENT);
    assert(asked == 1 && counts.get_bytes_counter().value == static_cast<std::int64_t>(40 * MiB));
    counts.deallocate(::cuda::stream_ref(stream), found, 40 * MiB, RMM_ALIGNMENT);
    assert(pool.stats().requested.current == 0);
    std::cout << "RmmResource: under RMM's adaptors\n";
}

#endif

Context open() {
    const char *said = std::getenv("MILLPOND_DEVICE");
    return said != nullptr && std::strcmp(said, "cuda") == 0 ? Context::cuda(0) : Context::host();
}

} // namespace

int main() {
    const Context device = open();
    on_every_stream<Pmr>(device);
    spills_when_memory_runs_out<Pmr>(device);
#ifdef MILLPOND_HAS_CCCL
    on_every_stream<OnStream<StreamResource>>(device);
    on_every_stream<Sync<StreamResource>>(device);
    spills_when_memory_runs_out<OnStream<StreamResource>>(device);
#ifdef EXPECT_RMM
    on_every_stream<OnStream<RmmResource>>(device);
    rmms_adaptors_stand_on_it(device);
#endif
#elif defined(EXPECT_CCCL)
#error "CCCL was not found"
#endif
    return 0;
}
