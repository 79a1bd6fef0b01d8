// Pairs of allocate and free, by what they are written with: the test counts instructions of many and of few.
#include <cuda_mempool.hpp>
#include <millpond.hpp>

#undef NDEBUG // the assertions are the test
#include <cassert>
#include <cstdlib>
#include <string>

using namespace millpond;

constexpr std::size_t BYTES = 4096;

/// So that an owner is made.
template <class T>
static void use(T &owner) {
    asm volatile("" : : "r"(&owner) : "memory");
}

template <class Pair>
static void repeat(long count, Pair pair) {
    for (long at = 0; at < count; ++at) pair();
}

int main(int argc, char **argv) {
    const std::string what = argc > 1 ? argv[1] : "c";
    const long count = argc > 2 ? std::atol(argv[2]) : 100;
    const Context context = Context::sim();
    const Pool pool(context);
    const Stream stream(context);
    MemoryResource resource(pool, stream);
    mempool::CudaMemPool simple;
    const Stream own(simple.pool().context());
    const auto raw = static_cast<cudaStream_t>(own.raw());
    if (what == "c") {
        repeat(count, [&] {
            void *block;
            assert(millpond_alloc(pool.get(), BYTES, stream.get(), &block) == MILLPOND_STATUS_OK);
            assert(millpond_free(pool.get(), block, stream.get()) == MILLPOND_STATUS_OK);
        });
    } else if (what == "pool") {
        repeat(count, [&] { pool.deallocate(pool.allocate(BYTES, stream), stream); });
    } else if (what == "buffer") {
        repeat(count, [&] {
            Buffer<char> buffer(pool, BYTES, stream);
            use(buffer);
        });
    } else if (what == "resource") {
        repeat(count, [&] { resource.deallocate(resource.allocate(BYTES), BYTES); });
    } else if (what == "simple") {
        repeat(count, [&] { simple.deallocate(simple.allocate(BYTES)); });
    } else if (what == "async") {
        repeat(count, [&] { simple.deallocate_async(simple.allocate_async(BYTES, raw), raw); });
    } else {
        assert(!"a kind of pair");
    }
}
