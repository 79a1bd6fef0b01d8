// Without run-time types, resources are equal as with them.
#include <cuda_mempool.hpp>
#include <millpond.hpp>

#undef NDEBUG // the assertions are the test
#include <cassert>
#include <memory_resource>
#include <vector>

using namespace millpond;

/// A resource of the program's own, which passes the question on, as RMM's and others' adaptors do.
struct Adaptor : std::pmr::memory_resource {
    explicit Adaptor(std::pmr::memory_resource &upstream) : upstream(&upstream) {}
    void *do_allocate(std::size_t bytes, std::size_t align) override { return upstream->allocate(bytes, align); }
    void do_deallocate(void *ptr, std::size_t bytes, std::size_t align) override { upstream->deallocate(ptr, bytes, align); }
    bool do_is_equal(const std::pmr::memory_resource &other) const noexcept override { return this == &other; }

    std::pmr::memory_resource *upstream;
};

int main() {
    const Context device = Context::host(), again = Context::host(), own = Context::host(HostOptions());
    assert(device == again && device != own);
    const Pool pool(device), other(device), first = device.default_pool(), second = device.default_pool();
    assert(first == second && first != pool && pool == Pool(pool) && pool != other);
    assert(pool.tagged("weights") == pool.tagged("weights") && pool.tagged("weights") != pool);
    const Stream stream(device), registered(device, stream.raw()), elsewhere(device);
    assert(stream == registered && stream != elsewhere);
    assert(StreamRef(stream) == StreamRef(stream.raw()) && StreamRef(elsewhere) != StreamRef(stream.raw()));
    assert(StreamRef() != StreamRef(stream) && StreamRef() == StreamRef(nullptr));

    MemoryResource one(first, stream);
    const MemoryResource same(second, registered), raw(first, static_cast<CUstream_st *>(stream.raw()));
    const MemoryResource another(pool, stream), late(first, elsewhere), none(first);
    assert(one == same && one == raw && one != another && one != late && one != none);
    Adaptor adaptor(one);
    assert(one != adaptor && adaptor != one && one != *std::pmr::new_delete_resource());
    std::pmr::vector<int> numbers(100, 7, &adaptor);
    assert(numbers[99] == 7);

    Pool source(device);
    const Pool moved(std::move(source));
    assert(source != moved && moved != source && source == Pool(source) && source.get() == nullptr);
    try {
        (void)pool.allocate_aligned(1, 3, stream);
        assert(false);
    } catch (const Error &error) {
        assert(error.status() == MILLPOND_STATUS_BAD_ALIGNMENT);
    }
    mempool::CudaMemPool simple;
    const mempool::PoolPtr<int> ptr(simple, 10);
    assert(ptr.get() != nullptr);
}
