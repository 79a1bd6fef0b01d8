/* A tag's memory serves its pool for a while, and comes back to the same addresses. */
#include "check.h"

enum { BYTES = 5 << 20 };

static uint64_t attribute(millpond_pool *pool, millpond_attribute which) {
    uint64_t found;
    OK(millpond_pool_get(pool, which, &found));
    return found;
}

int main(void) {
    millpond_context *context;
    millpond_pool *pool, *optimizer;
    millpond_stream *stream;
    unsigned char found[2] = {0, 0};
    size_t moved = 0, away = 1;
    void *block, *other, *refused;

    OK(millpond_context_host(&context));
    OK(millpond_pool_create(context, NULL, &pool));
    OK(millpond_pool_tagged(pool, "optimizer", &optimizer));
    OK(millpond_stream_create(context, &stream));
    OK(millpond_alloc(optimizer, BYTES, stream, &block));
    OK(millpond_memset(context, block, 7, BYTES, stream));

    OK(millpond_pool_evict(optimizer, stream, &moved));
    CHECK(moved >= BYTES && attribute(optimizer, MILLPOND_ATTRIBUTE_RESERVED_CURRENT) == 0);
    CHECK(attribute(pool, MILLPOND_ATTRIBUTE_RESERVED_CURRENT) == moved);
    CHECK(attribute(optimizer, MILLPOND_ATTRIBUTE_IS_EVICTED) == 1);
    CHECK(attribute(optimizer, MILLPOND_ATTRIBUTE_IS_ASLEEP) == 0);
    CHECK(attribute(optimizer, MILLPOND_ATTRIBUTE_BYTES_ASLEEP) == moved);
    FAILS(millpond_alloc(optimizer, BYTES, stream, &refused), EVICTED, "restore it first");
    CHECK(refused == NULL);

    /* Others use the memory. */
    OK(millpond_alloc(pool, BYTES, stream, &other));
    OK(millpond_memset(context, other, 9, BYTES, stream));
    OK(millpond_free(pool, other, stream));

    OK(millpond_pool_restore_free(optimizer, NULL));
    OK(millpond_pool_restore_ahead(optimizer));
    OK(millpond_pool_restore_free(optimizer, &away));
    CHECK(away == 0);
    OK(millpond_pool_restore(optimizer, stream));
    CHECK(attribute(optimizer, MILLPOND_ATTRIBUTE_IS_EVICTED) == 0);
    OK(millpond_copy_to_host(context, found, block, 1, stream));
    OK(millpond_copy_to_host(context, found + 1, (char *)block + BYTES - 1, 1, stream));
    CHECK(found[0] == 7 && found[1] == 7);
    OK(millpond_pool_check(optimizer));
    OK(millpond_pool_check(pool));

    /* What is no tag's stays. */
    FAILS(millpond_pool_evict(pool, stream, NULL), CANNOT_EVICT, "no part of another pool");
    OK(millpond_pool_restore(pool, stream));
    OK(millpond_free(optimizer, block, stream));

    OK(millpond_pool_release(optimizer));
    OK(millpond_stream_release(stream));
    OK(millpond_pool_release(pool));
    OK(millpond_context_release(context));
    return 0;
}
