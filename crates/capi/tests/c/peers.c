/* Two devices in one process: copies between them in stream order, and access to each other's memory. */
#include "check.h"

enum { BYTES = 3 << 20 };

typedef struct {
    millpond_context *context;
    millpond_pool *pool;
    millpond_stream *stream;
} device_of_ours;

static device_of_ours open_device(void) {
    device_of_ours device;
    millpond_host_options options;
    OK(millpond_host_options_init(&options, sizeof options));
    options.capacity = 256 << 20;
    OK(millpond_context_host_with(&options, &device.context));
    OK(millpond_pool_create(device.context, NULL, &device.pool));
    OK(millpond_stream_create(device.context, &device.stream));
    return device;
}

static void close_device(device_of_ours *device) {
    OK(millpond_stream_release(device->stream));
    OK(millpond_pool_release(device->pool));
    OK(millpond_context_release(device->context));
}

static uint32_t is_accessible(device_of_ours *owner, const void *block, device_of_ours *peer) {
    uint32_t found;
    OK(millpond_is_accessible_from(owner->pool, block, peer->context, &found));
    return found;
}

static void copies(void) {
    device_of_ours first = open_device(), second = open_device();
    unsigned char *found = malloc(BYTES);
    void *from, *to;
    OK(millpond_alloc(first.pool, BYTES, first.stream, &from));
    OK(millpond_alloc(second.pool, BYTES, second.stream, &to));
    for (int round = 1; round <= 5; ++round) {
        OK(millpond_memset(first.context, from, round, BYTES, first.stream));
        OK(millpond_copy_block(second.pool, to, second.stream, first.pool, from, first.stream, BYTES));
        /* What is written to the source later comes after the copy. */
        OK(millpond_wait_for_uses(first.pool, from, first.stream));
        OK(millpond_memset(first.context, from, 0, BYTES, first.stream));
        OK(millpond_copy_to_host(second.context, found, to, BYTES, second.stream));
        for (int at = 0; at < BYTES; ++at) CHECK(found[at] == round);
    }
    CHECK(is_accessible(&first, from, &second) && !is_accessible(&second, to, &first));
    OK(millpond_free(first.pool, from, first.stream));
    OK(millpond_free(second.pool, to, second.stream));
    free(found);
    close_device(&first);
    close_device(&second);
}

static void access_to_memory(void) {
    device_of_ours first = open_device(), second = open_device();
    millpond_context *simulated;
    millpond_pool_options options;
    millpond_pool *for_all;
    void *block, *other;
    uint32_t found;
    OK(millpond_alloc(first.pool, BYTES, first.stream, &block));
    OK(millpond_alloc(first.pool, 64 << 20, first.stream, &other));
    CHECK(!is_accessible(&first, block, &second) && is_accessible(&first, block, &first));
    OK(millpond_allow_access(first.pool, block, second.context));
    OK(millpond_allow_access(first.pool, NULL, second.context));
    CHECK(is_accessible(&first, block, &second) && !is_accessible(&first, other, &second));

    /* A kernel of the second device on the block of the first. */
    OK(millpond_stream_wait_for(second.context, second.stream, first.stream));
    OK(millpond_memset(second.context, block, 7, BYTES, second.stream));
    OK(millpond_record_use(first.pool, block, second.stream));

    OK(millpond_pool_allow_access(first.pool, second.context));
    CHECK(is_accessible(&first, other, &second));
    OK(millpond_pool_take_back_access(first.pool, second.context));
    CHECK(!is_accessible(&first, block, &second) && !is_accessible(&first, other, &second));

    OK(millpond_pool_options_init(&options, sizeof options));
    CHECK(options.accessible_from_all == 0);
    options.accessible_from_all = 1;
    OK(millpond_pool_create(first.context, &options, &for_all));
    FAILS(millpond_pool_take_back_access(for_all, second.context), BAD_OPTION, "accessible_from_all");
    OK(millpond_pool_release(for_all));

    OK(millpond_context_sim(NULL, &simulated));
    FAILS(millpond_pool_allow_access(first.pool, simulated), DEVICE_UNSUPPORTED, "working together");
    OK(millpond_context_release(simulated));
    FAILS(millpond_allow_access(second.pool, block, first.context), FOREIGN_POINTER, "was not allocated by");
    FAILS(millpond_is_accessible_from(first.pool, block, second.context, NULL), NULL_ARGUMENT, "out");
    OK(millpond_free(first.pool, block, first.stream));
    FAILS(millpond_is_accessible_from(first.pool, block, second.context, &found), DOUBLE_FREE, "freed already");
    CHECK(found == 0);
    OK(millpond_free(first.pool, other, first.stream));
    close_device(&first);
    close_device(&second);
}

int main(void) {
    copies();
    access_to_memory();
    return 0;
}
