/* Every mistake is answered with its status and a message, and changes nothing. */
#include "check.h"

static millpond_context *context;
static millpond_pool *pool;
static millpond_stream *stream;

static void null_and_garbage(void) {
    void *const garbage[] = {NULL,           (void *)1,           (void *)0x1234,  (void *)&pool, (void *)-1,
                             (void *)stream, (void *)0x4400000000000000, (void *)(0x4400000100000000 + 0xffffff)};
    millpond_stream *again;
    void *block;
    size_t index, size;
    int32_t answer;
    uint64_t value;

    for (index = 0; index < sizeof garbage / sizeof *garbage; ++index) {
        millpond_pool *no_pool = garbage[index];
        millpond_context *no_context = garbage[index];
        millpond_event *event;
        millpond_stats stats = {.size = sizeof stats};
        CHECK(millpond_alloc(no_pool, 1, stream, &block) != MILLPOND_STATUS_OK);
        CHECK(block == NULL);
        CHECK(millpond_free(no_pool, NULL, stream) != MILLPOND_STATUS_OK);
        CHECK(millpond_record_use(no_pool, NULL, stream) != MILLPOND_STATUS_OK);
        CHECK(millpond_size_of(no_pool, NULL, &size) != MILLPOND_STATUS_OK);
        CHECK(millpond_pool_release(no_pool) != MILLPOND_STATUS_OK);
        CHECK(millpond_pool_destroy(no_pool) != MILLPOND_STATUS_OK);
        CHECK(millpond_pool_trim(no_pool, 0, NULL) != MILLPOND_STATUS_OK);
        CHECK(millpond_pool_check(no_pool) != MILLPOND_STATUS_OK);
        CHECK(millpond_pool_get(no_pool, 1, &value) != MILLPOND_STATUS_OK);
        CHECK(millpond_pool_set(no_pool, 1, 0) != MILLPOND_STATUS_OK);
        CHECK(millpond_pool_stats(no_pool, &stats) != MILLPOND_STATUS_OK);
        CHECK(millpond_pool_name(no_pool, NULL, 0, NULL) != MILLPOND_STATUS_OK);
        CHECK(millpond_context_release(no_context) != MILLPOND_STATUS_OK);
        CHECK(millpond_context_synchronize(no_context) != MILLPOND_STATUS_OK);
        CHECK(millpond_context_memory_info(no_context, NULL, NULL) != MILLPOND_STATUS_OK);
        CHECK(millpond_stream_record(no_context, stream, &event) != MILLPOND_STATUS_OK);
        CHECK(millpond_event_query(garbage[index], &answer) != MILLPOND_STATUS_OK);
        CHECK(millpond_event_release(garbage[index]) != MILLPOND_STATUS_OK);
        CHECK(millpond_budget_release(garbage[index]) != MILLPOND_STATUS_OK);
        CHECK(millpond_workspace_reset(garbage[index]) != MILLPOND_STATUS_OK);
        CHECK(millpond_workspace_release(garbage[index]) != MILLPOND_STATUS_OK);
    }
    FAILS(millpond_stream_release(NULL), NULL_ARGUMENT, "`stream` is null");
    FAILS(millpond_alloc(NULL, 1, stream, &block), NULL_ARGUMENT, "`pool` is null");
    FAILS(millpond_alloc((void *)&pool, 1, stream, &block), INVALID_HANDLE, "not a handle of a pool");
    FAILS(millpond_alloc((void *)stream, 1, stream, &block), INVALID_HANDLE, "a handle of a stream");
    FAILS(millpond_alloc(pool, 1, pool, &block), INVALID_HANDLE, "pass one of a stream");
    FAILS(millpond_alloc(pool, 1, (void *)0xdead00, &block), DEVICE_INVALID, "stream");
    FAILS(millpond_alloc(pool, 1, stream, NULL), NULL_ARGUMENT, "`out` is null");
    FAILS(millpond_stream_register(context, stream, &again), BAD_OPTION, "registered already");
    FAILS(millpond_context_host(NULL), NULL_ARGUMENT, "`out` is null");
    FAILS(millpond_host_launch(context, stream, NULL, NULL), NULL_ARGUMENT, "`work` is null");
    FAILS(millpond_pool_on_reclaim(pool, NULL, NULL, &value), NULL_ARGUMENT, "`reclaim` is null");
    FAILS(millpond_pool_name(pool, NULL, 4, NULL), NULL_ARGUMENT, "`name` is null");
    FAILS(millpond_copy_to_host(context, NULL, NULL, 4, stream), NULL_ARGUMENT, "`to` is null");
    FAILS(millpond_copy_from_host(context, NULL, NULL, 4, stream), NULL_ARGUMENT, "`from` is null");
    FAILS(millpond_pool_copy_to_host(pool, NULL, NULL, 4, stream), NULL_ARGUMENT, "`to` is null");
    FAILS(millpond_pool_copy_from_host(pool, NULL, NULL, 4, stream), NULL_ARGUMENT, "`from` is null");
    FAILS(millpond_pool_memset(NULL, NULL, 0, 4, stream), NULL_ARGUMENT, "`pool` is null");
}

