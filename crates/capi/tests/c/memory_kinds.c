/* Pinned and managed memory: pools of it, the CPU's use in place, copies in stream order, prefetches, and what is wrong with
 * other memory. */
#include "check.h"

enum { BYTES = 1 << 20 };

static millpond_pool *pool_of(millpond_context *context, int32_t memory) {
    millpond_pool_options options;
    millpond_pool *pool;
    uint64_t found;
    OK(millpond_pool_options_init(&options, sizeof options));
    CHECK(options.memory == MILLPOND_MEMORY_DEVICE && options.node == -1);
    options.memory = memory;
    OK(millpond_pool_create(context, &options, &pool));
    OK(millpond_pool_get(pool, MILLPOND_ATTRIBUTE_MEMORY, &found));
    CHECK(found == (uint64_t)memory);
    return pool;
}

static uint64_t attribute(millpond_pool *pool, int32_t which) {
    uint64_t found;
    OK(millpond_pool_get(pool, which, &found));
    return found;
}

/* Work of a stream, which is late so that whoever does not wait sees the old bytes. */
static void late(void *data) {
    volatile unsigned turns = 0;
    (void)data;
    while (turns < 1000000) ++turns;
}

static void staging(void) {
    millpond_context *context;
    millpond_pool *device, *pinned;
    millpond_stream *upload, *compute, *download;
    unsigned char *in, *out, name[16];
    void *block;

    OK(millpond_context_host(&context));
    device = pool_of(context, MILLPOND_MEMORY_DEVICE);
    pinned = pool_of(context, MILLPOND_MEMORY_PINNED);
    CHECK(attribute(device, MILLPOND_ATTRIBUTE_HOST_ACCESS) == 0);
    CHECK(attribute(pinned, MILLPOND_ATTRIBUTE_HOST_ACCESS) == 1);
    FAILS(millpond_pool_set(pinned, MILLPOND_ATTRIBUTE_MEMORY, 0), BAD_OPTION, "can only be read");
    OK(millpond_pool_name(pinned, (char *)name, sizeof name, NULL));
    CHECK(strcmp((char *)name, "pinned") == 0);
    OK(millpond_stream_create(context, &upload));
    OK(millpond_stream_create(context, &compute));
    OK(millpond_stream_create(context, &download));
    OK(millpond_pool_reserve(pinned, 2 * BYTES, upload));
    CHECK(attribute(pinned, MILLPOND_ATTRIBUTE_RESERVED_CURRENT) >= 2 * BYTES);
    OK(millpond_alloc(pinned, BYTES, upload, (void **)&in));
    OK(millpond_alloc(device, BYTES, compute, &block));
    OK(millpond_alloc(pinned, BYTES, download, (void **)&out));

    for (int round = 1; round <= 5; ++round) {
        OK(millpond_wait_for_host_access(pinned, in, upload, 1)); /* for the copy of the round before, too */
        memset(in, round, BYTES);
        OK(millpond_host_launch(context, compute, late, NULL));
        OK(millpond_copy_block(device, block, compute, pinned, in, upload, BYTES));
        OK(millpond_copy_block(pinned, out, download, device, block, compute, BYTES));
        OK(millpond_wait_for_host_access(pinned, out, download, 0));
        CHECK(out[0] == round && out[BYTES - 1] == round);
    }

    /* A write that is given later comes after a copy that reads the block elsewhere. */
    OK(millpond_memset(context, in, 1, BYTES, upload));
    OK(millpond_host_launch(context, download, late, NULL));
    OK(millpond_copy_block(pinned, out, download, pinned, in, upload, BYTES));
    OK(millpond_wait_for_uses(pinned, in, upload));
    OK(millpond_memset(context, in, 2, BYTES, upload));
    OK(millpond_wait_for_host_access(pinned, out, download, 0));
    CHECK(out[0] == 1 && out[BYTES - 1] == 1);
    OK(millpond_wait_for_host_access(pinned, in, upload, 0));
    CHECK(in[0] == 2);

    /* The copy keeps a block that is freed at once. */
    OK(millpond_host_launch(context, compute, late, NULL));
    OK(millpond_copy_block(device, block, compute, pinned, in, upload, BYTES));
    OK(millpond_free(pinned, in, upload));
    OK(millpond_alloc(pinned, BYTES, upload, (void **)&in));
    OK(millpond_memset(context, in, 9, BYTES, upload));
    OK(millpond_copy_to_host(context, name, block, sizeof name, compute));
    CHECK(name[0] == 2 && name[15] == 2);

    OK(millpond_free(pinned, in, upload));
    OK(millpond_free(pinned, out, download));
    OK(millpond_free(device, block, compute));
    OK(millpond_pool_check(pinned));
    OK(millpond_pool_release(pinned));
    OK(millpond_pool_release(device));
    OK(millpond_stream_release(upload));
    OK(millpond_stream_release(compute));
    OK(millpond_stream_release(download));
    OK(millpond_context_release(context));
}

