/* A random program of driver calls: `random SEED STEPS THREADS`. It prints what each call answered, without addresses. So it prints
   the same whoever serves it. */

#define _GNU_SOURCE
#include "check.h"

#include <pthread.h>
#include <stdarg.h>
#include <string.h>

enum kind { PLAIN, PITCHED, ASYNC, POOLED, MANAGED, PINNED, KINDS };

struct block {
    CUdeviceptr at;
    size_t bytes;
    enum kind kind;
    unsigned char pattern;
    unsigned long long number; /* 0 until it was asked for */
};

enum { BLOCKS = 24, STREAMS = 3, TEXT = 1 << 20 };

struct program {
    uint64_t random;
    int steps, is_alone;
    CUcontext context;
    CUstream streams[STREAMS];
    CUmemoryPool pool;
    struct block blocks[BLOCKS];
    char *text;
    size_t length;
};

static uint64_t any(struct program *p, uint64_t below) {
    p->random = p->random * 6364136223846793005u + 1442695040888963407u;
    return (p->random >> 33) % below;
}

__attribute__((format(printf, 2, 3))) static void say(struct program *p, const char *format, ...) {
    va_list rest;
    va_start(rest, format);
    p->length += vsnprintf(p->text + p->length, TEXT - p->length, format, rest);
    va_end(rest);
    CHECK(p->length < TEXT);
}

static CUstream any_stream(struct program *p) { return any(p, 4) ? p->streams[any(p, STREAMS)] : NULL; }

static void fill(struct block *block) {
    unsigned char *bytes = (unsigned char *)block->at;
    bytes[0] = bytes[block->bytes / 2] = bytes[block->bytes - 1] = block->pattern;
}

static void is_filled(const struct block *block) {
    const unsigned char *bytes = (const unsigned char *)block->at;
    CHECK(bytes[0] == block->pattern && bytes[block->bytes / 2] == block->pattern && bytes[block->bytes - 1] == block->pattern);
}

static struct block *any_block(struct program *p) {
    struct block *block = &p->blocks[any(p, BLOCKS)];
    return block->at ? block : NULL;
}

static void allocate(struct program *p) {
    struct block *block = &p->blocks[any(p, BLOCKS)];
    if (block->at) return;
    static const size_t most[] = {4096, 65536, 4 * MIB, 20 * MIB};
    struct block new = {.bytes = 1 + any(p, most[any(p, 4)]), .kind = any(p, KINDS), .pattern = any(p, 256)};
    size_t pitch = 0, height = 1 + any(p, 9);
    CUresult code;
    switch (new.kind) {
    case PLAIN: code = cuMemAlloc_v2(&new.at, new.bytes); break;
    case PITCHED:
        code = cuMemAllocPitch_v2(&new.at, &pitch, new.bytes / height + 1, height, 4);
        new.bytes = pitch * height;
        break;
    case ASYNC: code = cuMemAllocAsync(&new.at, new.bytes, any_stream(p)); break;
    case POOLED: code = cuMemAllocFromPoolAsync(&new.at, new.bytes, p->pool, any_stream(p)); break;
    case MANAGED: code = cuMemAllocManaged(&new.at, new.bytes, 1); break;
    default: code = cuMemHostAlloc((void **)&new.at, new.bytes, 0); break;
    }
    say(p, "allocate %d %zu: %d\n", new.kind, new.bytes, code);
    if (code) return;
    fill(&new);
    *block = new;
}

static CUresult free_it(struct program *p, enum kind kind, CUdeviceptr at) {
    if (kind == PINNED) return cuMemFreeHost((void *)at);
    return kind != MANAGED && any(p, 2) ? cuMemFreeAsync(at, any_stream(p)) : cuMemFree_v2(at);
}

static void free_one(struct program *p) {
    struct block *block = any_block(p);
    if (!block) return;
    is_filled(block);
    CUdeviceptr at = block->at;
    enum kind kind = block->kind;
    /* A pointer into it frees nothing. */
    if (kind != PINNED && block->bytes > 512 && !any(p, 4)) say(p, "free inside: %d\n", free_it(p, kind, at + 256));
    block->at = 0;
    say(p, "free %d: %d\n", kind, free_it(p, kind, at));
    /* Twice: another thread may have got the address. */
    if (p->is_alone && kind != PINNED && !any(p, 4)) say(p, "free again: %d\n", free_it(p, kind, at));
}

