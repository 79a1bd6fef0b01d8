// A program written against a simple pool with power-of-two bins, unchanged but for the header it includes.
//
//   c++ -std=c++17 mempool.cpp $(pkg-config --cflags --libs millpond) -o mempool && MILLPOND_DEVICE=host ./mempool
#include <cuda_mempool.hpp>

#include <iostream>

int main() {
    mempool::PoolConfig config;
    config.max_pool_size = std::size_t{256} << 20;
    mempool::CudaMemPool pool(config);

    for (int step = 0; step < 1000; ++step) {
        mempool::PoolPtr<float> activations(pool, 1 << 20);
        mempool::PoolPtr<float> gradients(pool, 1 << 20);
    }
    std::cout << pool.num_allocations() << " allocations, " << pool.peak_allocated() / (1 << 20)
              << " MiB held from the device\n";

    try {
        pool.allocate(std::size_t{1} << 30);
    } catch (const mempool::CudaError &error) {
        std::cout << error.what() << '\n';
    }
    pool.trim();
    std::cout << pool.total_allocated() << " bytes held after trim\n";
}
