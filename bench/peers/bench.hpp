// The workloads that every allocator runs, so that one run compares them on the same work.
//
// An allocator has alloc(bytes, thread) -> void*, free(ptr, bytes, thread) and thread_init(). Each thread uses a stream
// of its own. Each figure is a line: the allocator's name, what was measured, the unit, the figure, with tabs between.
#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace bench {

using Clock = std::chrono::steady_clock;

constexpr size_t KiB = 1024, MiB = 1024 * KiB;

inline double ns_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double, std::nano>(to - from).count();
}

inline void figure(const char* name, const std::string& what, const char* unit, double value) {
  printf("%s\t%s\t%s\t%.3f\n", name, what.c_str(), unit, value);
}

inline std::string human(size_t bytes) {
  if (bytes < KiB) return std::to_string(bytes) + " B";
  if (bytes < MiB) return std::to_string(bytes / KiB) + " KiB";
  return std::to_string(bytes / MiB) + " MiB";
}

// The value at a share of the samples, which get sorted.
inline double percentile(std::vector<double>& samples, double share) {
  std::sort(samples.begin(), samples.end());
  return samples[std::min(samples.size() - 1, size_t(samples.size() * share))];
}

// What reading the clock costs, which is taken off each sample of a single call.
inline double clock_cost() {
  std::vector<double> costs;
  for (int i = 0; i < 10001; i++) {
    auto from = Clock::now();
    costs.push_back(ns_between(from, Clock::now()));
  }
  return percentile(costs, 0.5);
}

template <class A>
void pairs(const char* name, A& a, size_t bytes, int samples, int each) {
  auto some = [&](int count) {
    for (int i = 0; i < count; i++) a.free(a.alloc(bytes, 0), bytes, 0);
  };
  some(50);
  std::vector<double> ns;
  for (int s = 0; s < samples; s++) {
    auto from = Clock::now();
    some(each);
    ns.push_back(ns_between(from, Clock::now()) / each);
  }
  figure(name, "pair, " + human(bytes) + ", p50", "ns", percentile(ns, 0.5));
  figure(name, "pair, " + human(bytes) + ", p99", "ns", percentile(ns, 0.99));
}

template <class A>
void alone(const char* name, A& a, size_t bytes, int samples) {
  const double cost = clock_cost();
  for (int i = 0; i < 100; i++) a.free(a.alloc(bytes, 0), bytes, 0);
  std::vector<double> ns;
  for (int s = 0; s < samples; s++) {
    auto from = Clock::now();
    void* block = a.alloc(bytes, 0);
    auto to = Clock::now();
    a.free(block, bytes, 0);
    ns.push_back(std::max(0.0, ns_between(from, to) - cost));
  }
  for (auto [share, called] : {std::pair{0.5, "p50"}, {0.99, "p99"}, {0.999, "p99.9"}})
    figure(name, "allocate alone, " + human(bytes) + ", " + called, "ns", percentile(ns, share));
}

template <class A>
void churn(const char* name, A& a, int live, long steps, size_t least, size_t most) {
  std::mt19937_64 random(42);
  std::uniform_real_distribution<double> size(std::log(double(least)), std::log(double(most)));
  std::vector<std::pair<void*, size_t>> blocks(live);
  for (auto& [block, bytes] : blocks) {
    bytes = size_t(std::exp(size(random)));
    block = a.alloc(bytes, 0);
  }
  std::vector<std::pair<int, size_t>> sequence(steps);
  for (auto& [which, bytes] : sequence) {
    which = int(random() % live);
    bytes = size_t(std::exp(size(random)));
  }
  auto run = [&] {
    for (auto& [which, bytes] : sequence) {
      auto& [block, old_bytes] = blocks[which];
      a.free(block, old_bytes, 0);
      old_bytes = bytes;
      block = a.alloc(bytes, 0);
    }
  };
  run();  // Once to meet the sizes.
  auto from = Clock::now();
  run();
  double ns = ns_between(from, Clock::now()) / double(steps);
  figure(name, "churn, " + std::to_string(live) + " live, " + human(least) + " to " + human(most), "ns", ns);
  for (auto& [block, bytes] : blocks) a.free(block, bytes, 0);
}

