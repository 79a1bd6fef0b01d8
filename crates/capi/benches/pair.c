/* What an allocate and free pair costs from C, by the kind of stream: the median of many rounds, per size.
 *
 *   scripts/bench-c [cuda|host|sim]
 */
#define _POSIX_C_SOURCE 200809L
#include <millpond.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* RMM's pool of streams has 16. */
enum { ROUNDS = 201, PAIRS = 2000, STREAMS = 16 };

static void check(millpond_status status) {
    if (status != MILLPOND_STATUS_OK) {
        fprintf(stderr, "%s\n", millpond_last_error());
        exit(1);
    }
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Pairs on `count` streams, one after the other. */
static void measure(const char *kind, millpond_pool *pool, size_t bytes, const millpond_any_stream *streams, int count) {
    double rounds[ROUNDS];
    int round, pair;
    for (round = 0; round < ROUNDS; ++round) {
        const double start = now();
        for (pair = 0; pair < PAIRS; ++pair) {
            const millpond_any_stream stream = streams[pair % count];
            void *block;
            check(millpond_alloc(pool, bytes, stream, &block));
            check(millpond_free(pool, block, stream));
        }
        rounds[round] = (now() - start) / PAIRS;
    }
    qsort(rounds, ROUNDS, sizeof *rounds, by_value);
    printf("%-32s %10zu %14.1f %14.1f\n", kind, bytes, rounds[ROUNDS / 2], rounds[ROUNDS * 99 / 100]);
}

int main(int argc, char **argv) {
    static const size_t sizes[] = {512, 65536, 1 << 20, 16 << 20};
    const char *device = argc > 1 ? argv[1] : "cuda";
    millpond_context *context;
    millpond_pool *pool;
    millpond_stream *own[STREAMS], *registered;
    millpond_any_stream none = NULL, ours[STREAMS], raw[STREAMS];
    size_t index;
    int at;

    check(strcmp(device, "host") == 0  ? millpond_context_host(&context)
          : strcmp(device, "sim") == 0 ? millpond_context_sim(NULL, &context)
                                       : millpond_context_cuda(0, &context));
    check(millpond_pool_create(context, NULL, &pool));
    for (at = 0; at < STREAMS; ++at) {
        check(millpond_stream_create(context, &own[at]));
        check(millpond_stream_raw(own[at], &raw[at]));
        ours[at] = own[at];
    }
    check(millpond_stream_register(context, raw[0], &registered));
    printf("%-32s %10s %14s %14s\n", "stream", "bytes", "ns a pair, p50", "p99 of rounds");
    for (index = 0; index < sizeof sizes / sizeof *sizes; ++index) {
        measure("default", pool, sizes[index], &none, 1);
        measure("handle", pool, sizes[index], ours, 1);
        measure("CUstream, registered", pool, sizes[index], raw, 1);
        measure("16 handles in turn", pool, sizes[index], ours, STREAMS);
        measure("16 CUstreams in turn, registered", pool, sizes[index], raw, STREAMS);
    }
    check(millpond_stream_release(registered));
    for (at = 0; at < STREAMS; ++at) check(millpond_stream_release(own[at]));
    check(millpond_pool_release(pool));
    check(millpond_context_release(context));
    return 0;
}
