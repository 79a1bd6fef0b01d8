// Whatever a type asks its addresses to be, every owner and every allocator gives.
#include <cuda_mempool.hpp>
#include <millpond.hpp>

#undef NDEBUG // the assertions are the test
#include <cassert>
#include <cstdint>
#include <vector>

using namespace millpond;

template <std::size_t align>
struct alignas(align) Wide {
    char bytes[align];
};

template <class T>
static bool is_aligned(const T *ptr) {
    return reinterpret_cast<std::uintptr_t>(ptr) % alignof(T) == 0;
}

/// Blocks before each, so that the next address would be any multiple of the pool's own alignment.
template <class T>
static void all_are_aligned(const Context &device) {
    PoolOptions options;
    options.min_alignment = 256;
    const Pool pool(device, options);
    const Stream stream(device);
    const Workspace workspace(pool, std::size_t{64} << 20, stream);
    mempool::PoolConfig config;
    config.min_block_size = 256;
    mempool::CudaMemPool simple(config);
    std::vector<Buffer<T>> buffers;
    std::vector<mempool::PoolPtr<T>> pointers;
    std::vector<void *> between;
    for (int round = 0; round < 20; ++round) {
        between.push_back(pool.allocate(200, stream));
        buffers.emplace_back(pool, 1, stream);
        assert(is_aligned(buffers.back().data()));
        T *const array = pool.allocate_array<T>(2, stream);
        assert(is_aligned(array));
        between.push_back(array);
        (void)workspace.allocate(100);
        assert(is_aligned(workspace.allocate_array<T>(1)));
        pointers.emplace_back(simple, 1);
        assert(is_aligned(pointers.back().get()));
        simple.deallocate(simple.allocate(200));
    }
    for (void *ptr : between) pool.deallocate(ptr, stream);
}

int main() {
    const Context device = Context::host();
    all_are_aligned<char>(device);
    all_are_aligned<Wide<256>>(device);
    all_are_aligned<Wide<512>>(device);
    all_are_aligned<Wide<1024>>(device);
    all_are_aligned<Wide<4096>>(device);
    all_are_aligned<Wide<65536>>(device);
    const Pool pool(device);
    try {
        (void)pool.allocate_array<Wide<1024>>(static_cast<std::size_t>(-1) / 512);
        assert(false);
    } catch (const SizeOverflow &error) {
        assert(error.status() == MILLPOND_STATUS_SIZE_OVERFLOW);
    }
    const Workspace workspace(pool, 4096);
    try {
        (void)workspace.allocate_aligned(1, 3);
        assert(false);
    } catch (const Error &error) {
        assert(error.status() == MILLPOND_STATUS_BAD_ALIGNMENT);
    }
}
