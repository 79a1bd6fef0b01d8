/* When memory runs out the program is asked first; then the account says where the memory is. */
#include "check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

struct cache {
    millpond_pool *pool;
    void *block;
    int asked;
    millpond_status released_inside;
};

static int32_t give_way(size_t bytes, void *data) {
    struct cache *cache = data;
    CHECK(bytes == 40 << 20);
    ++cache->asked;
    cache->released_inside = millpond_pool_release(cache->pool);
    if (cache->block == NULL) {
        return 0;
    }
    OK(millpond_free(cache->pool, cache->block, NULL));
    cache->block = NULL;
    return 1;
}

static void write_down(const millpond_out_of_memory *report, void *data) {
    CHECK(report->size == sizeof *report && strcmp(report->pool, "limited") == 0);
    *(uint64_t *)data += report->requested;
}

/* A callback that another thread removes while it runs. */
struct visit {
    atomic_int entered, left;
    millpond_pool *pool;
};

static int32_t take_time(size_t bytes, void *data) {
    struct visit *visit = data;
    const struct timespec while_it_is_removed = {0, 50000000};
    (void)bytes;
    atomic_store(&visit->entered, 1);
    nanosleep(&while_it_is_removed, NULL);
    atomic_store(&visit->left, 1);
    return 0;
}

static void *ask_for_too_much(void *data) {
    void *none;
    /* What a callback may make room for: beyond the limit itself, none is asked. */
    FAILS(millpond_alloc(((struct visit *)data)->pool, 40 << 20, NULL, &none), OUT_OF_MEMORY, "hard_limit");
    return NULL;
}

static void what_was_removed_is_not_called_any_more(millpond_pool *pool) {
    struct visit *visit = calloc(1, sizeof *visit);
    pthread_t thread;
    uint64_t id;
    visit->pool = pool;
    OK(millpond_pool_on_reclaim(pool, take_time, visit, &id));
    CHECK(pthread_create(&thread, NULL, ask_for_too_much, visit) == 0);
    while (!atomic_load(&visit->entered)) {
    }
    OK(millpond_pool_remove_reclaim(pool, id));
    CHECK(atomic_load(&visit->left));
    CHECK(pthread_join(thread, NULL) == 0);
    free(visit);
}

int main(void) {
    millpond_context *context;
    millpond_pool_options options;
    millpond_out_of_memory report = {.size = sizeof report};
    struct cache cache = {0};
    void *block, *none;
    uint64_t id, observer, missing = 0;

    FAILS(millpond_last_out_of_memory(&report), BAD_OPTION, "not out of memory");
    OK(millpond_context_host(&context));
    OK(millpond_pool_options_init(&options, sizeof options));
    options.name = "limited";
    options.hard_limit = 64 << 20;
    OK(millpond_pool_create(context, &options, &cache.pool));
    OK(millpond_pool_on_out_of_memory(cache.pool, write_down, &missing, &observer));
    FAILS(millpond_pool_on_out_of_memory(cache.pool, NULL, NULL, &id), NULL_ARGUMENT, "`observe` is null");
    OK(millpond_pool_on_reclaim(cache.pool, give_way, &cache, &id));
    OK(millpond_alloc(cache.pool, 40 << 20, NULL, &cache.block));
    OK(millpond_alloc(cache.pool, 40 << 20, NULL, &block));
    CHECK(cache.asked == 1 && cache.block == NULL && cache.released_inside == MILLPOND_STATUS_BUSY);

    FAILS(millpond_alloc(cache.pool, 40 << 20, NULL, &none), OUT_OF_MEMORY, "hard_limit");
    CHECK(cache.asked == 2 && missing == 40 << 20);
    OK(millpond_last_out_of_memory(&report));
    CHECK(report.requested == 40 << 20 && report.live == 40 << 20 && report.blocks == 1);
    CHECK(report.limit == MILLPOND_LIMIT_HARD_LIMIT && report.limit_bytes == 64 << 20);
    CHECK(strcmp(report.pool, "limited") == 0);
    OK(millpond_pool_remove_reclaim(cache.pool, id));
    FAILS(millpond_pool_remove_reclaim(cache.pool, id), BAD_OPTION, "no callback");
    FAILS(millpond_alloc(cache.pool, 40 << 20, NULL, &none), OUT_OF_MEMORY, "requested, but");
    CHECK(cache.asked == 2 && missing == 80 << 20);
    OK(millpond_pool_remove_out_of_memory(cache.pool, observer));
    FAILS(millpond_pool_remove_out_of_memory(cache.pool, observer), BAD_OPTION, "no callback");

    what_was_removed_is_not_called_any_more(cache.pool);
    OK(millpond_free(cache.pool, block, NULL));
    OK(millpond_pool_release(cache.pool));
    OK(millpond_context_release(context));
    return 0;
}