static void ask(struct program *p) {
    struct block *block = any_block(p);
    if (!block || block->kind == PINNED || block->kind == MANAGED) return;
    CUdeviceptr at = block->at + any(p, block->bytes), start = 0;
    size_t bytes = 0;
    unsigned long long number = 0, handle = 0;
    unsigned values[3] = {0};
    int which[3] = {2, 6, 14};
    void *to[3] = {&values[0], &values[1], &values[2]};
    say(p, "range: %d", cuMemGetAddressRange_v2(&start, &bytes, at));
    say(p, " %d %zu", start == block->at, bytes);
    say(p, " %d", cuPointerGetAttributes(3, which, to, at));
    say(p, " %u %u %u", values[0], values[1] & 255, values[2]);
    say(p, " %d", cuPointerGetAttribute(&number, 7, at));
    say(p, " %s", !block->number ? "new" : block->number == number ? "same" : "another");
    block->number = number;
    say(p, " %d\n", cuMemRetainAllocationHandle(&handle, (void *)at));
    if (!any(p, 4)) {
        unsigned is_on = any(p, 2);
        say(p, "synchronous: %d\n", cuPointerSetAttribute(&is_on, 6, at));
    }
    /* Behind its last byte there may be another block. */
    is_filled(block);
}

static void streams(struct program *p) {
    CUstream *stream = &p->streams[any(p, STREAMS)];
    switch (any(p, 4)) {
    case 0: say(p, "synchronize: %d\n", cuStreamSynchronize(*stream)); break;
    case 1: say(p, "synchronize all: %d\n", p->is_alone ? cuCtxSynchronize() : 0); break;
    case 2: standin_work(*stream); break;
    default:
        say(p, "destroy: %d\n", cuStreamDestroy_v2(*stream));
        CHECK(!cuStreamCreate(stream, 1));
    }
}

/* What is allocated in a capture is the graph's. Another thread's waits would end it. */
static void capture(struct program *p) {
    CUstream stream = p->streams[any(p, STREAMS)];
    CUgraph graph;
    CUdeviceptr at = 0;
    struct block *block = any_block(p);
    if (!p->is_alone) return;
    say(p, "begin: %d\n", cuStreamBeginCapture_v2(stream, 2));
    say(p, "allocate in it: %d\n", cuMemAllocAsync(&at, 1 + any(p, MIB), stream));
    if (block && block->kind < POOLED) {
        say(p, "free in it: %d\n", cuMemFreeAsync(block->at, stream));
        if (any(p, 2)) {
            say(p, "free beside it: %d\n", cuMemFree_v2(block->at));
            block->at = 0;
        }
    }
    say(p, "free what is its: %d\n", cuMemFreeAsync(at, stream));
    if (any(p, 4)) {
        say(p, "end: %d\n", cuStreamEndCapture(stream, &graph));
        return;
    }
    for (int each = 0; each < STREAMS; each++) {
        if (p->streams[each] != stream) continue;
        say(p, "destroyed: %d\n", cuStreamDestroy_v2(stream));
        CHECK(!cuStreamCreate(&p->streams[each], 1));
    }
}

static void pools(struct program *p) {
    uint64_t threshold = any(p, 3) ? any(p, 64) * MIB : ~(uint64_t)0;
    if (any(p, 2)) say(p, "trim: %d\n", cuMemPoolTrimTo(p->pool, any(p, 8) * MIB));
    if (any(p, 2)) say(p, "threshold: %d\n", cuMemPoolSetAttribute(p->pool, 4, &threshold));
    threshold = 0;
    say(p, "threshold: %d", cuMemPoolGetAttribute(p->pool, 4, &threshold));
    say(p, " %llu\n", (unsigned long long)threshold);
}

