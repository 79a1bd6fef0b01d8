// A free that nobody can be told of does not end the program: it is done another way, or counted and logged.
#include <cuda_mempool.hpp>
#include <millpond.hpp>

#undef NDEBUG // the assertions are the test
#include <cassert>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <memory_resource>
#include <optional>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

using namespace millpond;

static void a_container_outlives_its_stream() {
    const Context device = Context::host();
    const Pool pinned = device.pinned();
    {
        auto stream = std::make_unique<Stream>(device);
        MemoryResource resource(pinned, static_cast<CUstream_st *>(stream->raw()));
        std::pmr::vector<int> numbers(1000, 7, &resource);
        Buffer<int> buffer(pinned, 10, static_cast<CUstream_st *>(stream->raw()));
        stream.reset();
    }
    // Freed all the same, once the device had no work.
    assert(pinned.stats().blocks.current == 0 && millpond_failed_frees() == 0);
}

static void what_fails_is_counted_and_logged() {
    const Context device = Context::host();
    const Pool pool(device);
    std::vector<std::string> said;
    const Log log(MILLPOND_LOG_LEVEL_WARNING, [&](millpond_log_level level, const char *text) {
        assert(level == MILLPOND_LOG_LEVEL_WARNING);
        said.emplace_back(text);
        throw 1; // is dropped
    });
    const std::uint64_t before = millpond_failed_frees();
    MemoryResource resource(pool);
    for (int round = 0; round < 3; ++round) {
        void *block = resource.allocate(100);
        resource.deallocate(block, 100);
        resource.deallocate(block, 100);
    }
    {
        const Buffer<int> buffer(pool, 100);
        pool.deallocate(buffer.data());
    }
    mempool::CudaMemPool simple;
    {
        const mempool::PoolPtr<int> ptr(simple, 100);
        simple.deallocate(ptr.get());
    }
    assert(millpond_failed_frees() == before + 5);
    // The first, the second and the fourth.
    int found = 0;
    for (const std::string &text : said) found += text.find("that failed where no program is told") != std::string::npos;
    assert(found == 3 && pool.stats().blocks.current == 0);
}

static void a_later_log_takes_the_place_of_the_one_before() {
    const Context device = Context::host();
    const Pool pool(device);
    int first = 0, second = 0;
    std::optional<Log> one(std::in_place, MILLPOND_LOG_LEVEL_TRACE, [&](millpond_log_level, const char *) { ++first; });
    const auto mistake = [&] {
        const std::uint64_t before = millpond_failed_frees();
        int foreign;
        for (int round = 0; round < 100; ++round) millpond_free_or_log(pool.get(), &foreign, nullptr);
        assert(millpond_failed_frees() == before + 100);
    };
    mistake();
    assert(first > 0);
    first = 0;
    {
        const Log two(MILLPOND_LOG_LEVEL_TRACE, [&](millpond_log_level, const char *) { ++second; });
        one.reset();
        mistake();
        assert(first == 0 && second > 0);
    }
    assert(millpond_set_log(9, [](std::int32_t, const char *, void *) {}, nullptr) == MILLPOND_STATUS_BAD_OPTION);
}

/// The child leaves the scope of all that its parent made.
static int in_a_forked_child() {
    const Context device = Context::host();
    const Pool pinned = device.pinned();
    const Stream stream(device);
    const std::uint64_t before = millpond_failed_frees();
    const pid_t child = [&] {
        MemoryResource resource(pinned, stream);
        std::pmr::vector<int> numbers(1000, 7, &resource);
        mempool::CudaMemPool simple;
        const mempool::PoolPtr<int> ptr(simple, 100);
        const Buffer<int> buffer(pinned, 10, stream);
        return fork();
    }();
    if (child == 0) _exit(millpond_failed_frees() == before ? 42 : 1);
    int status = 0;
    assert(waitpid(child, &status, 0) == child && WIFEXITED(status));
    return WEXITSTATUS(status);
}

/// With an argument, in a forked child.
int main(int argc, char **argv) {
    if (argc > 1 && std::strcmp(argv[1], "forks") == 0) return in_a_forked_child() == 42 ? 0 : 1;
    a_container_outlives_its_stream();
    what_fails_is_counted_and_logged();
    a_later_log_takes_the_place_of_the_one_before();
}
