/* A CUstream for which a handle is registered is the handle's stream, for every thread, until the last handle is released;
 * then it is somebody's, as before. */
#include "check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

enum { THREADS = 4, PAIRS = 20 };

static int rounds = 200;

static millpond_context *context;
static millpond_pool *pool;
static void *raw;
static atomic_int going;

static void pairs(millpond_any_stream stream, int count) {
    while (count-- > 0) {
        void *block;
        OK(millpond_alloc(pool, 4096, stream, &block));
        OK(millpond_free(pool, block, stream));
    }
}

/* Blocks that a thread freed on one name of the stream it gets on the other. */
static void both_names_are_one_stream(void) {
    millpond_stream *one, *two;
    void *first, *again;
    OK(millpond_stream_register(context, raw, &one));
    OK(millpond_stream_register(context, raw, &two));
    pairs(raw, PAIRS);
    OK(millpond_alloc(pool, 4096, raw, &first));
    OK(millpond_free(pool, first, one));
    OK(millpond_alloc(pool, 4096, two, &again));
    CHECK(first == again);
    OK(millpond_free(pool, again, raw));
    OK(millpond_stream_release(one));
    OK(millpond_alloc(pool, 4096, raw, &again));
    CHECK(first == again);
    OK(millpond_free(pool, again, two));
    CHECK(millpond_free(pool, again, one) != MILLPOND_STATUS_OK);
    OK(millpond_stream_release(two));
    pairs(raw, PAIRS);
}

static void *use(void *nothing) {
    while (atomic_load(&going)) pairs(raw, PAIRS);
    return nothing;
}

/* Threads use the CUstream while its registrations come and go. */
static void registrations_come_and_go(void) {
    pthread_t threads[THREADS];
    int at;
    atomic_store(&going, 1);
    for (at = 0; at < THREADS; ++at) CHECK(pthread_create(&threads[at], NULL, use, NULL) == 0);
    for (at = 0; at < rounds; ++at) {
        millpond_stream *registered;
        OK(millpond_stream_register(context, raw, &registered));
        pairs(raw, PAIRS);
        OK(millpond_stream_release(registered));
    }
    atomic_store(&going, 0);
    for (at = 0; at < THREADS; ++at) CHECK(pthread_join(threads[at], NULL) == 0);
}

/* A workspace keeps its stream registered. */
static void a_workspace_outlives_the_handle(void) {
    millpond_stream *registered;
    millpond_workspace *workspace;
    void *block;
    OK(millpond_stream_register(context, raw, &registered));
    OK(millpond_workspace_create(pool, 4096, registered, &workspace));
    OK(millpond_stream_release(registered));
    OK(millpond_workspace_alloc(workspace, 100, &block));
    OK(millpond_workspace_release(workspace));
}

int main(int count, char **arguments) {
    /* Under valgrind, threads take turns: a round takes a tenth of a second. */
    if (count == 2 && strcmp(arguments[1], "briefly") == 0) rounds = 40;
    millpond_stream *own;
    OK(millpond_context_host(&context));
    OK(millpond_pool_create(context, NULL, &pool));
    OK(millpond_stream_create(context, &own));
    OK(millpond_stream_raw(own, &raw));
    pairs(own, PAIRS);
    both_names_are_one_stream();
    registrations_come_and_go();
    a_workspace_outlives_the_handle();
    OK(millpond_pool_check(pool));
    OK(millpond_stream_release(own));
    OK(millpond_pool_release(pool));
    OK(millpond_context_release(context));
    return 0;
}
