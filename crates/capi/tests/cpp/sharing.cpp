// A buffer of this process, opened by the same process: as by another one, but on the CPU as a device only.
#undef NDEBUG
#include <millpond.hpp>

#include <sys/socket.h>
#include <unistd.h>

#include <cassert>
#include <cstdint>

using namespace millpond;

int main() {
    const Context device = Context::host();
    const Pool pool(device);
    const Stream stream(device), other(device);
    int sockets[2];
    assert(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);

    Buffer<std::uint32_t> mine(pool, 1000, stream);
    mine.copy_from_host(std::vector<std::uint32_t>(1000, 7).data(), 1000);
    {
        const Sharing shared(mine);
        shared.send(sockets[0]);
        auto [theirs, opened] = Sharing::receive<std::uint32_t>(device, sockets[1], other);
        assert(theirs.size() == 1000 && theirs.data() != mine.data());
        assert(theirs.to_vector() == std::vector<std::uint32_t>(1000, 7));
        theirs.fill_bytes(0);
        opened.record(other);
        shared.wait(stream);
        assert(mine.to_vector() == std::vector<std::uint32_t>(1000, 0));
        // Freed by its owner, and still the other's.
        mine = Buffer<std::uint32_t>();
        assert(theirs.to_vector() == std::vector<std::uint32_t>(1000, 0));
        try {
            opened.send(sockets[0]);
            assert(false);
        } catch (const Error &error) {
            assert(error.status() == MILLPOND_STATUS_BAD_OPTION);
        }
    }
    device.synchronize();
    device.synchronize();
    assert(pool.stats().allocated.current == 0);

    const Pool pinned = device.pinned();
    const Buffer<char> unshareable(pinned, 100, stream);
    for (const int socket : {-1, 1000}) {
        try {
            Sharing::receive<char>(device, socket, stream);
            assert(false);
        } catch (const Error &error) {
            assert(error.status() == MILLPOND_STATUS_BAD_OPTION);
        }
    }
    try {
        const Sharing shared(unshareable);
        assert(false);
    } catch (const Error &error) {
        assert(error.status() == MILLPOND_STATUS_NOT_SHAREABLE);
    }
    close(sockets[0]);
    try {
        Sharing::receive<char>(device, sockets[1], stream);
        assert(false);
    } catch (const Error &error) {
        assert(error.status() == MILLPOND_STATUS_SOCKET);
    }
    close(sockets[1]);
}
