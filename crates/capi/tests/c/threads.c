/* Threads share a pool, and handles may be released while other threads are inside calls with them. */
#include "check.h"
#include <pthread.h>
#include <stdatomic.h>

static millpond_context *context;
static millpond_pool *pool;
static _Atomic(millpond_pool *) shared_pool;
static _Atomic(millpond_stream *) shared_stream;
static atomic_bool done;

static void *allocate_and_free(void *unused) {
    millpond_stream *stream;
    void *blocks[16] = {NULL};
    int turn;

    (void)unused;
    OK(millpond_stream_create(context, &stream));
    for (turn = 0; turn < 2000; ++turn) {
        void **place = &blocks[turn * 7 % 16];
        OK(millpond_free(pool, *place, stream));
        OK(millpond_alloc(pool, (size_t)(turn % 50 + 1) * 1000, stream, place));
    }
    for (turn = 0; turn < 16; ++turn) {
        OK(millpond_free(pool, blocks[turn], stream));
    }
    /* Each thread has an error of its own. */
    CHECK(strcmp(millpond_last_error(), "") == 0);
    OK(millpond_stream_release(stream));
    return NULL;
}

static void *use_what_may_be_released(void *unused) {
    (void)unused;
    while (!atomic_load(&done)) {
        void *block = NULL;
        millpond_pool *mine = atomic_load(&shared_pool);
        millpond_stream *stream = atomic_load(&shared_stream);
        millpond_status status = MILLPOND_STATUS_OK;
        /* Pairs, which leave the general path as soon as they repeat. */
        while (status == MILLPOND_STATUS_OK && !atomic_load(&done)) {
            status = millpond_alloc(mine, 100, stream, &block);
            CHECK(status == MILLPOND_STATUS_OK || status == MILLPOND_STATUS_RELEASED_HANDLE);
            if (status == MILLPOND_STATUS_OK) {
                status = millpond_free(mine, block, stream);
                CHECK(status == MILLPOND_STATUS_OK || status == MILLPOND_STATUS_RELEASED_HANDLE);
                if (status == MILLPOND_STATUS_RELEASED_HANDLE) {
                    OK(millpond_context_free(context, block, NULL));
                }
            }
        }
    }
    return NULL;
}

static void *release_under_them(void *unused) {
    int turn;

    (void)unused;
    for (turn = 0; turn < 60; ++turn) {
        millpond_pool *next_pool, *old_pool;
        millpond_stream *next_stream, *old_stream;
        OK(millpond_pool_create(context, NULL, &next_pool));
        OK(millpond_stream_create(context, &next_stream));
        old_pool = atomic_exchange(&shared_pool, next_pool);
        old_stream = atomic_exchange(&shared_stream, next_stream);
        OK(millpond_stream_release(old_stream));
        OK(millpond_pool_release(old_pool));
        /* Pools whose last block was freed after their release go now; valgrind has little address space. */
        OK(millpond_context_synchronize(context));
    }
    atomic_store(&done, 1);
    return NULL;
}

/* To another thread than its own, a default stream's handle would mean that thread's. */
static void *use_anothers_default_stream(void *stream) {
    char byte = 1;
    int32_t answer;
    millpond_event *event;
    void *block;

    OK(millpond_alloc(pool, 1, stream, &block));
    FAILS(millpond_stream_synchronize(context, stream), DEVICE_INVALID, "another thread's default stream");
    FAILS(millpond_stream_is_idle(context, stream, &answer), DEVICE_INVALID, "another thread's");
    FAILS(millpond_stream_record(context, stream, &event), DEVICE_INVALID, "another thread's");
    FAILS(millpond_memset(context, block, 0, 1, stream), DEVICE_INVALID, "another thread's");
    FAILS(millpond_copy_from_host(context, block, &byte, 1, stream), DEVICE_INVALID, "another thread's");
    FAILS(millpond_copy_to_host(context, &byte, block, 1, stream), DEVICE_INVALID, "another thread's");
    OK(millpond_free(pool, block, stream));
    return NULL;
}

static void share_a_default_stream(void) {
    millpond_stream *stream;
    pthread_t thread;

    OK(millpond_stream_register(context, (void *)2, &stream));
    CHECK(pthread_create(&thread, NULL, use_anothers_default_stream, stream) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    OK(millpond_stream_synchronize(context, stream));
    OK(millpond_stream_release(stream));
}

int main(void) {
    pthread_t threads[4];
    millpond_stats stats = {.size = sizeof stats};
    millpond_pool *first;
    millpond_stream *stream;
    size_t index;

    OK(millpond_context_host(&context));
    OK(millpond_pool_create(context, NULL, &pool));
    for (index = 0; index < 4; ++index) {
        CHECK(pthread_create(&threads[index], NULL, allocate_and_free, NULL) == 0);
    }
    for (index = 0; index < 4; ++index) {
        CHECK(pthread_join(threads[index], NULL) == 0);
    }
    OK(millpond_pool_stats(pool, &stats));
    CHECK(stats.allocations == 8000 && stats.frees == 8000 && stats.blocks.current == 0);
    OK(millpond_pool_check(pool));
    share_a_default_stream();

    OK(millpond_pool_create(context, NULL, &first));
    OK(millpond_stream_create(context, &stream));
    atomic_store(&shared_pool, first);
    atomic_store(&shared_stream, stream);
    CHECK(pthread_create(&threads[0], NULL, release_under_them, NULL) == 0);
    for (index = 1; index < 4; ++index) {
        CHECK(pthread_create(&threads[index], NULL, use_what_may_be_released, NULL) == 0);
    }
    for (index = 0; index < 4; ++index) {
        CHECK(pthread_join(threads[index], NULL) == 0);
    }
    OK(millpond_stream_release(atomic_load(&shared_stream)));
    OK(millpond_pool_release(atomic_load(&shared_pool)));
    OK(millpond_pool_release(pool));
    OK(millpond_context_release(context));
    return 0;
}
