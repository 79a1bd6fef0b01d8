// Buffers free themselves in stream order; failures are exceptions. On a GPU, or the CPU as a device.
//
//   c++ -std=c++17 buffers.cpp $(pkg-config --cflags --libs millpond) -o buffers && ./buffers
#include <millpond.hpp>

#include <cassert>
#include <iostream>
#include <vector>

static millpond::Context open_device() {
    try {
        return millpond::Context::cuda(0);
    } catch (const millpond::Error &) {
        return millpond::Context::host(); // no GPU
    }
}

int main() {
    const millpond::Context device = open_device();
    const millpond::Pool pool(device);
    const millpond::Stream stream(device); // or (device, a cudaStream_t)

    const std::vector<float> ones(1 << 20, 1.0F);
    float *before = nullptr;
    {
        millpond::Buffer<float> inputs(pool, ones.size(), stream);
        inputs.copy_from_host(ones.data(), ones.size()); // in stream order; C++20: copy_from_host(ones)
        before = inputs.data();
        assert(inputs.to_vector() == ones);
    } // freed after the work given to the stream; the host does not wait

    const millpond::Buffer<float> outputs(pool, ones.size(), stream); // the same memory, without a device call
    std::cout << (outputs.data() == before ? "the same memory" : "other memory") << ", "
              << pool.stats().reserved.current / (1 << 20) << " MiB held\n";

    try {
        (void)pool.allocate(std::size_t{1} << 50, stream);
    } catch (const millpond::OutOfMemory &error) {
        std::cout << error.what() << '\n';
    }
}
