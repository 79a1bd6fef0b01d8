/* A pool is recorded to a file, under tags. What is in the file, crates/replay's tests say. */
#include "check.h"

int main(void) {
    millpond_context *context;
    millpond_pool *pool;
    millpond_recording recording = {.size = sizeof recording};
    const char *folder = getenv("TMPDIR");
    char path[1024], header[8];
    FILE *file;
    void *live, *block;

    snprintf(path, sizeof path, "%s/millpond-capi-%%p.mprec", folder ? folder : "/tmp");
    OK(millpond_context_host(&context));
    OK(millpond_pool_create(context, NULL, &pool));
    OK(millpond_pool_recording(pool, &recording));
    CHECK(recording.recorded == 0 && recording.path[0] == 0);
    OK(millpond_pool_stop_recording(pool, &recording));
    CHECK(recording.recorded == 0);

    OK(millpond_alloc(pool, 1000, NULL, &live));
    OK(millpond_pool_start_recording(pool, path, MILLPOND_RECORD_CALL_SITES));
    OK(millpond_tag_begin("outer"));
    OK(millpond_tag_begin("inner"));
    OK(millpond_alloc(pool, 5000, NULL, &block));
    OK(millpond_tag_end());
    OK(millpond_free(pool, block, NULL));
    OK(millpond_tag_end());
    OK(millpond_pool_recording(pool, &recording));
    CHECK(recording.recorded == 1 && recording.failure[0] == 0);
    OK(millpond_pool_stop_recording(pool, &recording));
    CHECK(recording.recorded == 1 && recording.dropped == 0 && recording.size == sizeof recording);
    CHECK(recording.events >= 2 && recording.bytes > 8);
    file = fopen(recording.path, "rb");
    CHECK(file && fread(header, 1, sizeof header, file) == sizeof header);
    CHECK(memcmp(header, "\x89MPREC\r\n", sizeof header) == 0);
    fclose(file);
    CHECK(remove(recording.path) == 0);
    OK(millpond_free(pool, live, NULL));

    FAILS(millpond_pool_start_recording(pool, NULL, 0), NULL_ARGUMENT, "path");
    FAILS(millpond_pool_start_recording(pool, path, 8), BAD_OPTION, "flags");
    FAILS(millpond_pool_start_recording(NULL, path, 0), NULL_ARGUMENT, "pool");
    FAILS(millpond_pool_start_recording(pool, "/no/such/folder/x.mprec", 0), RECORDING, "/no/such/folder");
    FAILS(millpond_pool_recording(pool, NULL), NULL_ARGUMENT, "recording");
    FAILS(millpond_tag_end(), BAD_OPTION, "no tag");
    FAILS(millpond_tag_begin(NULL), NULL_ARGUMENT, "name");
    FAILS(millpond_tag_begin("\xff"), BAD_TEXT, "name");
    OK(millpond_pool_stop_recording(pool, NULL));
    OK(millpond_pool_release(pool));
    OK(millpond_context_release(context));
    return 0;
}
