/* Every function does what the header says, on the host and the simulated device. */
#include "check.h"

static millpond_stats stats_of(millpond_pool *pool) {
    millpond_stats stats = {.size = sizeof stats};
    OK(millpond_pool_stats(pool, &stats));
    return stats;
}

static void contexts(void) {
    millpond_context *context, *again, *own, *sim;
    millpond_pool *pool, *current;
    millpond_stream *stream;
    millpond_device_properties properties = {.size = sizeof properties};
    millpond_host_options host;
    millpond_sim_options options;
    size_t free_bytes = 0, total_bytes = 0, length = 0;
    char name[8];
    void *block;

    OK(millpond_context_host(&context));
    OK(millpond_context_host(&again));
    OK(millpond_context_properties(context, &properties));
    CHECK(properties.kind == MILLPOND_DEVICE_KIND_HOST && properties.granularity == 2 << 20);
    CHECK(strcmp(properties.name, "CPU") == 0 && properties.size == sizeof properties);
    OK(millpond_context_memory_info(context, &free_bytes, &total_bytes));
    CHECK(total_bytes == properties.total_memory && free_bytes <= total_bytes);
    OK(millpond_context_memory_info(context, NULL, NULL));

    /* Both contexts are the same device. */
    OK(millpond_stream_create(again, &stream));
    OK(millpond_context_default_pool(context, &pool));
    OK(millpond_alloc(pool, 1000, stream, &block));
    OK(millpond_context_free(again, block, stream));
    OK(millpond_context_current_pool(again, &current));
    OK(millpond_pool_name(current, name, sizeof name, &length));
    CHECK(length == 7 && strcmp(name, "default") == 0);
    OK(millpond_pool_name(current, name, 4, NULL));
    CHECK(strcmp(name, "def") == 0);
    OK(millpond_pool_name(current, NULL, 0, &length));
    OK(millpond_pool_release(current));
    OK(millpond_stream_release(stream));
    OK(millpond_pool_release(pool));
    OK(millpond_context_release(again));

    OK(millpond_host_options_init(&host, sizeof host));
    host.capacity = 64 << 20;
    OK(millpond_context_host_with(&host, &own));
    OK(millpond_context_properties(own, &properties));
    CHECK(properties.total_memory == 64 << 20);
    OK(millpond_context_default_pool(own, &pool));
    FAILS(millpond_context_set_current_pool(context, pool), WRONG_DEVICE, "another device");
    OK(millpond_context_set_current_pool(own, pool));
    OK(millpond_context_set_current_pool(own, NULL));
    OK(millpond_pool_release(pool));
    OK(millpond_context_synchronize(own));
    OK(millpond_context_release(own));

    OK(millpond_sim_options_init(&options, sizeof options));
    OK(millpond_context_sim(&options, &sim));
    OK(millpond_context_properties(sim, &properties));
    CHECK(properties.kind == MILLPOND_DEVICE_KIND_SIM && properties.total_memory == options.capacity);
    OK(millpond_context_release(sim));
    OK(millpond_context_sim(NULL, &sim));
    OK(millpond_context_release(sim));
    OK(millpond_context_host_with(NULL, &own));
    OK(millpond_context_release(own));
    OK(millpond_context_release(context));
}

static void add_one(void *data) { ++*(int *)data; }

static void streams_and_events(void) {
    millpond_context *context;
    millpond_stream *a, *b, *registered;
    millpond_event *event;
    int32_t answer = -1;
    int turns = 0;
    uint64_t id_a, id_b;
    void *raw;

    OK(millpond_context_host(&context));
    OK(millpond_stream_create(context, &a));
    OK(millpond_stream_create(context, &b));
    OK(millpond_stream_id(a, &id_a));
    OK(millpond_stream_id(b, &id_b));
    CHECK(id_a != id_b);
    OK(millpond_stream_raw(a, &raw));
    OK(millpond_stream_register(context, raw, &registered));
    OK(millpond_stream_id(registered, &id_b));
    CHECK(id_a == id_b);
    OK(millpond_stream_release(registered));

    OK(millpond_host_launch(context, a, add_one, &turns));
    OK(millpond_stream_record(context, a, &event));
    OK(millpond_stream_wait(context, b, event));
    OK(millpond_host_launch(context, b, add_one, &turns));
    OK(millpond_stream_synchronize(context, b));
    CHECK(turns == 2);
    OK(millpond_event_query(event, &answer));
    CHECK(answer == 1);
    OK(millpond_event_synchronize(event));
    OK(millpond_event_raw(event, &raw));
    CHECK(raw != NULL);
    OK(millpond_event_release(event));
    OK(millpond_stream_wait_for(context, a, b));
    OK(millpond_stream_synchronize(context, a));
    OK(millpond_stream_is_idle(context, a, &answer));
    CHECK(answer == 1);
    OK(millpond_stream_synchronize(context, NULL));
    OK(millpond_stream_release(a));
    OK(millpond_stream_release(b));
    OK(millpond_context_release(context));
}

