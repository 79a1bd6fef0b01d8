/* Pools and their tags give their memory back, and get it at the same addresses. */
#include "check.h"

enum { BYTES = 5 << 20 };

static uint64_t attribute(millpond_pool *pool, millpond_attribute which) {
    uint64_t found;
    OK(millpond_pool_get(pool, which, &found));
    return found;
}

int main(void) {
    millpond_context *context;
    millpond_pool_options options;
    millpond_pool *pool, *weights, *again, *pinned, *unnamed;
    millpond_stream *stream;
    unsigned char found[2] = {0, 0};
    size_t released = 0;
    void *block, *refused;

    OK(millpond_context_host(&context));
    OK(millpond_pool_create(context, NULL, &pool));
    OK(millpond_pool_tagged(pool, "weights", &weights));
    OK(millpond_pool_tagged(pool, "weights", &again));
    OK(millpond_stream_create(context, &stream));
    OK(millpond_alloc(weights, BYTES, stream, &block));
    OK(millpond_memset(context, block, 7, BYTES, stream));

    OK(millpond_pool_sleep(weights, MILLPOND_KEEP_IN_PINNED_MEMORY, &released));
    CHECK(released >= BYTES && attribute(weights, MILLPOND_ATTRIBUTE_RESERVED_CURRENT) == 0);
    CHECK(attribute(again, MILLPOND_ATTRIBUTE_IS_ASLEEP) == 1 && attribute(pool, MILLPOND_ATTRIBUTE_IS_ASLEEP) == 0);
    CHECK(attribute(weights, MILLPOND_ATTRIBUTE_BYTES_ASLEEP) >= BYTES);
    FAILS(millpond_alloc(weights, BYTES, stream, &refused), ASLEEP, "wake it first");
    FAILS(millpond_pool_memset(weights, block, 7, BYTES, stream), ASLEEP, "wake it first");
    CHECK(refused == NULL);
    OK(millpond_pool_wake(weights));
    OK(millpond_copy_to_host(context, found, block, 1, stream));
    OK(millpond_copy_to_host(context, found + 1, (char *)block + BYTES - 1, 1, stream));
    CHECK(found[0] == 7 && found[1] == 7);

    /* A pool sleeps with its tags. */
    OK(millpond_pool_sleep(pool, MILLPOND_KEEP_NOTHING, NULL));
    CHECK(attribute(weights, MILLPOND_ATTRIBUTE_IS_ASLEEP) == 1);
    OK(millpond_free(weights, block, stream));
    OK(millpond_pool_wake(pool));
    CHECK(attribute(weights, MILLPOND_ATTRIBUTE_IS_ASLEEP) == 0);
    OK(millpond_pool_check(weights));
    OK(millpond_pool_trim_staging(pool, &released));
    CHECK(released >= BYTES);

    OK(millpond_pool_options_init(&options, sizeof options));
    options.memory = MILLPOND_MEMORY_PINNED;
    OK(millpond_pool_create(context, &options, &pinned));
    FAILS(millpond_pool_sleep(pinned, MILLPOND_KEEP_NOTHING, NULL), CANNOT_SLEEP, "cannot sleep");
    FAILS(millpond_pool_sleep(pool, 2, NULL), BAD_OPTION, "millpond_keep");
    FAILS(millpond_pool_tagged(pool, NULL, &unnamed), NULL_ARGUMENT, "`tag` is null");

    OK(millpond_pool_release(again));
    OK(millpond_pool_release(weights));
    OK(millpond_pool_release(pinned));
    OK(millpond_stream_release(stream));
    OK(millpond_pool_release(pool));
    OK(millpond_context_release(context));
    return 0;
}
