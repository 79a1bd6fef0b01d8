// Reports name the program's own function, whatever library allocates for it.
#include <cuda_mempool.hpp>
#include <millpond.hpp>

#undef NDEBUG // the assertions are the test
#include <cassert>
#include <cstdio>
#include <memory>
#include <memory_resource>
#include <string>
#include <vector>

namespace nn {

template <class T>
struct Layer {
    millpond::Buffer<T> weights;

    __attribute__((noinline)) Layer(const millpond::Pool &pool, std::size_t count) : weights(pool, count) {}
};

struct Net {
    std::vector<std::unique_ptr<Layer<float>>> layers;

    __attribute__((noinline)) void grow(const millpond::Pool &pool, std::size_t count) {
        layers.push_back(std::make_unique<Layer<float>>(pool, count));
    }
};

} // namespace nn

__attribute__((noinline)) static void fill(std::pmr::vector<char> &bytes) { bytes.resize(1000); }

__attribute__((noinline)) static void *plain(const millpond::Pool &pool) { return pool.allocate(1000); }

/// Writes behind a block, frees it, and answers what the guard says of it.
template <class Free>
static std::string overrun(const millpond::Pool &pool, void *block, std::size_t bytes, Free free) {
    pool.context().synchronize();
    static_cast<volatile char *>(block)[bytes] = 7;
    free();
    pool.context().synchronize();
    return pool.guard_findings().back();
}

/// The line of the call stack that comes first.
static std::string site(const std::string &finding) {
    const std::size_t line = finding.find("\n    ") + 5;
    return finding.substr(line, finding.find('\n', line) - line);
}

static void is(const std::string &finding, const std::string &function) {
    if (site(finding).compare(0, function.size() + 2, function + " (") == 0) return;
    std::fprintf(stderr, "not %s:\n%s\n", function.c_str(), finding.c_str());
    assert(false);
}

int main() {
    const millpond::Context device = millpond::Context::host();
    millpond::PoolOptions options;
    options.guard = "all,count";
    const millpond::Pool pool(device, options);

    nn::Net net;
    net.grow(pool, 100);
    is(overrun(pool, net.layers[0]->weights.data(), 400, [&] { net.layers.clear(); }), "nn::Layer<float>::Layer");

    millpond::MemoryResource resource(pool);
    {
        std::pmr::vector<char> bytes(&resource);
        fill(bytes);
        is(overrun(pool, bytes.data(), 1000, [&] { std::pmr::vector<char>(&resource).swap(bytes); }), "fill");
    }
    void *block = plain(pool);
    is(overrun(pool, block, 1000, [&] { pool.deallocate(block); }), "plain");
}