static void memory(void) {
    millpond_context *context;
    millpond_pool *pool;
    millpond_stream *a, *b;
    void *block, *other, *raw;
    char bytes[256];
    size_t size = 0, released = 0;

    OK(millpond_context_host(&context));
    OK(millpond_pool_create(context, NULL, &pool));
    OK(millpond_stream_create(context, &a));
    OK(millpond_stream_create(context, &b));
    OK(millpond_alloc(pool, 0, a, &block));
    CHECK(block == NULL);
    OK(millpond_free(pool, NULL, a));

    OK(millpond_alloc_aligned(pool, 100, 1 << 20, a, &block));
    CHECK((uintptr_t)block % (1 << 20) == 0);
    OK(millpond_size_of(pool, NULL, &size));
    CHECK(size == 0);
    OK(millpond_size_of(pool, block, &size));
    CHECK(size == 100);
    OK(millpond_free(pool, block, a));

    OK(millpond_alloc_zeroed(pool, sizeof bytes, a, &block));
    OK(millpond_alloc(pool, sizeof bytes, a, &other));
    OK(millpond_copy(context, other, block, sizeof bytes, a));
    memset(bytes, 1, sizeof bytes);
    OK(millpond_copy_to_host(context, bytes, other, sizeof bytes, a));
    CHECK(bytes[0] == 0 && bytes[255] == 0);
    memset(bytes, 5, sizeof bytes);
    OK(millpond_copy_from_host(context, block, bytes, sizeof bytes, a));
    memset(bytes, 0, sizeof bytes);
    OK(millpond_copy_to_host(context, bytes, block, sizeof bytes, a));
    CHECK(bytes[0] == 5 && bytes[255] == 5);
    OK(millpond_copy_to_host(context, NULL, block, 0, a));
    OK(millpond_pool_memset(pool, block, 6, sizeof bytes, a));
    OK(millpond_pool_copy_from_host(pool, (char *)block + 1, bytes, 1, a));
    OK(millpond_pool_copy_to_host(pool, bytes, block, sizeof bytes, a));
    CHECK(bytes[0] == 6 && bytes[1] == 5 && bytes[255] == 6);
    OK(millpond_pool_copy_to_host(pool, NULL, block, 0, a));
    OK(millpond_record_use(pool, block, b));
    OK(millpond_record_use(pool, NULL, b));
    OK(millpond_free(pool, block, a));

    /* The driver's own handle, the default stream and the thread's are taken as well. */
    OK(millpond_stream_raw(b, &raw));
    OK(millpond_free(pool, other, raw));
    OK(millpond_alloc(pool, 1000, raw, &block));
    OK(millpond_free(pool, block, NULL));
    OK(millpond_alloc(pool, 1000, (void *)1, &block));
    OK(millpond_free(pool, block, (void *)2));

    OK(millpond_context_synchronize(context));
    OK(millpond_pool_trim(pool, 0, &released));
    CHECK(released > 0 && stats_of(pool).reserved.current == 0);
    OK(millpond_pool_trim(pool, 0, NULL));
    OK(millpond_pool_check(pool));
    OK(millpond_pool_release(pool));
    OK(millpond_stream_release(a));
    OK(millpond_stream_release(b));
    OK(millpond_context_release(context));
}

