/* A forked child: every call with its parent's handles answers at once, and a context of its own works. */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

enum { CHILDREN = 20, MIB = 1 << 20 };

static millpond_context *context;
static millpond_pool *pool;
static millpond_stream *stream;
static millpond_workspace *workspace;
static void *block;
static atomic_int done;

/* Has the locks nearly always. */
static void *keep_busy(void *unused) {
    (void)unused;
    while (!atomic_load(&done)) {
        void *mine;
        OK(millpond_alloc(pool, 5 * MIB, stream, &mine));
        OK(millpond_free(pool, mine, stream));
        OK(millpond_pool_trim(pool, 0, NULL));
        millpond_stream *other;
        OK(millpond_stream_create(context, &other));
        OK(millpond_stream_release(other));
        millpond_context *host;
        OK(millpond_context_host(&host));
        OK(millpond_context_release(host));
        size_t used;
        OK(millpond_workspace_read(workspace, NULL, &used, NULL));
    }
    return NULL;
}

static int32_t asked(size_t bytes, void *data) {
    (void)bytes;
    (void)data;
    return 0;
}

static void every_call_is_refused(void) {
    void *mine;
    size_t size;
    uint64_t id;
    millpond_stream *other;
    FAILS(millpond_alloc(pool, 4096, stream, &mine), FORKED, "forked");
    FAILS(millpond_alloc(pool, 5 * MIB, NULL, &mine), FORKED, "spawn");
    FAILS(millpond_free(pool, block, stream), FORKED, "forked");
    FAILS(millpond_size_of(pool, block, &size), FORKED, "forked");
    FAILS(millpond_pool_trim(pool, 0, NULL), FORKED, "forked");
    FAILS(millpond_pool_on_reclaim(pool, asked, NULL, &id), FORKED, "forked");
    FAILS(millpond_stream_create(context, &other), FORKED, "forked");
    FAILS(millpond_stream_synchronize(context, stream), FORKED, "forked");
    FAILS(millpond_workspace_alloc(workspace, 16, &mine), FORKED, "forked");
    FAILS(millpond_workspace_reset(workspace), FORKED, "forked");
    FAILS(millpond_memset(context, block, 0, 16, NULL), FORKED, "forked");
    FAILS(millpond_pool_memset(pool, block, 0, 16, NULL), FORKED, "forked");
    uint64_t held;
    OK(millpond_pool_get(pool, MILLPOND_ATTRIBUTE_RESERVED_CURRENT, &held));
}

static void release_all(void) {
    OK(millpond_workspace_release(workspace));
    OK(millpond_pool_release(pool));
    OK(millpond_stream_release(stream));
    OK(millpond_context_release(context));
}

static void use_own(void) {
    millpond_context *host;
    millpond_pool *own;
    void *mine;
    OK(millpond_context_host(&host));
    OK(millpond_pool_create(host, NULL, &own));
    for (int i = 0; i < 100; i++) {
        OK(millpond_alloc(own, 4096, NULL, &mine));
        OK(millpond_memset(host, mine, 7, 4096, NULL));
        OK(millpond_free(own, mine, NULL));
    }
    OK(millpond_context_synchronize(host));
    OK(millpond_pool_release(own));
    OK(millpond_context_release(host));
}

static void do_nothing(void) {}

/* The child ends as programs do, and soon. */
static void fork_and(void (*child)(void)) {
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        child();
        exit(0);
    }
    struct timespec moment = {.tv_nsec = 1000000};
    for (int i = 0; i < 20000; i++) {
        int status;
        if (waitpid(pid, &status, WNOHANG) == pid) {
            CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
            return;
        }
        nanosleep(&moment, NULL);
    }
    kill(pid, SIGKILL);
    CHECK(!"the child ends");
}

int main(void) {
    OK(millpond_context_host(&context));
    OK(millpond_pool_create(context, NULL, &pool));
    OK(millpond_stream_create(context, &stream));
    OK(millpond_workspace_create(pool, MIB, stream, &workspace));
    OK(millpond_alloc(pool, 4096, stream, &block));
    /* So that the calling thread has a way of its own to its blocks. */
    for (int i = 0; i < 10; i++) {
        void *mine;
        OK(millpond_alloc(pool, 4096, stream, &mine));
        OK(millpond_free(pool, mine, stream));
    }
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        CHECK(pthread_create(&threads[i], NULL, keep_busy, NULL) == 0);
    }
    for (int i = 0; i < CHILDREN; i++) {
        fork_and(do_nothing);
        fork_and(every_call_is_refused);
        fork_and(release_all);
        fork_and(use_own);
    }
    atomic_store(&done, 1);
    for (int i = 0; i < 2; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
    }
    OK(millpond_free(pool, block, stream));
    OK(millpond_pool_check(pool));
    release_all();
    return 0;
}
