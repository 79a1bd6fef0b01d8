/* A program that is linked with libcuda.so.1. Its argument names what it does. */

#define _GNU_SOURCE
#include "check.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static CUcontext begin(void) {
    CUcontext context;
    CHECK(!cuInit(0));
    CHECK(!cuDevicePrimaryCtxRetain(&context, 0));
    CHECK(!cuCtxSetCurrent(context));
    return context;
}

static CUdeviceptr allocated(size_t bytes) {
    CUdeviceptr at = 0;
    CHECK(!cuMemAlloc_v2(&at, bytes));
    memset((void *)at, 7, bytes);
    return at;
}

static CUstream created(void) {
    CUstream stream;
    CHECK(!cuStreamCreate(&stream, 1));
    return stream;
}

static void pairs(void) {
    CUstream stream = created();
    for (int turn = 0; turn < 100; turn++) {
        CUdeviceptr at = 0, pitched = 0;
        size_t pitch = 0;
        CHECK(!cuMemAllocAsync(&at, 3 * MIB, stream));
        memset((void *)at, turn, 3 * MIB);
        CHECK(!cuMemFreeAsync(at, turn % 2 ? stream : NULL));
        CHECK(!cuMemFree_v2(allocated(5000)));
        CHECK(!cuMemAllocPitch_v2(&pitched, &pitch, 1000, 10, 4) && pitch >= 1000);
        memset((void *)pitched, turn, pitch * 10);
        CHECK(!cuMemFree_v2(pitched));
    }
    CHECK(!cuStreamDestroy_v2(stream));
    CHECK(standin_calls("cuMemAlloc_v2") + standin_calls("cuMemAllocAsync") + standin_calls("cuMemFree_v2") == 0);
    CHECK(standin_calls("cuMemCreate") > 0);
}

