/* Memory passes from one stream to another, in order, on a GPU or, where there is none, on the CPU as a device.
 *
 *   cc streams.c $(pkg-config --cflags --libs millpond) -o streams && ./streams
 */
#include <millpond.h>
#include <stdio.h>
#include <stdlib.h>

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
    millpond_pool *pool;
    millpond_stream *producer, *consumer;
    millpond_stats stats = {.size = sizeof stats};
    void *block;
    unsigned char first;

    if (millpond_context_cuda(0, &device) != MILLPOND_STATUS_OK) {
        check(millpond_context_host(&device));
    }
    check(millpond_pool_options_init(&options, sizeof options));
    options.name = "example";
    check(millpond_pool_create(device, &options, &pool));
    check(millpond_stream_create(device, &producer)); /* or millpond_stream_register(device, a cudaStream_t, …) */
    check(millpond_stream_create(device, &consumer));

    check(millpond_alloc(pool, 1 << 20, producer, &block));
    check(millpond_memset(device, block, 42, 1 << 20, producer)); /* your kernel */

    check(millpond_stream_wait_for(device, consumer, producer));
    check(millpond_record_use(pool, block, consumer)); /* the free will wait for the consumer's work */
    check(millpond_copy_to_host(device, &first, block, 1, consumer));
    check(millpond_free(pool, block, producer)); /* at once; the host does not wait */

    check(millpond_pool_stats(pool, &stats));
    printf("read %d; %llu allocation, %.0f MiB held\n", first, (unsigned long long)stats.allocations,
           (double)stats.reserved.current / (1 << 20));

    check(millpond_stream_release(consumer));
    check(millpond_stream_release(producer));
    check(millpond_pool_release(pool));
    check(millpond_context_release(device));
    return 0;
}