static void released_handles(void) {
    millpond_stream *old, *other;
    millpond_pool *gone;
    void *block;

    OK(millpond_stream_create(context, &old));
    OK(millpond_stream_release(old));
    FAILS(millpond_stream_release(old), RELEASED_HANDLE, "was released");
    OK(millpond_stream_create(context, &other));
    CHECK(old != other);
    FAILS(millpond_alloc(pool, 1, old, &block), RELEASED_HANDLE, "do not use a handle after its release");
    OK(millpond_stream_release(other));
    OK(millpond_pool_create(context, NULL, &gone));
    OK(millpond_pool_release(gone));
    FAILS(millpond_pool_release(gone), RELEASED_HANDLE, "pool");
}

/* Where a thread remembered pools that are gone, it finds none whatever it asks for. */
static void garbage_where_pools_were(void) {
    void *const garbage[] = {NULL, (void *)1, (void *)2, (void *)3, (void *)-1};
    millpond_pool *gone[4];
    void *block;
    size_t index;
    int round;

    for (index = 0; index < sizeof gone / sizeof *gone; ++index) OK(millpond_pool_create(context, NULL, &gone[index]));
    for (index = 0; index < sizeof gone / sizeof *gone; ++index) {
        for (round = 0; round < 4; ++round) {
            OK(millpond_alloc(gone[index], 512, NULL, &block));
            OK(millpond_free(gone[index], block, NULL));
        }
    }
    for (index = 0; index < sizeof gone / sizeof *gone; ++index) OK(millpond_pool_release(gone[index]));
    for (index = 0; index < sizeof garbage / sizeof *garbage; ++index) {
        CHECK(millpond_alloc(garbage[index], 512, NULL, &block) != MILLPOND_STATUS_OK);
        CHECK(block == NULL);
        CHECK(millpond_free(garbage[index], NULL, NULL) != MILLPOND_STATUS_OK);
    }
}

/* Those that a thread used last it finds by a shorter way, which must see that they are gone, or another's. */
static void handles_that_were_used_last(void) {
    millpond_stream *old, *next;
    millpond_pool *gone, *heir;
    void *block;
    int round;

    OK(millpond_pool_create(context, NULL, &gone));
    OK(millpond_stream_create(context, &old));
    for (round = 0; round < 4; ++round) {
        OK(millpond_alloc(gone, 512, old, &block));
        OK(millpond_free(gone, block, old));
        FAILS(millpond_free(gone, block, old), DOUBLE_FREE, "free");
        CHECK(millpond_alloc(NULL, 512, old, &block) == MILLPOND_STATUS_NULL_ARGUMENT);
        CHECK(millpond_alloc((void *)old, 512, old, &block) == MILLPOND_STATUS_INVALID_HANDLE);
        CHECK(millpond_alloc(gone, 512, (void *)gone, &block) == MILLPOND_STATUS_INVALID_HANDLE);
    }
    OK(millpond_stream_release(old));
    FAILS(millpond_alloc(gone, 512, old, &block), RELEASED_HANDLE, "released");
    OK(millpond_stream_create(context, &next));
    FAILS(millpond_alloc(gone, 512, old, &block), RELEASED_HANDLE, "released");
    for (round = 0; round < 4; ++round) {
        OK(millpond_alloc(gone, 512, next, &block));
        OK(millpond_free(gone, block, next));
    }
    OK(millpond_pool_release(gone));
    FAILS(millpond_alloc(gone, 512, next, &block), RELEASED_HANDLE, "released");
    OK(millpond_pool_create(context, NULL, &heir));
    FAILS(millpond_free(gone, NULL, next), RELEASED_HANDLE, "released");
    OK(millpond_pool_release(heir));
    OK(millpond_stream_release(next));
}