/* Memory that no pool has is the driver's to free, and what is freed twice is an error. */
static void mistakes(void) {
    CHECK(cuMemFree_v2(0x12345) == CUDA_ERROR_INVALID_VALUE && standin_calls("cuMemFree_v2") == 1);
    CHECK(cuMemFreeAsync(0x12345, NULL) == CUDA_ERROR_INVALID_VALUE && standin_calls("cuMemFreeAsync") == 1);
    CUdeviceptr at = allocated(MIB), start;
    size_t bytes;
    CHECK(cuMemFree_v2(0) == CUDA_ERROR_INVALID_VALUE && standin_calls("cuMemFree_v2") == 2);
    CHECK(cuMemFreeAsync(0, NULL) == CUDA_ERROR_INVALID_VALUE && standin_calls("cuMemFreeAsync") == 2);
    CHECK(cuMemGetAddressRange_v2(&start, &bytes, 0) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemFree_v2(at + 512) == CUDA_ERROR_INVALID_VALUE);
    CHECK(!cuMemFree_v2(at));
    CHECK(cuMemFree_v2(at) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemAlloc_v2(&at, 0) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemAlloc_v2(&at, (size_t)1 << 50) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(cuMemAlloc_v2(&at, ~(size_t)0) == CUDA_ERROR_OUT_OF_MEMORY);
}

/* cuMemFree waits for the GPU. */
static void waits(void) {
    CUstream stream = created();
    CUdeviceptr at = allocated(MIB);
    standin_work(stream);
    CHECK(!cuMemFree_v2(at));
    CHECK(standin_is_idle(stream) == !getenv("MILLPOND_RUN_ASYNC_FREE"));
}

/* cuMemAlloc gives memory that no stream's work uses any more. */
static void ready(void) {
    CUstream stream = created();
    CUdeviceptr at;
    CHECK(!cuMemAllocAsync(&at, 2 * MIB, stream));
    standin_work(stream);
    CHECK(!cuMemFreeAsync(at, stream));
    CUdeviceptr next = allocated(2 * MIB);
    CHECK(next != at || standin_is_idle(stream));
}

static void answers(void) {
    CUdeviceptr at = allocated(10 * MIB), start = 0;
    size_t bytes = 0, left, total;
    CHECK(!cuMemGetAddressRange_v2(&start, &bytes, at + 5000));
    CHECK(start == at && bytes == 10 * MIB);
    void *range = NULL;
    CHECK(!cuPointerGetAttribute(&range, 11, at + 5000) && (CUdeviceptr)range == at);
    unsigned kind = 0;
    CHECK(!cuPointerGetAttribute(&kind, 2, at) && kind == 2);
    CHECK(!cuMemGetInfo_v2(&left, &total) && total == 1024 * MIB && left == total - 10 * MIB);
    CHECK(!cuMemFree_v2(at));
    CHECK(!cuMemGetInfo_v2(&left, &total) && left == total); /* what the pool has ready is free */
    CUdeviceptr managed;
    CHECK(!cuMemAllocManaged(&managed, MIB, 1) && !cuMemFree_v2(managed));
    CHECK(cuMemGetAddressRange_v2(&start, &bytes, at) == CUDA_ERROR_INVALID_VALUE);
}

/* After a request that a pool cannot serve, cuMemAlloc is the driver's. */
static void ipc(void) {
    char handle[64];
    CUdeviceptr at = allocated(MIB);
    if (getenv("MILLPOND_RUN_IPC")) {
        CHECK(!cuIpcGetMemHandle(handle, at) && standin_calls("cuMemAlloc_v2") == 1);
        CHECK(!cuMemFree_v2(at));
        return;
    }
    CHECK(cuIpcGetMemHandle(handle, at) == CUDA_ERROR_NOT_SUPPORTED);
    CUdeviceptr shared = allocated(MIB);
    CHECK(!cuIpcGetMemHandle(handle, shared));
    CHECK(standin_calls("cuMemAlloc_v2") == 1);
    CHECK(!cuMemFree_v2(shared) && !cuMemFree_v2(at));
}

static void pools(void) {
    CUmemoryPool own, of_host;
    uint64_t used = 0, most = 0, threshold = 4 * MIB;
    int props[32] = {1, 0, 1, 0}, host[32] = {1, 0, 2, 0};
    CUdeviceptr at;
    CUstream stream = created();
    CHECK(!cuMemPoolCreate(&own, props) && !cuMemPoolCreate(&of_host, host));
    CHECK(!cuMemAllocFromPoolAsync(&at, 3 * MIB, own, stream));
    CHECK(standin_calls("cuMemAllocFromPoolAsync") == 0);
    CHECK(!cuMemPoolGetAttribute(own, 7, &used) && used == 3 * MIB);
    CHECK(!cuMemFreeAsync(at, stream));
    CHECK(!cuMemPoolGetAttribute(own, 7, &used) && used == 0);
    CHECK(!cuMemPoolGetAttribute(own, 8, &most) && most >= 3 * MIB);
    CHECK(!cuMemPoolSetAttribute(own, 4, &threshold));
    CHECK(!cuMemPoolTrimTo(own, 0) && standin_calls("cuMemRelease") > 0);
    CHECK(!cuMemAllocFromPoolAsync(&at, MIB, of_host, stream));
    CHECK(standin_calls("cuMemAllocFromPoolAsync") == 1);
    CHECK(!cuMemFreeAsync(at, stream) && standin_calls("cuMemFreeAsync") == 1);
    /* A pool for other processes is a GPU's current one for a while. */
    CUmemoryPool shared, by_default;
    int for_others[32] = {1, 1, 1, 0}, gpu[2] = {1, 0};
    CHECK(!cuMemPoolCreate(&shared, for_others) && !cuDeviceGetDefaultMemPool(&by_default, 0));
    CHECK(!cuDeviceSetMemPool(0, shared) && !cuMemAllocAsync(&at, MIB, stream));
    CHECK(standin_calls("cuMemAllocAsync") == 1 && !cuMemFreeAsync(at, stream));
    CHECK(!cuMemSetMemPool(gpu, 1, by_default) && !cuMemAllocAsync(&at, MIB, stream));
    CHECK(standin_calls("cuMemAllocAsync") == 1 && !cuMemFreeAsync(at, stream));
    CHECK(!cuMemSetMemPool(gpu, 1, shared) && !cuMemAllocAsync(&at, MIB, stream));
    CHECK(standin_calls("cuMemAllocAsync") == 2 && !cuMemFreeAsync(at, stream) && !cuMemPoolDestroy(shared));
    CHECK(!cuMemAllocAsync(&at, MIB, stream) && standin_calls("cuMemAllocAsync") == 2);
    CHECK(!cuMemPoolDestroy(own) && !cuMemPoolDestroy(of_host));
}

/* What is allocated in a capture is the graph's. Memory that is freed during one is freed after it. */
static void captures(void) {
    CUstream stream = created(), other = created();
    CUgraph graph;
    CUdeviceptr before = allocated(MIB), at;
    CHECK(!cuStreamBeginCapture_v2(stream, 0));
    CHECK(!cuMemAllocAsync(&at, MIB, stream) && standin_calls("cuMemAllocAsync") == 1);
    CHECK(!cuMemFreeAsync(at, stream) && standin_calls("cuMemFreeAsync") == 1);
    CHECK(cuMemFreeAsync(before, stream) == CUDA_ERROR_INVALID_VALUE);
    CHECK(!cuMemAllocAsync(&at, MIB, other) && standin_calls("cuMemAllocAsync") == 1);
    CHECK(!cuMemFreeAsync(at, other));
    CHECK(!cuMemFree_v2(before));
    CHECK(!cuStreamEndCapture(stream, &graph));
    CHECK(!cuMemAllocAsync(&at, MIB, stream) && standin_calls("cuMemAllocAsync") == 1);
    CHECK(!cuMemFreeAsync(at, stream));
}

/* Memory of a context that the program made itself is the driver's. */
static void contexts(void) {
    CUcontext own;
    CHECK(!cuCtxCreate_v2(&own, 0, 0));
    CUdeviceptr at = allocated(MIB);
    CHECK(standin_calls("cuMemAlloc_v2") == 1);
    CHECK(!cuMemFree_v2(at) && standin_calls("cuMemFree_v2") == 1);
}

/* A GPU that may use another one's memory may use its pool's. */
static void peers(void) {
    CUcontext first = begin(), second;
    CHECK(!cuDevicePrimaryCtxRetain(&second, 1) && !cuCtxSetCurrent(second));
    allocated(MIB);
    CHECK(!cuCtxEnablePeerAccess(first, 0) && standin_granted(0, 1) == 0);
    begin();
    allocated(MIB);
    CHECK(standin_granted(0, 1) > 0 && standin_granted(1, 0) == 0);
}

/* A reset ends all memory, and the next use begins anew. */
static void reset(void) {
    CUstream stream = created();
    CUdeviceptr at;
    CHECK(!cuMemAllocAsync(&at, MIB, stream));
    allocated(MIB);
    CHECK(!cuDevicePrimaryCtxReset_v2(0));
    begin();
    CHECK(!cuMemFree_v2(allocated(MIB)) && standin_calls("cuMemAlloc_v2") == 0);
    /* The default stream needs no stream of the program's. */
    CHECK(!cuMemAllocAsync(&at, MIB, NULL) && !cuMemFreeAsync(at, NULL) && !cuMemAllocAsync(&at, MIB, NULL));
    CHECK(!cuDevicePrimaryCtxReset_v2(0));
    begin();
    CHECK(!cuMemAllocAsync(&at, MIB, NULL) && !cuMemFreeAsync(at, NULL));
}

static void *on_a_stream(void *seed) {
    begin();
    CUstream stream = created();
    CUdeviceptr live[16] = {0};
    unsigned random = (unsigned)(uintptr_t)seed;
    for (int turn = 0; turn < 2000; turn++) {
        random = random * 1664525 + 1013904223;
        int at = random >> 28;
        size_t bytes = 1 + (random >> 8) % (256 * 1024);
        if (live[at]) {
            CHECK(*(unsigned char *)live[at] == at);
            CHECK(!(turn % 8 ? cuMemFreeAsync(live[at], stream) : cuMemFree_v2(live[at])));
            live[at] = 0;
        } else {
            CHECK(!(turn % 16 ? cuMemAllocAsync(&live[at], bytes, stream) : cuMemAlloc_v2(&live[at], bytes)));
            memset((void *)live[at], at, bytes);
        }
    }
    for (int at = 0; at < 16; at++) CHECK(!live[at] || !cuMemFreeAsync(live[at], stream));
    CHECK(!cuStreamDestroy_v2(stream));
    return NULL;
}

static void threads(void) {
    pthread_t all[4];
    for (uintptr_t at = 0; at < 4; at++) CHECK(!pthread_create(&all[at], NULL, on_a_stream, (void *)(at + 1)));
    for (int at = 0; at < 4; at++) CHECK(!pthread_join(all[at], NULL));
    CHECK(standin_calls("cuMemAllocAsync") == 0);
}

/* More than the limit of 100 MiB. */
static void limited(void) {
    size_t left, total;
    CUdeviceptr at = allocated(60 * MIB), managed, more;
    CHECK(!cuMemGetInfo_v2(&left, &total) && total == 100 * MIB && left == 40 * MIB);
    CHECK(!cuMemAllocManaged(&managed, 30 * MIB, 1));
    CHECK(cuMemAlloc_v2(&more, 20 * MIB) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(cuMemAllocManaged(&more, 20 * MIB, 1) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(!cuMemFree_v2(at));
    CHECK(!cuMemAllocManaged(&more, 20 * MIB, 1)); /* in place of what a pool has ready */
    CHECK(!cuMemFree_v2(more) && !cuMemFree_v2(managed));
    CHECK(!cuMemFree_v2(allocated(100 * MIB)));
}

/* All memory is the driver's. */
static void passes(void) {
    CUstream stream = created();
    CUdeviceptr at = allocated(3 * MIB), other;
    CHECK(!cuMemAllocAsync(&other, 2 * MIB, stream));
    CHECK(!cuMemFree_v2(at) && !cuMemFreeAsync(other, stream));
    CHECK(!cuMemFree_v2(allocated(4 * MIB)));
    CHECK(standin_calls("cuMemAlloc_v2") == 2 && standin_calls("cuMemAllocAsync") == 1);
    CHECK(standin_calls("cuMemFree_v2") == 2 && standin_calls("cuMemFreeAsync") == 1 && !standin_calls("cuMemCreate"));
}

static int ended(pid_t child) {
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    return status;
}

/* A child that was forked before the first use has CUDA of its own; one that was forked after it has none. */
static void forks(char *program) {
    pid_t child = fork();
    if (!child) {
        begin();
        allocated(MIB);
        execl(program, program, "pairs", (char *)NULL);
        _exit(1);
    }
    CHECK(!ended(child));
    begin();
    CUdeviceptr at = allocated(MIB);
    if (!(child = fork())) {
        CUdeviceptr more;
        CHECK(cuMemAlloc_v2(&more, MIB));
        exit(0);
    }
    CHECK(!ended(child));
    if (!(child = vfork())) _exit(0);
    CHECK(!ended(child));
    CHECK(!cuMemFree_v2(at));
}

int main(int count, char **arguments) {
    static const struct { const char *name; void (*run)(void); } cases[] = {
        {"pairs", pairs}, {"mistakes", mistakes}, {"waits", waits}, {"ready", ready}, {"answers", answers},
        {"ipc", ipc}, {"pools", pools}, {"captures", captures}, {"contexts", contexts}, {"peers", peers}, {"reset", reset},
        {"threads", threads}, {"limited", limited}, {"passes", passes},
    };
    CHECK(count == 2);
    if (!strcmp(arguments[1], "forks")) return forks(arguments[0]), 0;
    begin();
    if (!strcmp(arguments[1], "leaves")) return allocated(5 * MIB), 0;
    if (!strcmp(arguments[1], "stays")) return allocated(5 * MIB), getchar() != EOF;
    if (!strcmp(arguments[1], "is killed")) allocated(5 * MIB), raise(9);
    if (!strcmp(arguments[1], "leaves at once")) allocated(5 * MIB), _exit(3);
    for (size_t at = 0; at < sizeof cases / sizeof *cases; at++) {
        if (!strcmp(cases[at].name, arguments[1])) return cases[at].run(), 0;
    }
    return 2;
}
