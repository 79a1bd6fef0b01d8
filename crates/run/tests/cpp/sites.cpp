// Asks the driver for memory through containers and libraries. Reports name the program's own functions.

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <vector>

extern "C" {
#include "../c/cuda.h"
}

// As these libraries name theirs.
namespace rmm {

struct device_buffer {
    CUdeviceptr at = 0;

    __attribute__((noinline)) explicit device_buffer(std::size_t bytes) {
        if (cuMemAlloc_v2(&at, bytes)) std::abort();
    }
};

} // namespace rmm

namespace thrust {

template <class T>
struct device_vector {
    rmm::device_buffer memory;

    __attribute__((noinline)) explicit device_vector(std::size_t count) : memory(count * sizeof(T)) {}
};

} // namespace thrust

namespace mempool {

template <class T>
struct Allocator {
    using value_type = T;

    __attribute__((noinline)) T *allocate(std::size_t count) {
        return reinterpret_cast<T *>(rmm::device_buffer(count * sizeof(T)).at);
    }
    void deallocate(T *, std::size_t) {}
};

} // namespace mempool

namespace nn {

template <class T>
struct Layer {
    thrust::device_vector<T> weights;

    __attribute__((noinline)) explicit Layer(std::size_t count) : weights(count) {}
};

struct Net {
    std::vector<std::unique_ptr<Layer<float>>> layers;

    __attribute__((noinline)) void grow(std::size_t count) {
        layers.push_back(std::make_unique<Layer<float>>(count));
    }
};

} // namespace nn

__attribute__((noinline)) static void fill(std::vector<char, mempool::Allocator<char>> &bytes) {
    bytes.resize(std::size_t(2) << 20);
}

__attribute__((noinline)) static CUdeviceptr plain(std::size_t bytes) {
    CUdeviceptr at = 0;
    if (cuMemAlloc_v2(&at, bytes)) std::abort();
    return at;
}

int main() {
    CUcontext context;
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) return 1;
    nn::Net net;
    net.grow(std::size_t(1) << 20);
    std::vector<char, mempool::Allocator<char>> bytes;
    fill(bytes);
    return plain(std::size_t(1) << 20) == 0;
}