/* A thread may use several pools and streams by turns, and the way to each must end with it. */
static void what_was_used_by_turns_and_released(void) {
    enum { MANY = 5 };
    millpond_pool *pools[MANY];
    millpond_stream *streams[MANY];
    millpond_stats stats = {.size = sizeof stats};
    void *block;
    int round, a, b;

    for (a = 0; a < MANY; ++a) {
        OK(millpond_pool_create(context, NULL, &pools[a]));
        OK(millpond_stream_create(context, &streams[a]));
    }
    for (round = 0; round < 4; ++round) {
        for (a = 0; a < MANY; ++a) {
            for (b = 0; b <= MANY; ++b) {
                /* The default stream, too. */
                millpond_stream *stream = b == MANY ? NULL : streams[b];
                OK(millpond_alloc(pools[a], 512, stream, &block));
                OK(millpond_free(pools[a], block, stream));
                OK(millpond_alloc(pools[a], 512, stream, &block));
                OK(millpond_free(pools[a], block, stream));
            }
        }
    }
    for (a = 0; a < MANY; ++a) {
        OK(millpond_pool_stats(pools[a], &stats));
        CHECK(stats.allocations == 2 * 4 * (MANY + 1) && stats.frees == stats.allocations);
        OK(millpond_pool_release(pools[a]));
        for (b = 0; b < MANY; ++b) {
            FAILS(millpond_alloc(pools[a], 512, streams[b], &block), RELEASED_HANDLE, "pool");
            FAILS(millpond_alloc(NULL, 512, streams[b], &block), NULL_ARGUMENT, "pool");
        }
        FAILS(millpond_alloc(pools[a], 512, NULL, &block), RELEASED_HANDLE, "pool");
        FAILS(millpond_free(NULL, block, NULL), NULL_ARGUMENT, "pool");
    }
    for (a = 0; a < MANY; ++a) {
        OK(millpond_stream_release(streams[a]));
    }
}

static void pointers(void) {
    millpond_pool *other;
    void *block, *none;

    OK(millpond_alloc(pool, 1000, stream, &block));
    FAILS(millpond_free(pool, (char *)block + 8, stream), INTERIOR_POINTER, "8 bytes inside");
    FAILS(millpond_free(pool, &other, stream), FOREIGN_POINTER, "was not allocated by");
    FAILS(millpond_context_free(context, &other, stream), FOREIGN_POINTER, "any");
    OK(millpond_pool_create(context, NULL, &other));
    FAILS(millpond_free(other, block, stream), WRONG_POOL, "belongs to pool 'mine'");
    OK(millpond_pool_release(other));
    OK(millpond_free(pool, block, stream));
    FAILS(millpond_free(pool, block, stream), DOUBLE_FREE, "was freed already");
    FAILS(millpond_record_use(pool, block, stream), DOUBLE_FREE, "was freed already");
    FAILS(millpond_alloc(pool, SIZE_MAX, stream, &none), SIZE_OVERFLOW, "check how the size");
    FAILS(millpond_alloc_aligned(pool, 8, 3, stream, &none), BAD_ALIGNMENT, "power of two");
    FAILS(millpond_alloc_aligned(pool, 8, 0, stream, &none), BAD_ALIGNMENT, "power of two");
}

static void other_devices(void) {
    millpond_context *elsewhere;
    millpond_stream *theirs;
    millpond_event *event;
    void *block;

    OK(millpond_context_sim(NULL, &elsewhere));
    OK(millpond_stream_create(elsewhere, &theirs));
    FAILS(millpond_alloc(pool, 1, theirs, &block), WRONG_DEVICE, "another device");
    OK(millpond_stream_record(elsewhere, theirs, &event));
    FAILS(millpond_stream_wait(context, stream, event), DEVICE_INVALID, "another context");
    FAILS(millpond_host_launch(elsewhere, theirs, free, NULL), DEVICE_UNSUPPORTED, "does not support");
    OK(millpond_event_release(event));
    OK(millpond_stream_release(theirs));
    OK(millpond_context_release(elsewhere));
    FAILS(millpond_context_cuda(-1, &elsewhere), BAD_OPTION, "numbered from 0");
    CHECK(millpond_context_cuda(99, &elsewhere) == MILLPOND_STATUS_DEVICE_UNAVAILABLE && elsewhere == NULL);
}