static millpond_residency residency_of(millpond_pool *pool, void *block) {
    millpond_residency found = {.size = sizeof found};
    OK(millpond_block_residency(pool, block, &found));
    CHECK(found.size == sizeof found);
    return found;
}

static void managed_memory(void) {
    millpond_context *context;
    millpond_pool *device, *managed;
    millpond_stream *stream, *other;
    millpond_residency found;
    unsigned char *bytes;
    void *block;

    OK(millpond_context_host(&context));
    device = pool_of(context, MILLPOND_MEMORY_DEVICE);
    managed = pool_of(context, MILLPOND_MEMORY_MANAGED);
    CHECK(attribute(managed, MILLPOND_ATTRIBUTE_HOST_ACCESS) == 1);
    OK(millpond_stream_create(context, &stream));
    OK(millpond_stream_create(context, &other));
    OK(millpond_alloc(managed, BYTES, stream, (void **)&bytes));
    OK(millpond_alloc(device, BYTES, stream, &block));
    OK(millpond_wait_for_host_access(managed, bytes, stream, 1));
    memset(bytes, 5, BYTES);
    OK(millpond_prefetch(managed, bytes, MILLPOND_PLACE_DEVICE, stream));
    OK(millpond_memset(context, bytes, 6, BYTES / 2, stream));
    OK(millpond_prefetch(managed, bytes, MILLPOND_PLACE_HOST, other));
    OK(millpond_prefetch(managed, bytes, MILLPOND_PLACE_HOST, stream));
    OK(millpond_wait_for_host_access(managed, bytes, stream, 1));
    CHECK(bytes[0] == 6 && bytes[BYTES - 1] == 5);
    found = residency_of(managed, bytes);
    CHECK(found.last_prefetch == MILLPOND_PLACE_HOST && found.preferred_location == MILLPOND_PLACE_NONE);
    OK(millpond_advise(managed, bytes, MILLPOND_ADVICE_READ_MOSTLY, MILLPOND_PLACE_NONE));
    OK(millpond_advise(managed, bytes, MILLPOND_ADVICE_PREFERRED_LOCATION, MILLPOND_PLACE_DEVICE));
    OK(millpond_advise(managed, bytes, MILLPOND_ADVICE_ACCESSED_BY, MILLPOND_PLACE_HOST));
    OK(millpond_advise(managed, bytes, MILLPOND_ADVICE_NOT_ACCESSED_BY, MILLPOND_PLACE_HOST));
    found = residency_of(managed, bytes);
    CHECK(found.read_mostly == 1 && found.preferred_location == MILLPOND_PLACE_DEVICE);
    OK(millpond_advise(managed, bytes, MILLPOND_ADVICE_NOT_READ_MOSTLY, MILLPOND_PLACE_NONE));
    CHECK(residency_of(managed, bytes).read_mostly == 0);
    OK(millpond_take_back_advice(managed, bytes));
    CHECK(residency_of(managed, bytes).preferred_location == MILLPOND_PLACE_NONE);
    OK(millpond_copy_block(device, block, stream, managed, bytes, stream, BYTES));
    OK(millpond_prefetch(managed, NULL, MILLPOND_PLACE_HOST, stream));

    FAILS(millpond_prefetch(device, block, MILLPOND_PLACE_HOST, stream), NOT_MANAGED, "is not of managed memory");
    FAILS(millpond_advise(device, block, MILLPOND_ADVICE_READ_MOSTLY, 0), NOT_MANAGED, "is not of managed memory");
    FAILS(millpond_take_back_advice(device, block), NOT_MANAGED, "is not of managed memory");
    FAILS(millpond_block_residency(device, block, &found), NOT_MANAGED, "is not of managed memory");
    FAILS(millpond_block_residency(managed, bytes, NULL), NULL_ARGUMENT, "`residency` is null");
    FAILS(millpond_prefetch(managed, bytes, MILLPOND_PLACE_NONE, stream), BAD_OPTION, "the device or the host");
    FAILS(millpond_prefetch(managed, bytes, 9, stream), BAD_OPTION, "place: 9; it must be one of millpond_place");
    FAILS(millpond_advise(managed, bytes, 9, 0), BAD_OPTION, "advice: 9; it must be one of millpond_advice");
    FAILS(millpond_prefetch(managed, bytes + 1, MILLPOND_PLACE_HOST, stream), INTERIOR_POINTER, "1 bytes inside");

    OK(millpond_free(device, block, stream));
    OK(millpond_free(managed, bytes, stream));
    OK(millpond_pool_release(managed));
    OK(millpond_pool_release(device));
    OK(millpond_stream_release(stream));
    OK(millpond_stream_release(other));
    OK(millpond_context_release(context));
}