static void pools(void) {
    millpond_context *context;
    millpond_pool *pool, *second;
    millpond_budget *budget, *share;
    millpond_pool_options options;
    void *block;
    uint64_t value;
    size_t limit = 0, held = 0;

    OK(millpond_context_sim(NULL, &context));
    OK(millpond_budget_create(64 << 20, &budget));
    OK(millpond_budget_fraction(context, 0.5, &share));
    OK(millpond_budget_read(share, &limit, NULL));
    CHECK(limit == (size_t)70 << 30);
    OK(millpond_pool_options_init(&options, sizeof options));
    CHECK(options.size == sizeof options && options.hard_limit == SIZE_MAX && options.growth_allowance == SIZE_MAX);
    options.name = "small";
    options.budget = budget;
    options.smallest_page = 4 << 20;
    options.largest_page = 8 << 20;
    options.min_alignment = 256;
    options.growth_allowance = 0;
    options.release_threshold = 16 << 20;
    options.reuse = MILLPOND_REUSE_OPPORTUNISTIC;
    OK(millpond_pool_create(context, &options, &pool));
    OK(millpond_budget_release(share));

    OK(millpond_pool_get(pool, MILLPOND_ATTRIBUTE_REUSE, &value));
    CHECK(value == MILLPOND_REUSE_OPPORTUNISTIC);
    OK(millpond_pool_set(pool, MILLPOND_ATTRIBUTE_REUSE, MILLPOND_REUSE_ALL));
    OK(millpond_pool_get(pool, MILLPOND_ATTRIBUTE_REUSE, &value));
    CHECK(value == MILLPOND_REUSE_ALL);
    OK(millpond_pool_get(pool, MILLPOND_ATTRIBUTE_RELEASE_THRESHOLD, &value));
    CHECK(value == 16 << 20);
    OK(millpond_pool_set(pool, MILLPOND_ATTRIBUTE_RELEASE_THRESHOLD, 0));
    OK(millpond_alloc(pool, 300, NULL, &block));
    OK(millpond_budget_read(budget, NULL, &held));
    CHECK(held == 4 << 20);
    OK(millpond_pool_get(pool, MILLPOND_ATTRIBUTE_USED_CURRENT, &value));
    CHECK(value == 512);
    OK(millpond_pool_get(pool, MILLPOND_ATTRIBUTE_RESERVED_CURRENT, &value));
    CHECK(value == 4 << 20);
    OK(millpond_free(pool, block, NULL));
    OK(millpond_context_synchronize(context));
    OK(millpond_pool_get(pool, MILLPOND_ATTRIBUTE_RESERVED_CURRENT, &value));
    CHECK(value == 0);
    OK(millpond_pool_get(pool, MILLPOND_ATTRIBUTE_RESERVED_HIGH, &value));
    CHECK(value == 4 << 20);
    OK(millpond_pool_set(pool, MILLPOND_ATTRIBUTE_RESERVED_HIGH, 0));
    OK(millpond_pool_get(pool, MILLPOND_ATTRIBUTE_RESERVED_HIGH, &value));
    CHECK(value == 0);
    OK(millpond_pool_reset_high_water(pool));
    OK(millpond_pool_get(pool, MILLPOND_ATTRIBUTE_USED_HIGH, &value));
    CHECK(value == 0);

    /* Destroyed with a live block; its memory goes back when that is freed. */
    OK(millpond_context_set_current_pool(context, pool));
    OK(millpond_context_current_pool(context, &second));
    OK(millpond_context_set_current_pool(context, NULL));
    OK(millpond_alloc(pool, 300, NULL, &block));
    FAILS(millpond_pool_destroy(pool), LIVE_BLOCKS, "live blocks (1, ");
    FAILS(millpond_alloc(second, 1, NULL, &block), POOL_DESTROYED, "build another pool");
    CHECK(block == NULL);
    OK(millpond_pool_release(pool));
    OK(millpond_pool_release(second));
    OK(millpond_budget_release(budget));
    OK(millpond_context_release(context));
}

static void workspaces(void) {
    millpond_context *context;
    millpond_pool *pool;
    millpond_workspace *workspace;
    void *a, *b;
    size_t capacity, used, high;

    OK(millpond_context_host(&context));
    OK(millpond_pool_create(context, NULL, &pool));
    OK(millpond_workspace_create(pool, 4096, NULL, &workspace));
    OK(millpond_workspace_alloc(workspace, 1000, &a));
    OK(millpond_workspace_alloc(workspace, 1000, &b));
    CHECK((char *)b - (char *)a == 1024);
    FAILS(millpond_workspace_alloc(workspace, 4096, &b), WORKSPACE_FULL, "reset it");
    OK(millpond_workspace_read(workspace, &capacity, &used, NULL));
    CHECK(capacity == 4096 && used == 2048);
    OK(millpond_workspace_reset(workspace));
    OK(millpond_workspace_read(workspace, NULL, &used, &high));
    CHECK(used == 0 && high == 2048);
    OK(millpond_workspace_alloc(workspace, 1000, &b));
    CHECK(a == b);
    OK(millpond_workspace_release(workspace));
    CHECK(stats_of(pool).blocks.current == 0);
    OK(millpond_pool_release(pool));
    OK(millpond_context_release(context));
}

int main(void) {
    CHECK(strcmp(millpond_version(), "0.1.0") == 0);
    CHECK(millpond_last_status() == MILLPOND_STATUS_OK);
    contexts();
    streams_and_events();
    memory();
    pools();
    workspaces();
    return 0;
}