// Pairs at once on several threads; the rate is by the thread that took longest.
template <class A>
void threads(const char* name, A& a, int count, long each, bool mixed) {
  static constexpr size_t sizes[5] = {64 * KiB, 256 * KiB, MiB, 4 * MiB, 16 * MiB};
  std::atomic<int> ready{0};
  std::vector<std::thread> running;
  std::vector<double> elapsed(count);
  for (int k = 0; k < count; k++)
    running.emplace_back([&, k] {
      a.thread_init();
      std::mt19937 random(k);
      auto some = [&](long pairs) {
        for (long i = 0; i < pairs; i++) {
          size_t bytes = mixed ? sizes[random() % 5] : MiB;
          a.free(a.alloc(bytes, k), bytes, k);
        }
      };
      some(100);
      ready++;
      while (ready < count) std::this_thread::yield();
      auto from = Clock::now();
      some(each);
      elapsed[k] = ns_between(from, Clock::now());
    });
  for (auto& thread : running) thread.join();
  double longest = *std::max_element(elapsed.begin(), elapsed.end());
  auto what = std::to_string(count) + (count == 1 ? " thread, " : " threads, ") + (mixed ? "mixed" : "1 MiB");
  figure(name, what, "M pairs/s", double(count) * double(each) / longest * 1e3);
}

// Half of the threads allocate, the others free what those allocated, on the same stream.
template <class A>
void hand_over(const char* name, A& a, int couples, long each) {
  constexpr size_t room = 256;
  struct alignas(128) Ring {
    void* blocks[room];
    alignas(128) std::atomic<size_t> given{0};
    alignas(128) std::atomic<size_t> taken{0};
  };
  std::vector<Ring> rings(couples);
  std::atomic<int> ready{0};
  std::vector<std::thread> running;
  Clock::time_point from;
  auto wait_for_all = [&] {
    a.thread_init();
    if (++ready == 2 * couples) {
      from = Clock::now();
      ready++;  // Now all may go.
    }
    while (ready <= 2 * couples) std::this_thread::yield();
  };
  for (int k = 0; k < couples; k++) {
    running.emplace_back([&, k] {
      auto& ring = rings[k];
      wait_for_all();
      for (size_t i = 0; i < size_t(each); i++) {
        void* block = a.alloc(MiB, k);
        while (i - ring.taken.load(std::memory_order_acquire) == room) std::this_thread::yield();
        ring.blocks[i % room] = block;
        ring.given.store(i + 1, std::memory_order_release);
      }
    });
    running.emplace_back([&, k] {
      auto& ring = rings[k];
      wait_for_all();
      for (size_t i = 0; i < size_t(each); i++) {
        while (ring.given.load(std::memory_order_acquire) == i) std::this_thread::yield();
        void* block = ring.blocks[i % room];
        ring.taken.store(i + 1, std::memory_order_release);
        a.free(block, MiB, k);
      }
    });
  }
  for (auto& thread : running) thread.join();
  double elapsed = ns_between(from, Clock::now());
  auto count = std::to_string(couples);
  figure(name, count + " allocate, " + count + " free, 1 MiB", "M pairs/s", double(couples) * double(each) / elapsed * 1e3);
}

// All of it. Where a pair waits for the device, fewer of them, and none of what needs many.
template <class A>
void all(const char* name, A& a, bool slow = false) {
  for (size_t bytes : {size_t(512), 64 * KiB, MiB, 16 * MiB, 64 * MiB})
    pairs(name, a, bytes, slow ? 60 : 2000, slow ? 5 : 50);
  alone(name, a, MiB, slow ? 1000 : 20000);
  if (!slow) {
    churn(name, a, 1000, 200000, 512, 64 * KiB);
    churn(name, a, 1000, 200000, 512, 4 * MiB);
    churn(name, a, 300, 50000, MiB, 64 * MiB);
  }
  for (int count : {1, 4, 16})
    for (bool mixed : {false, true}) threads(name, a, count, slow ? 100 : 20000, mixed);
  if (!slow) hand_over(name, a, 8, 20000);
  fflush(stdout);
}

}  // namespace bench
