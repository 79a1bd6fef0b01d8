// A guarded pool says what was written behind a block. Options that make no sense are refused.
#include "../c/check.h"
#include <millpond.hpp>

int main() {
    millpond::Context context = millpond::Context::host();
    millpond::PoolOptions options;
    options.name = "guarded";
    options.guard = "all,count";
    millpond::Pool pool(context, options);
    millpond::Stream stream(context);
    CHECK(pool.guard_findings().empty());

    unsigned char *block = static_cast<unsigned char *>(pool.allocate(1000, stream));
    context.synchronize();
    block[1000] = 7;
    pool.deallocate(block, stream);
    context.synchronize();

    std::vector<std::string> found = pool.guard_findings();
    CHECK(found.size() == 1);
    CHECK(found[0].find("behind a block of 1000 bytes of pool 'guarded'") != std::string::npos);

    char cut[8];
    std::size_t length = 0;
    OK(millpond_pool_guard_finding(pool.get(), 0, cut, sizeof cut, &length));
    CHECK(length == found[0].size());
    CHECK(found[0].compare(0, 7, cut) == 0);
    FAILS(millpond_pool_guard_finding(pool.get(), 1, cut, sizeof cut, &length), BAD_OPTION, "the guard has 1 findings");

    millpond_pool *none;
    options.guard = "all,page";
    FAILS(millpond_pool_create(context.get(), &options, &none), BAD_OPTION, "use all, or some of redzones");
    return 0;
}
