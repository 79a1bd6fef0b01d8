// A job with memory of changing sizes on four streams. Kernels fill each block and read it back; the sum is the result.
//
//   job async|sync [STEPS]    by cudaMallocAsync, or by cudaMalloc

#include "check.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

__global__ void fill(unsigned *at, size_t count, unsigned seed) {
    const size_t step = size_t(gridDim.x) * blockDim.x;
    for (size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
        at[i] = seed * 2654435761u + unsigned(i);
    }
}

__global__ void add_up(const unsigned *at, size_t count, unsigned long long *to) {
    const size_t step = size_t(gridDim.x) * blockDim.x;
    unsigned long long sum = 0;
    for (size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) sum += at[i];
    atomicAdd(to, sum);
}

struct Block {
    unsigned *at;
    size_t count;
    cudaStream_t stream;
};

int main(int count, char **arguments) {
    CHECK(count > 1);
    const bool async = arguments[1] == std::string("async");
    const int steps = count > 2 ? std::atoi(arguments[2]) : 4000;
    size_t before, left, total;
    OK(cudaFree(0));
    OK(cudaMemGetInfo(&before, &total));
    size_t least = before, live_bytes = 0, most = 0;
    cudaStream_t streams[4];
    for (auto &stream : streams) OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    unsigned long long *result;
    OK(cudaMallocManaged(&result, sizeof *result));
    *result = 0;
    std::vector<Block> live;
    unsigned state = 12345;
    const auto random = [&] { return state = state * 1664525u + 1013904223u; };
    const auto end = [&](const Block &block) {
        add_up<<<256, 256, 0, block.stream>>>(block.at, block.count, result);
        OK(async ? cudaFreeAsync(block.at, block.stream) : cudaFree(block.at));
        live_bytes -= block.count * 4;
    };
    const auto begin = std::chrono::steady_clock::now();
    for (int step = 0; step < steps; step++) {
        if (live.size() < 8 || random() >> 31 == 0) {
            // 1 KiB to 128 MiB.
            const size_t bytes = 1024 + (size_t(random() >> 8) << (random() >> 30));
            Block block{nullptr, bytes / 4, streams[random() >> 30]};
            void **to = reinterpret_cast<void **>(&block.at);
            OK(async ? cudaMallocAsync(to, block.count * 4, block.stream) : cudaMalloc(to, block.count * 4));
            fill<<<256, 256, 0, block.stream>>>(block.at, block.count, step);
            live.push_back(block);
            most = std::max(most, live_bytes += block.count * 4);
        } else {
            std::swap(live[random() % live.size()], live.back());
            end(live.back());
            live.pop_back();
        }
        if (live.size() > 64) {
            std::for_each(live.begin(), live.end(), end);
            live.clear();
        }
        if (step % 64 == 0) {
            OK(cudaMemGetInfo(&left, &total));
            least = std::min(least, left);
        }
    }
    std::for_each(live.begin(), live.end(), end);
    OK(cudaDeviceSynchronize());
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    cudaMemPool_t pool;
    unsigned long long reserved = 0;
    OK(cudaDeviceGetDefaultMemPool(&pool, 0));
    OK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemHigh, &reserved));
    const auto mib = [](size_t bytes) { return bytes / 1048576.0; };
    std::printf("%s: result %llu, %.0f ms, requested %.0f MiB, free memory fell by %.0f MiB, pools reserved %.0f MiB\n",
                arguments[1], *result, took.count(), mib(most), mib(before - least), mib(reserved));
    for (auto &stream : streams) OK(cudaStreamDestroy(stream));
    OK(cudaFree(result));
}
