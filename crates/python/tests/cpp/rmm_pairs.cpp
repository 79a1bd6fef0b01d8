// What a pair of allocation and free costs through RMM's resource of a device, as RMM's C++ calls it. Loaded by rmm_pairs.py.
#include <rmm/mr/per_device_resource.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <vector>

// The median of several rounds, in nanoseconds a pair; negative where the resource threw.
extern "C" double rmm_pair_ns(int device, void* stream, std::size_t bytes, int pairs) {
  try {
    auto resource = rmm::mr::get_per_device_resource_ref(rmm::cuda_device_id{device});
    const cuda::stream_ref on(static_cast<cudaStream_t>(stream));
    std::vector<double> rounds;
    for (int round = 0; round < 9; ++round) {
      const auto began = std::chrono::steady_clock::now();
      for (int pair = 0; pair < pairs; ++pair) {
        void* found = resource.allocate(on, bytes, rmm::CUDA_ALLOCATION_ALIGNMENT);
        resource.deallocate(on, found, bytes, rmm::CUDA_ALLOCATION_ALIGNMENT);
      }
      const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - began;
      rounds.push_back(took.count() / pairs);
    }
    std::sort(rounds.begin(), rounds.end());
    return rounds[rounds.size() / 2];
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rmm_pairs: %s\n", error.what());
    return -1;
  }
}
