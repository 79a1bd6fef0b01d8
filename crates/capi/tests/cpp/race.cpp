// A race of the program's own, which ThreadSanitizer finds although it is told to leave the library alone.
#include <millpond.hpp>

#include <thread>

static int counted = 0;

int main() {
    const millpond::Context device = millpond::Context::host();
    const millpond::Pool pool(device);
    const auto count = [&pool] {
        for (int round = 0; round < 1000; ++round) {
            const millpond::Buffer<int> buffer(pool, 100);
            ++counted;
        }
    };
    std::thread other(count);
    count();
    other.join();
    return counted == 0;
}