static void structs(void) {
    struct {
        millpond_pool_options options;
        uint64_t newer;
    } longer;
    millpond_pool_options options = {.size = 0};
    millpond_stats stats = {.size = 1};
    millpond_pool *made;
    millpond_budget *budget;
    uint64_t value;

    FAILS(millpond_pool_create(context, &options, &made), BAD_OPTION, "millpond_pool_options");
    CHECK(made == NULL);
    options.size = 1 << 20;
    FAILS(millpond_pool_create(context, &options, &made), BAD_OPTION, "sizeof");
    FAILS(millpond_pool_stats(pool, &stats), BAD_OPTION, "sizeof");
    FAILS(millpond_pool_stats(pool, NULL), NULL_ARGUMENT, "`stats` is null");
    FAILS(millpond_pool_options_init(NULL, sizeof options), NULL_ARGUMENT, "`options` is null");
    FAILS(millpond_pool_options_init(&options, 3), BAD_OPTION, "3 bytes");
    /* Half of a pointer is none. */
    options.size = offsetof(millpond_pool_options, name) + 4;
    FAILS(millpond_pool_create(context, &options, &made), BAD_OPTION, "12 bytes");
    FAILS(millpond_pool_options_init(&options, 12), BAD_OPTION, "12 bytes");

    /* An older program's struct ends after the name; a newer one's has more fields. */
    OK(millpond_pool_options_init(&options, offsetof(millpond_pool_options, hard_limit)));
    CHECK(options.size == offsetof(millpond_pool_options, hard_limit));
    OK(millpond_pool_create(context, &options, &made));
    OK(millpond_pool_release(made));
    OK(millpond_pool_options_init(&longer.options, sizeof longer));
    OK(millpond_pool_create(context, &longer.options, &made));
    OK(millpond_pool_release(made));
    longer.newer = 1;
    FAILS(millpond_pool_create(context, &longer.options, &made), BAD_OPTION, "does not know");
    stats.size = offsetof(millpond_stats, allocated);
    stats.allocated.current = 99;
    OK(millpond_pool_stats(pool, &stats));
    CHECK(stats.allocated.current == 99);

    OK(millpond_pool_options_init(&options, sizeof options));
    options.reuse = 8;
    FAILS(millpond_pool_create(context, &options, &made), BAD_OPTION, "MILLPOND_REUSE");
    options.reuse = MILLPOND_REUSE_ALL;
    options.min_alignment = 100;
    FAILS(millpond_pool_create(context, &options, &made), BAD_OPTION, "min_alignment");
    options.min_alignment = 512;
    options.largest_page = 1;
    FAILS(millpond_pool_create(context, &options, &made), BAD_OPTION, "page_sizes");
    options.largest_page = 0;
    options.name = "\xff\xfe";
    FAILS(millpond_pool_create(context, &options, &made), BAD_TEXT, "UTF-8");
    options.name = NULL;
    options.budget = (void *)7;
    FAILS(millpond_pool_create(context, &options, &made), INVALID_HANDLE, "budget");
    FAILS(millpond_budget_fraction(context, 1.5, &budget), BAD_OPTION, "between 0 and 1");
    FAILS(millpond_pool_get(pool, 77, &value), BAD_OPTION, "millpond_attribute");
    FAILS(millpond_pool_set(pool, MILLPOND_ATTRIBUTE_USED_CURRENT, 0), BAD_OPTION, "only be read");
    FAILS(millpond_pool_set(pool, MILLPOND_ATTRIBUTE_USED_HIGH, 5), BAD_OPTION, "to 0 only");
    FAILS(millpond_pool_set(pool, MILLPOND_ATTRIBUTE_REUSE, (uint64_t)1 << 32), BAD_OPTION, "MILLPOND_REUSE_");
    FAILS(millpond_pool_remove_reclaim(pool, 12), BAD_OPTION, "12");
}

static void names(void) {
    CHECK(strcmp(millpond_status_name(MILLPOND_STATUS_DOUBLE_FREE), "double free") == 0);
    CHECK(strcmp(millpond_status_name(-5), "unknown status") == 0);
}

int main(void) {
    millpond_pool_options options;
    millpond_stats stats = {.size = sizeof stats};

    OK(millpond_context_host(&context));
    OK(millpond_pool_options_init(&options, sizeof options));
    options.name = "mine";
    OK(millpond_pool_create(context, &options, &pool));
    OK(millpond_stream_create(context, &stream));
    null_and_garbage();
    released_handles();
    garbage_where_pools_were();
    handles_that_were_used_last();
    what_was_used_by_turns_and_released();
    pointers();
    other_devices();
    structs();
    names();
    OK(millpond_pool_stats(pool, &stats));
    CHECK(stats.allocations == 1 && stats.frees == 1);
    OK(millpond_pool_check(pool));
    OK(millpond_stream_release(stream));
    OK(millpond_pool_release(pool));
    OK(millpond_context_release(context));
    return 0;
}