static void pages(struct program *p) {
    int props[8] = {1, 0, 1, 0}, access[3] = {1, 0, 3};
    unsigned long long handle, again = 0;
    CUdeviceptr at;
    size_t bytes = (1 + any(p, 4)) * 2 * MIB;
    CHECK(!cuMemAddressReserve(&at, bytes, 0, 0, 0));
    say(p, "create: %d\n", cuMemCreate(&handle, bytes, props, 0));
    say(p, "map: %d\n", cuMemMap(at, bytes, 0, handle, 0));
    say(p, "access: %d\n", cuMemSetAccess(at, bytes, access, 1));
    say(p, "retain: %d\n", cuMemRetainAllocationHandle(&again, (void *)(at + any(p, bytes))));
    say(p, "release: %d", cuMemRelease(handle));
    say(p, " %d %d\n", again == handle, cuMemRelease(again));
    *(unsigned char *)at = 1;
    say(p, "unmap: %d\n", cuMemUnmap(at, bytes));
}

static void contexts(struct program *p) {
    CUcontext own;
    CUdeviceptr at = 0;
    say(p, "context: %d\n", cuCtxCreate_v2(&own, 0, 0));
    say(p, "allocate there: %d\n", cuMemAlloc_v2(&at, 1 + any(p, MIB)));
    if (any(p, 2)) say(p, "free there: %d\n", cuMemFree_v2(at));
    say(p, "destroy: %d\n", cuCtxDestroy_v2(own));
    CHECK(!cuCtxSetCurrent(p->context));
}

static void begin(struct program *p) {
    int props[32] = {1, 0, 1, 0};
    CHECK(!cuDevicePrimaryCtxRetain(&p->context, 0) && !cuCtxSetCurrent(p->context));
    for (int each = 0; each < STREAMS; each++) CHECK(!cuStreamCreate(&p->streams[each], 1));
    CHECK(!cuMemPoolCreate(&p->pool, props));
}

/* The context ends with all that is there, but for memory of the host. */
static void end_context(struct program *p) {
    if (!p->is_alone || any(p, 8)) return;
    if (any(p, 2)) {
        say(p, "reset: %d\n", cuDevicePrimaryCtxReset_v2(0));
        say(p, "release: %d\n", cuDevicePrimaryCtxRelease_v2(0));
    } else {
        say(p, "release: %d\n", cuDevicePrimaryCtxRelease_v2(0));
    }
    for (int each = 0; each < BLOCKS; each++) {
        if (p->blocks[each].kind != PINNED) p->blocks[each].at = 0;
    }
    begin(p);
}

static void nonsense(struct program *p) {
    CUdeviceptr at = 0;
    say(p, "nonsense: %d", cuMemFree_v2(0x12345));
    say(p, " %d", cuMemFreeAsync(0x12345, any_stream(p)));
    say(p, " %d", cuMemAlloc_v2(&at, 0));
    say(p, " %d", cuMemAlloc_v2(&at, (size_t)1 << 50));
    say(p, " %d\n", cuMemAllocAsync(&at, ~(size_t)0, any_stream(p)));
}

static void *run(void *data) {
    struct program *p = data;
    static void (*const steps[])(struct program *) = {
        allocate, allocate, allocate, allocate, free_one, free_one, free_one, ask, ask, streams, capture, pools, pages, contexts,
        end_context, nonsense,
    };
    begin(p);
    for (int step = 0; step < p->steps; step++) steps[any(p, sizeof steps / sizeof *steps)](p);
    for (int each = 0; each < BLOCKS; each++) {
        struct block *block = &p->blocks[each];
        if (!block->at) continue;
        is_filled(block);
        say(p, "free %d: %d\n", block->kind, free_it(p, block->kind, block->at));
    }
    return NULL;
}

int main(int count, char **arguments) {
    enum { MOST = 8 };
    CHECK(count == 4);
    int threads = atoi(arguments[3]);
    struct program programs[MOST] = {0};
    pthread_t all[MOST];
    CHECK(!cuInit(0) && threads <= MOST);
    for (int at = 0; at < threads; at++) {
        struct program *p = &programs[at];
        *p = (struct program){.random = strtoull(arguments[1], NULL, 10) * 8 + at, .steps = atoi(arguments[2]), .is_alone = threads == 1};
        CHECK((p->text = malloc(TEXT)) && !pthread_create(&all[at], NULL, run, p));
    }
    for (int at = 0; at < threads; at++) {
        CHECK(!pthread_join(all[at], NULL));
        fwrite(programs[at].text, 1, programs[at].length, stdout);
    }
    return 0;
}
