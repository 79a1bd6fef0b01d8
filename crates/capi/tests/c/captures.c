/* Captures have memory of their own, which stays until the last handle of it is released. */
#include "check.h"

static millpond_context *context;
static millpond_pool *pool;
static millpond_stream *stream, *other;

static size_t reserved_by_pool(void) {
    uint64_t bytes;
    OK(millpond_pool_get(pool, MILLPOND_ATTRIBUTE_RESERVED_CURRENT, &bytes));
    return (size_t)bytes;
}

static void memory_stays_until_it_is_released(void) {
    millpond_capture *capture;
    size_t reserved, used;
    void *scratch, *again, *beside, *output;

    OK(millpond_capture_create(pool, &capture));
    OK(millpond_capture_begin(capture, stream));
    OK(millpond_alloc(pool, 4 << 20, stream, &scratch));
    OK(millpond_free(pool, scratch, stream));
    OK(millpond_alloc(pool, 4 << 20, stream, &again));
    CHECK(again == scratch);
    OK(millpond_alloc(pool, 1 << 20, stream, &output));
    OK(millpond_alloc(pool, 4 << 20, other, &beside));
    OK(millpond_capture_read(capture, &reserved, &used));
    CHECK(used == 5 << 20 && reserved >= used && reserved_by_pool() >= reserved + (4 << 20));
    OK(millpond_free(pool, again, stream));
    OK(millpond_free(pool, beside, other));
    OK(millpond_capture_end(capture));

    /* Nothing that the pool does takes the memory. */
    OK(millpond_alloc(pool, 4 << 20, stream, &again));
    CHECK(again != scratch);
    OK(millpond_free(pool, again, stream));
    OK(millpond_context_synchronize(context));
    OK(millpond_pool_trim(pool, 0, NULL));
    OK(millpond_capture_read(capture, &reserved, NULL));
    CHECK(reserved_by_pool() == reserved);

    OK(millpond_capture_release(capture));
    CHECK(reserved_by_pool() < reserved && reserved_by_pool() >= 1 << 20);
    OK(millpond_free(pool, output, stream));
    OK(millpond_context_synchronize(context));
    OK(millpond_pool_trim(pool, 0, NULL));
    CHECK(reserved_by_pool() == 0);
    OK(millpond_pool_check(pool));
}

static void handles_share_memory(void) {
    millpond_capture *first, *second;
    void *block;
    size_t held, used;

    OK(millpond_capture_create(pool, &first));
    OK(millpond_capture_share(first, &second));
    OK(millpond_capture_begin(first, stream));
    FAILS(millpond_capture_begin(second, stream), CAPTURE_UNDER_WAY, "already in a capture");
    OK(millpond_alloc(pool, 2 << 20, stream, &block));
    OK(millpond_free(pool, block, stream));
    /* A release ends what began through the handle. */
    OK(millpond_capture_release(first));
    OK(millpond_capture_begin(second, other));
    OK(millpond_alloc(pool, 2 << 20, other, &block));
    OK(millpond_capture_read(second, &held, &used));
    CHECK(held == 2 << 20 && used == 2 << 20);
    OK(millpond_free(pool, block, other));
    OK(millpond_capture_end(second));
    OK(millpond_capture_release(second));
    CHECK(reserved_by_pool() == 0);
}

static int32_t takes(void *raw, void *data) { return raw == *(void **)data; }

static void a_filter_decides(void) {
    millpond_capture *capture;
    void *raw, *ordinary, *captured;
    size_t used;

    OK(millpond_stream_raw(other, &raw));
    OK(millpond_capture_create(pool, &capture));
    OK(millpond_capture_begin_where(capture, takes, &raw));
    OK(millpond_alloc(pool, 1 << 20, stream, &ordinary));
    OK(millpond_alloc(pool, 1 << 20, raw, &captured));
    OK(millpond_capture_read(capture, NULL, &used));
    CHECK(used == 1 << 20);
    OK(millpond_capture_end(capture));
    OK(millpond_free(pool, ordinary, stream));
    OK(millpond_free(pool, captured, raw));
    OK(millpond_capture_release(capture));
}

static void mistakes(void) {
    millpond_capture *capture, *none = (millpond_capture *)pool;

    FAILS(millpond_capture_create(NULL, &capture), NULL_ARGUMENT, "pool");
    CHECK(capture == NULL);
    FAILS(millpond_capture_create(pool, NULL), NULL_ARGUMENT, "out");
    FAILS(millpond_capture_begin(none, stream), INVALID_HANDLE, "a pool");
    OK(millpond_capture_create(pool, &capture));
    FAILS(millpond_capture_end(capture), BAD_OPTION, "nothing began");
    FAILS(millpond_capture_begin_where(capture, NULL, NULL), NULL_ARGUMENT, "takes");
    FAILS(millpond_capture_share(capture, NULL), NULL_ARGUMENT, "out");
    OK(millpond_capture_read(capture, NULL, NULL));
    OK(millpond_capture_release(capture));
    FAILS(millpond_capture_release(capture), RELEASED_HANDLE, "capture");
    FAILS(millpond_capture_begin(NULL, stream), NULL_ARGUMENT, "capture");
}

int main(void) {
    OK(millpond_context_host(&context));
    OK(millpond_pool_create(context, NULL, &pool));
    OK(millpond_stream_create(context, &stream));
    OK(millpond_stream_create(context, &other));
    memory_stays_until_it_is_released();
    handles_share_memory();
    a_filter_decides();
    mistakes();
    OK(millpond_stream_release(stream));
    OK(millpond_stream_release(other));
    OK(millpond_pool_release(pool));
    OK(millpond_context_release(context));
    return 0;
}
