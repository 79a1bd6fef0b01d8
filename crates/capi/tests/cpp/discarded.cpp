// Each line that makes something and drops it at once is warned of. The number is how many.
#include <millpond.hpp>

using namespace millpond;

void discards(const Context &device, const Pool &pool, const Stream &stream, const CapturePool &memory, Buffer<int> &buffer) {
    pool.allocate(100, stream);
    pool.allocate_array<int>(100);
    device.default_pool();
    buffer.release();
    buffer.clone();
    Tag{"forward"};
    Capturing{memory, stream};
    Reclaim{pool, [](std::size_t) { return false; }};
    OutOfMemoryObserver{pool, [](const millpond_out_of_memory &) {}};
    Log{MILLPOND_LOG_LEVEL_WARNING, [](millpond_log_level, const char *) {}};
}
