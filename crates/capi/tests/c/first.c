/* Memory is allocated, written, read back and freed on the host device, and the figures say so. */
#include "check.h"

int main(void) {
    millpond_context *context;
    millpond_pool *pool;
    millpond_stream *stream;
    void *block;
    char bytes[1000];
    millpond_stats stats = {.size = sizeof stats};

    CHECK(strcmp(millpond_last_error(), "") == 0);
    OK(millpond_context_host(&context));
    OK(millpond_pool_create(context, NULL, &pool));
    OK(millpond_stream_create(context, &stream));

    OK(millpond_alloc(pool, sizeof bytes, stream, &block));
    CHECK(block != NULL);
    OK(millpond_memset(context, block, 7, sizeof bytes, stream));
    OK(millpond_copy_to_host(context, bytes, block, sizeof bytes, stream));
    CHECK(bytes[0] == 7 && bytes[999] == 7);
    OK(millpond_pool_stats(pool, &stats));
    CHECK(stats.requested.current == 1000 && stats.allocated.current == 1024);
    OK(millpond_free(pool, block, stream));
    FAILS(millpond_free(pool, block, stream), DOUBLE_FREE, "was freed already");
    OK(millpond_pool_stats(pool, &stats));
    CHECK(stats.allocations == 1 && stats.frees == 1 && stats.blocks.current == 0);
    OK(millpond_pool_check(pool));

    OK(millpond_stream_release(stream));
    OK(millpond_pool_release(pool));
    FAILS(millpond_alloc(pool, 1, NULL, &block), RELEASED_HANDLE, "was released");
    CHECK(block == NULL);
    OK(millpond_context_release(context));
    return 0;
}
