// What a pair of allocation and free costs, in nanoseconds: the median of 21 rounds. By the runtime's functions, which nvcc
// links statically, and by the driver's own.

#include "check.h"

#include <algorithm>
#include <chrono>
#include <cuda.h>
#include <vector>

template <class Pair> double median(int turns, Pair pair) {
    std::vector<double> rounds;
    for (int warm = 0; warm < 100; warm++) pair();
    for (int round = 0; round < 21; round++) {
        const auto begin = std::chrono::steady_clock::now();
        for (int turn = 0; turn < turns; turn++) pair();
        const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
        rounds.push_back(took.count() / turns);
    }
    std::sort(rounds.begin(), rounds.end());
    return rounds[rounds.size() / 2];
}

int main() {
    cudaStream_t stream;
    cudaMemPool_t pool;
    unsigned long long keep = ~0ull;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaDeviceGetDefaultMemPool(&pool, 0));
    OK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep));
    std::printf("%11s %16s %16s %16s %12s\n", "bytes", "cudaMallocAsync", "on stream 0", "cuMemAllocAsync", "cudaMalloc");
    for (const size_t bytes : {size_t(512), size_t(64) << 10, size_t(1) << 20, size_t(64) << 20}) {
        void *at;
        CUdeviceptr address;
        const double async = median(2000, [&] {
            OK(cudaMallocAsync(&at, bytes, stream));
            OK(cudaFreeAsync(at, stream));
        });
        const double on_default = median(2000, [&] {
            OK(cudaMallocAsync(&at, bytes, 0));
            OK(cudaFreeAsync(at, 0));
        });
        const double driver = median(2000, [&] {
            CHECK(!cuMemAllocAsync(&address, bytes, stream));
            CHECK(!cuMemFreeAsync(address, stream));
        });
        const double plain = median(20, [&] {
            OK(cudaMalloc(&at, bytes));
            OK(cudaFree(at));
        });
        std::printf("%11zu %16.1f %16.1f %16.1f %12.0f\n", bytes, async, on_default, driver, plain);
    }
}