static void mistakes(void) {
    millpond_context *context, *sim;
    millpond_pool *device, *pinned, *pool;
    millpond_pool_options options;
    void *block, *bytes;
    size_t free_bytes = 0, total = 0;

    OK(millpond_context_host(&context));
    device = pool_of(context, MILLPOND_MEMORY_DEVICE);
    pinned = pool_of(context, MILLPOND_MEMORY_PINNED);
    OK(millpond_pool_memory_info(pinned, &free_bytes, &total));
    CHECK(total > 0 && free_bytes <= total);
    OK(millpond_pool_memory_info(pinned, NULL, NULL));
    OK(millpond_alloc(device, 100, NULL, &block));
    OK(millpond_alloc(pinned, 50, NULL, &bytes));
    FAILS(millpond_wait_for_host_access(device, block, NULL, 0), NO_HOST_ACCESS, "the CPU cannot read the memory of pool");
    FAILS(millpond_wait_for_host_access(pinned, block, NULL, 1), WRONG_POOL, "belongs to pool 'pool'");
    FAILS(millpond_wait_for_host_access(pinned, (char *)bytes + 1, NULL, 1), INTERIOR_POINTER, "1 bytes inside");
    OK(millpond_wait_for_host_access(pinned, NULL, NULL, 1));
    OK(millpond_wait_for_uses(pinned, NULL, NULL));
    FAILS(millpond_wait_for_uses(pinned, block, NULL), WRONG_POOL, "belongs to pool 'pool'");
    FAILS(millpond_copy_block(device, block, NULL, pinned, bytes, NULL, 60), LENGTH_MISMATCH, "but 50 expected");
    FAILS(millpond_copy_block(device, block, NULL, device, block, NULL, 10), BAD_OPTION, "the same block");
    OK(millpond_copy_block(device, block, NULL, pinned, bytes, NULL, 50));
    OK(millpond_copy_block(device, block, NULL, pinned, bytes, NULL, 0));
    OK(millpond_free(pinned, bytes, NULL));
    FAILS(millpond_copy_block(device, block, NULL, pinned, bytes, NULL, 50), DOUBLE_FREE, "was freed already");
    OK(millpond_free(device, block, NULL));
    FAILS(millpond_pool_reserve(NULL, 1, NULL), NULL_ARGUMENT, "`pool` is null");
    OK(millpond_pool_release(pinned));
    OK(millpond_pool_release(device));

    OK(millpond_pool_options_init(&options, sizeof options));
    options.memory = 7;
    FAILS(millpond_pool_create(context, &options, &pool), BAD_OPTION, "memory: 7; it must be one of millpond_memory");
    options.memory = MILLPOND_MEMORY_DEVICE;
    options.node = 0;
    FAILS(millpond_pool_create(context, &options, &pool), BAD_OPTION, "only pinned memory has one");
    options.memory = MILLPOND_MEMORY_PINNED;
    FAILS(millpond_pool_create(context, &options, &pool), DEVICE_UNSUPPORTED, "NUMA node");
    OK(millpond_context_release(context));

    /* A simulated device has it, too, without bytes. A program that knows no kinds of memory has the device's. */
    OK(millpond_context_sim(NULL, &sim));
    pinned = pool_of(sim, MILLPOND_MEMORY_PINNED);
    OK(millpond_alloc(pinned, 50, NULL, &bytes));
    FAILS(millpond_wait_for_host_access(pinned, bytes, NULL, 0), NO_HOST_ACCESS, "cannot read");
    OK(millpond_free(pinned, bytes, NULL));
    OK(millpond_pool_release(pinned));
    OK(millpond_pool_options_init(&options, offsetof(millpond_pool_options, memory)));
    options.memory = 7;
    OK(millpond_pool_create(sim, &options, &pool));
    CHECK(attribute(pool, MILLPOND_ATTRIBUTE_MEMORY) == MILLPOND_MEMORY_DEVICE);
    OK(millpond_pool_release(pool));
    OK(millpond_context_release(sim));
}

int main(void) {
    staging();
    managed_memory();
    mistakes();
    return 0;
}
