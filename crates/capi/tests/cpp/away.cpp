// Buffers whose memory goes away and comes back, on other threads and streams than their own.
#include <millpond.hpp>

#undef NDEBUG // the assertions are the test
#include <atomic>
#include <cassert>
#include <thread>
#include <vector>

using namespace millpond;

/// Each use is done while the memory is there, or refused; none comes between the two.
static void a_pool_sleeps_beside_uses_of_its_buffers(int rounds) {
    const Context device = Context::host();
    const Pool pool(device);
    const Stream stream(device);
    Buffer<char> kept(pool, 4096, stream);
    kept.fill_bytes(0);
    std::atomic<bool> over{false};
    std::thread sleeper([&] {
        while (!over) {
            pool.sleep(Keep::in_pinned_memory);
            pool.wake();
        }
    });
    std::vector<char> bytes(4096);
    for (int round = 0; round < rounds; ++round) {
        const char value = static_cast<char>(round);
        try {
            kept.fill_bytes(static_cast<unsigned char>(value));
            kept.copy_to_host(bytes.data(), bytes.size());
            assert(bytes == std::vector<char>(4096, value));
            kept.copy_from_host(&value, 1, 100);
        } catch (const Error &error) {
            assert(error.status() == MILLPOND_STATUS_ASLEEP);
        }
    }
    over = true;
    sleeper.join();
}

/// A restore is given another stream, and its copies are under way when the buffer's own stream gets work.
static void a_buffer_finds_its_bytes_after_a_restore_on_another_stream() {
    constexpr std::size_t bytes = 32 << 20, last = bytes - 1;
    const Context device = Context::host();
    const Pool pool(device), optimizer = pool.tagged("optimizer");
    const Stream own(device), other(device);
    Buffer<char> kept(optimizer, bytes, own);
    const auto evict_and_restore = [&] {
        optimizer.evict(own);
        // It gets the memory meanwhile.
        Buffer<char>(pool, bytes, own).fill_bytes(9);
        synchronize(device, own);
        optimizer.restore(other);
    };
    const auto found = [&] {
        char byte;
        kept.copy_to_host(&byte, 1, last);
        return byte;
    };
    kept.fill_bytes(3);
    evict_and_restore();
    assert(found() == 3);
    evict_and_restore();
    kept.fill_bytes(4);
    synchronize(device, other);
    assert(found() == 4);
    evict_and_restore();
    const char byte = 5;
    kept.copy_from_host(&byte, 1, last);
    synchronize(device, other);
    assert(found() == 5);
}

int main(int count, char **) {
    a_pool_sleeps_beside_uses_of_its_buffers(count > 1 ? 200 : 20000);
    a_buffer_finds_its_bytes_after_a_restore_on_another_stream();
}
