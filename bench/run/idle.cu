// A server between two requests: weights that stay, and passes that take much memory for a while. Prints what each pass took, and what
// the GPU's memory holds while the program does nothing, as nvidia-smi says it.
//
//   idle async|sync [GIB]    by cudaMallocAsync, or by cudaMalloc; 12 GiB a pass by default

#include "check.h"

#include <chrono>
#include <cstdio>
#include <string>
#include <unistd.h>
#include <vector>

static bool async;

static void *allocated(size_t bytes) {
    void *at;
    OK(async ? cudaMallocAsync(&at, bytes, 0) : cudaMalloc(&at, bytes));
    OK(cudaMemsetAsync(at, 1, bytes, 0));
    return at;
}

static void freed(void *at) {
    OK(async ? cudaFreeAsync(at, 0) : cudaFree(at));
}

static long held_mib() {
    FILE *said = popen("nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits -i 0", "r");
    long mib = -1;
    CHECK(said && fscanf(said, "%ld", &mib) == 1);
    pclose(said);
    return mib;
}

int main(int count, char **arguments) {
    CHECK(count > 1);
    async = arguments[1] == std::string("async");
    const size_t most = size_t(count > 2 ? std::atoi(arguments[2]) : 12) << 30;
    OK(cudaFree(0));
    const long before = held_mib();
    std::vector<void *> weights;
    for (int layer = 0; layer < 28; layer++) weights.push_back(allocated(size_t(25) << 20));
    for (int pass = 0; pass < 4; pass++) {
        const auto began = std::chrono::steady_clock::now();
        unsigned random = 1;
        for (int step = 0; step < 8; step++) {
            std::vector<void *> live;
            for (size_t sum = 0; sum < most;) {
                random = random * 1664525 + 1013904223;
                const size_t bytes = (size_t(random >> 8) % (96 << 20)) + 512;
                live.push_back(allocated(bytes));
                sum += bytes;
            }
            for (void *at : live) freed(at);
        }
        OK(cudaDeviceSynchronize());
        const double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - began).count();
        const long at_once = held_mib() - before;
        sleep(3);
        std::printf("idle %s: pass %d took %.1f ms, %ld MiB held behind it, %ld MiB three seconds later\n", arguments[1], pass, ms,
                    at_once, held_mib() - before);
    }
    for (void *at : weights) freed(at);
    OK(cudaDeviceSynchronize());
    return 0;
}
