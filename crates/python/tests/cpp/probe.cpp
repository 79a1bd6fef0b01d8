// Calls the hooks as PyTorch does.
#include "c10.hpp"

#include <cstdio>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

using PoolId = std::pair<unsigned long long, unsigned long long>;
using Filter = std::function<bool(void*)>;

namespace {

// Seen to be destroyed when an exception passes.
struct Guard {
    int& count;
    ~Guard() { ++count; }
};

struct Counted {
    static inline int alive = 0;
    Counted() { ++alive; }
    Counted(const Counted&) { ++alive; }
    ~Counted() { --alive; }
};

}  // namespace

// 1: OutOfMemoryError, 2: Error, 3: another exception, 0: none; its message goes to `message`.
extern "C" int call_alloc(void* address, size_t bytes, int device, char* message, size_t room) {
    std::function<void*(size_t, int, void*)> alloc = reinterpret_cast<void* (*)(size_t, int, void*)>(address);
    int destroyed = 0;
    try {
        Guard guard{destroyed};
        alloc(bytes, device, nullptr);
    } catch (const c10::OutOfMemoryError& error) {
        std::snprintf(message, room, "%s", error.what());
        return destroyed == 1 ? 1 : 4;
    } catch (const c10::Error& error) {
        std::snprintf(message, room, "%s", error.what());
        return 2;
    } catch (...) {
        return 3;
    }
    return 0;
}

// Captures with a filter that takes `stream` only, allocates twice, ends, and releases. What was allocated goes to
// `inside` (on the stream) and `outside`. Returns the filters that are still alive, which should be none.
extern "C" int call_capture(void* const* hooks, int device, void* stream, void** inside, void** outside) {
    auto begin = reinterpret_cast<void (*)(int, PoolId, Filter)>(hooks[0]);
    auto end = reinterpret_cast<void (*)(int, PoolId)>(hooks[1]);
    auto release = reinterpret_cast<void (*)(int, PoolId)>(hooks[2]);
    auto alloc = reinterpret_cast<void* (*)(size_t, int, void*)>(hooks[3]);
    auto free = reinterpret_cast<void (*)(void*, size_t, int, void*)>(hooks[4]);
    const PoolId id{7, 1};
    const size_t bytes = 1 << 20;
    {
        // Larger than a std::function holds in itself.
        auto large = std::make_shared<long>(0);
        Counted counted;
        begin(device, id, [stream, large, counted, words = std::string(100, 'x')](void* other) {
            ++*large;
            return other == stream;
        });
    }
    *inside = alloc(bytes, device, stream);
    *outside = alloc(bytes, device, nullptr);
    free(*inside, bytes, device, stream);
    // Of the capture's memory, and the same block again.
    void* again = alloc(bytes, device, stream);
    if (again != *inside) return 100;
    free(again, bytes, device, stream);
    end(device, id);
    const int alive = Counted::alive;
    // A second capture that shares the pool, with a filter that fits into a std::function.
    begin(device, id, [](void*) { return true; });
    end(device, id);
    release(device, id);
    release(device, id);
    free(*outside, bytes, device, nullptr);
    return alive;
}
