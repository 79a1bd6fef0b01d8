/* What an allocate and free pair costs from C, through a registered stream: the median of many rounds, per size.
 *
 *   scripts/bench-c [cuda|host|sim]
 */
#define _POSIX_C_SOURCE 200809L
#include <millpond.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROUNDS = 501, PAIRS = 2000 };

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

int main(int argc, char **argv) {
    static const size_t sizes[] = {512, 4096, 65536, 1 << 20, 16 << 20};
    const char *device = argc > 1 ? argv[1] : "cuda";
    millpond_context *context;
    millpond_pool *pool;
    millpond_stream *own, *registered;
    void *raw;
    size_t index;

    check(strcmp(device, "host") == 0  ? millpond_context_host(&context)
          : strcmp(device, "sim") == 0 ? millpond_context_sim(NULL, &context)
                                       : millpond_context_cuda(0, &context));
    check(millpond_pool_create(context, NULL, &pool));
    check(millpond_stream_create(context, &own));
    check(millpond_stream_raw(own, &raw));
    check(millpond_stream_register(context, raw, &registered));
    printf("%12s %14s %14s\n", "bytes", "ns a pair, p50", "p99 of rounds");
    for (index = 0; index < sizeof sizes / sizeof *sizes; ++index) {
        double rounds[ROUNDS];
        int round, pair;
        for (round = 0; round < ROUNDS; ++round) {
            const double start = now();
            for (pair = 0; pair < PAIRS; ++pair) {
                void *block;
                check(millpond_alloc(pool, sizes[index], registered, &block));
                check(millpond_free(pool, block, registered));
            }
            rounds[round] = (now() - start) / PAIRS;
        }
        qsort(rounds, ROUNDS, sizeof *rounds, by_value);
        printf("%12zu %14.1f %14.1f\n", sizes[index], rounds[ROUNDS / 2], rounds[ROUNDS * 99 / 100]);
    }
    check(millpond_stream_release(registered));
    check(millpond_stream_release(own));
    check(millpond_pool_release(pool));
    check(millpond_context_release(context));
    return 0;
}
