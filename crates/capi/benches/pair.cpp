// What an allocate and free pair costs from C++, by what it is written with, beside C: the median of many rounds, of 4 KiB.
//
//   scripts/bench-c [cuda|host|sim]
#include <cuda_mempool.hpp>
#include <millpond.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

namespace {

constexpr std::size_t rounds = 201, pairs = 2000, bytes = 4096;

template <class Pair>
double median(Pair pair) {
    using clock = std::chrono::steady_clock;
    std::vector<double> found;
    for (std::size_t round = 0; round < rounds; ++round) {
        const clock::time_point start = clock::now();
        for (std::size_t at = 0; at < pairs; ++at) pair();
        found.push_back(std::chrono::duration<double, std::nano>(clock::now() - start).count() / pairs);
    }
    std::nth_element(found.begin(), found.begin() + rounds / 2, found.end());
    return found[rounds / 2];
}

template <class Pair>
void measure(const char *what, Pair pair) {
    const double alone = median(pair);
    double beside = 0;
    std::thread other([&] { median(pair); });
    beside = median(pair);
    other.join();
    std::printf("%-32s %14.1f %14.1f\n", what, alone, beside);
}

/// So that an owner is made.
template <class T>
void use(T &owner) {
    asm volatile("" : : "r"(&owner) : "memory");
}

} // namespace

int main(int argc, char **argv) {
    const char *const device = argc > 1 ? argv[1] : "cuda";
    setenv("MILLPOND_DEVICE", device, 1);
    const millpond::Context context = std::strcmp(device, "host") == 0  ? millpond::Context::host()
                                      : std::strcmp(device, "sim") == 0 ? millpond::Context::sim()
                                                                        : millpond::Context::cuda();
    const millpond::Pool pool(context);
    const millpond::Stream stream(context);
    mempool::CudaMemPool simple;
    const millpond::Stream own(simple.pool().context());
    const auto raw = static_cast<cudaStream_t>(own.raw());
    millpond::MemoryResource resource(pool, stream);
    std::printf("\n%-32s %14s %14s\n", "from C++", "ns a pair, p50", "on 2 threads");
    measure("millpond_alloc, millpond_free", [&] {
        void *block;
        millpond_alloc(pool.get(), bytes, stream.get(), &block);
        millpond_free(pool.get(), block, stream.get());
    });
    measure("Pool::allocate, deallocate", [&] { pool.deallocate(pool.allocate(bytes, stream), stream); });
    measure("Buffer", [&] {
        millpond::Buffer<char> buffer(pool, bytes, stream);
        use(buffer);
    });
    measure("MemoryResource", [&] { resource.deallocate(resource.allocate(bytes), bytes); });
    measure("CudaMemPool, default stream", [&] { simple.deallocate(simple.allocate(bytes)); });
    measure("CudaMemPool, allocate_async", [&] { simple.deallocate_async(simple.allocate_async(bytes, raw), raw); });
    measure("CudaMemPool, a stream", [&] { simple.deallocate(simple.allocate(bytes, raw)); });
    return 0;
}
