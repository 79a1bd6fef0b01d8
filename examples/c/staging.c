/* Batches go to the device and back through pinned memory: the host writes and reads it in place, and waits only where it
 * needs the bytes. On a GPU or, where there is none, on the CPU as a device.
 *
 *   cc staging.c $(pkg-config --cflags --libs millpond) -o staging && ./staging
 */
#include <millpond.h>
#include <stdio.h>
#include <stdlib.h>

enum { BYTES = 4 << 20, BATCHES = 8 };

/* What a call answers is checked, and the library's message tells what to do. */
static void check(millpond_status status) {
    if (status != MILLPOND_STATUS_OK) {
        fprintf(stderr, "%s\n", millpond_last_error());
        exit(1);
    }
}

int main(void) {
    millpond_context *device;
    millpond_pool_options options;
    millpond_pool *pool, *pinned;
    millpond_stream *upload, *compute;
    unsigned char *staging, *results;
    void *inputs, *outputs;
    size_t wrong = 0;

    if (millpond_context_cuda(0, &device) != MILLPOND_STATUS_OK) {
        check(millpond_context_host(&device));
    }
    check(millpond_pool_create(device, NULL, &pool));
    check(millpond_pool_options_init(&options, sizeof options));
    options.memory = MILLPOND_MEMORY_PINNED;
    check(millpond_pool_create(device, &options, &pinned));
    check(millpond_stream_create(device, &upload));
    check(millpond_stream_create(device, &compute));
    check(millpond_pool_reserve(pinned, 2 * (size_t)BYTES, upload)); /* the driver is slow with pinned memory */

    check(millpond_alloc(pinned, BYTES, upload, (void **)&staging));
    check(millpond_alloc(pool, BYTES, upload, &inputs));
    check(millpond_alloc(pool, BYTES, compute, &outputs));
    check(millpond_alloc(pinned, BYTES, compute, (void **)&results));

    for (int batch = 0; batch < BATCHES; ++batch) {
        check(millpond_wait_for_host_access(pinned, staging, upload, 1)); /* the last batch has been read */
        for (size_t at = 0; at < BYTES; ++at) staging[at] = (unsigned char)(batch + at % 251);

        /* None of these waits on the host. Each waits for the other stream, in stream order. */
        check(millpond_copy_block(pool, inputs, upload, pinned, staging, upload, BYTES));
        check(millpond_copy_block(pool, outputs, compute, pool, inputs, upload, BYTES)); /* your kernel */
        check(millpond_copy_block(pinned, results, compute, pool, outputs, compute, BYTES));

        check(millpond_wait_for_host_access(pinned, results, compute, 0));
        for (size_t at = 0; at < BYTES; ++at) wrong += results[at] != (unsigned char)(batch + at % 251);
    }
    printf("%d batches of %d MiB, %zu wrong bytes\n", BATCHES, BYTES >> 20, wrong);

    check(millpond_free(pinned, results, compute));
    check(millpond_free(pool, outputs, compute));
    check(millpond_free(pool, inputs, upload));
    check(millpond_free(pinned, staging, upload));
    check(millpond_stream_release(compute));
    check(millpond_stream_release(upload));
    check(millpond_pool_release(pinned));
    check(millpond_pool_release(pool));
    check(millpond_context_release(device));
    return wrong != 0;
}
