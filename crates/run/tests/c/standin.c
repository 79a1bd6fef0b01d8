/* A library that stands for libcuda.so.1 where there is no GPU: two GPUs whose memory is the host's. Work on a stream is only a
   number that counts up; it is done when the host waits for it. */

#define _GNU_SOURCE
#include "cuda.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define GPUS 2
#define GRANULARITY ((size_t)2 << 20)
#define API __attribute__((visibility("default")))
#define ROUNDED(bytes) (((bytes) + GRANULARITY - 1) / GRANULARITY * GRANULARITY)

enum { NOT_INITIALIZED = 3, INVALID_CONTEXT = 201, NOT_FOUND = 500, NOT_READY = 600, CAPTURE_UNSUPPORTED = 900 };

struct context { int device; };
struct event { struct stream *stream; unsigned long at; };
struct stream {
    unsigned long id;
    _Atomic unsigned long given, done;
    int is_captured, waits;
    struct event after[16]; /* what it waits for */
    struct context *context;
    struct stream *next;
};
struct pool { int device; size_t used, most; uint64_t threshold; };

typedef struct block { CUdeviceptr start; size_t bytes; int device; struct pool *pool; struct block *next; } block;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic pid_t is_started; /* by this process: a forked child has no driver */
static block *blocks;
static size_t held[GPUS];
static struct context primary[GPUS] = {{0}, {1}};
static struct pool defaults[GPUS] = {{.device = 0}, {.device = 1}};
static _Atomic int is_active[GPUS];
static struct stream *streams;
static __thread struct context *current;

/* ---- counting calls ---- */

static struct { const char *name; unsigned long calls; } counted[128];

static void count(const char *name) {
    pthread_mutex_lock(&lock);
    for (size_t at = 0; at < sizeof counted / sizeof *counted; at++) {
        if (!counted[at].name) counted[at].name = name;
        if (!strcmp(counted[at].name, name)) {
            counted[at].calls++;
            break;
        }
    }
    pthread_mutex_unlock(&lock);
}

#define COUNT count(__func__)

API unsigned long standin_calls(const char *name) {
    for (size_t at = 0; at < sizeof counted / sizeof *counted && counted[at].name; at++) {
        if (!strcmp(counted[at].name, name)) return counted[at].calls;
    }
    return 0;
}

/* ---- devices and contexts ---- */

static size_t capacity(void) {
    const char *text = getenv("STANDIN_MEMORY");
    return text ? strtoull(text, NULL, 10) : (size_t)1 << 30;
}

API CUresult cuInit(unsigned flags) { is_started = getpid(); return flags ? CUDA_ERROR_INVALID_VALUE : 0; }
API CUresult cuDriverGetVersion(int *version) { *version = 13000; return 0; }
API CUresult cuGetErrorName(CUresult code, const char **text) { (void)code; *text = "CUDA_ERROR"; return 0; }
API CUresult cuGetErrorString(CUresult code, const char **text) { (void)code; *text = "an error"; return 0; }
API CUresult cuDeviceGetCount(int *devices) { *devices = GPUS; return is_started == getpid() ? 0 : NOT_INITIALIZED; }
API CUresult cuDeviceGet(CUdevice *device, int ordinal) { *device = ordinal; return is_started == getpid() ? 0 : NOT_INITIALIZED; }
API CUresult cuDeviceGetName(char *name, int length, CUdevice device) {
    (void)device;
    strncpy(name, "Stand-in", length);
    return 0;
}
API CUresult cuDeviceGetPCIBusId(char *id, int length, CUdevice device) {
    (void)device;
    strncpy(id, "0000:00:00.0", length);
    return 0;
}
API CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) { (void)device; *bytes = capacity(); return 0; }
API CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device) {
    (void)device;
    /* Virtual memory (102), and pools (115). */
    *value = attribute == 102 || attribute == 115;
    return 0;
}
API CUresult cuDeviceGetUuid_v2(void *uuid, CUdevice device) { memset(uuid, device + 1, 16); return 0; }
API CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) { *can = device != peer; return 0; }

API CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    is_active[device] = 1;
    *context = &primary[device];
    return 0;
}
API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) { (void)device; return 0; }
API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
    *flags = 0;
    *active = is_active[device];
    return 0;
}
API CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device) {
    (void)flags;
    *context = calloc(1, sizeof **context);
    (*context)->device = device;
    current = *context;
    return 0;
}
API CUresult cuCtxGetCurrent(CUcontext *context) {
    *context = current;
    return is_started == getpid() ? 0 : NOT_INITIALIZED;
}
API CUresult cuCtxSetCurrent(CUcontext context) { current = context; return 0; }
static __thread struct context *pushed[8];
static __thread int depth;
API CUresult cuCtxPushCurrent_v2(CUcontext context) { pushed[depth++] = current; current = context; return 0; }
API CUresult cuCtxPopCurrent_v2(CUcontext *context) { *context = current; current = pushed[--depth]; return 0; }
API CUresult cuCtxGetDevice(CUdevice *device) {
    if (!current) return INVALID_CONTEXT;
    *device = current->device;
    return 0;
}
API CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) { COUNT; (void)peer, (void)flags; return 0; }

/* ---- streams and events ---- */

static struct stream builtin[3] = {{.id = 1}, {.id = 1}, {.id = 2}};
static struct stream *stream_of(CUstream stream) { return (uintptr_t)stream < 3 ? &builtin[(uintptr_t)stream] : stream; }

API CUresult cuStreamCreate(CUstream *stream, unsigned flags) {
    static unsigned long ids = 16;
    (void)flags;
    *stream = calloc(1, sizeof **stream);
    (*stream)->id = __atomic_fetch_add(&ids, 1, __ATOMIC_RELAXED);
    (*stream)->context = current;
    pthread_mutex_lock(&lock);
    (*stream)->next = streams;
    streams = *stream;
    pthread_mutex_unlock(&lock);
    return 0;
}
API CUresult cuStreamDestroy_v2(CUstream stream) {
    COUNT;
    pthread_mutex_lock(&lock);
    struct stream **at = &streams;
    while (*at && *at != stream) at = &(*at)->next;
    if (*at) *at = stream->next;
    pthread_mutex_unlock(&lock);
    free(stream);
    return 0;
}
API CUresult cuStreamGetId(CUstream stream, unsigned long long *id) { *id = stream_of(stream)->id; return 0; }
API CUresult cuStreamGetCtx(CUstream stream, CUcontext *context) {
    *context = (uintptr_t)stream < 3 ? current : stream->context;
    return 0;
}
API int standin_is_idle(CUstream stream) { return stream_of(stream)->done == stream_of(stream)->given; }
API void standin_work(CUstream stream) { stream_of(stream)->given++; }
API CUresult cuStreamQuery(CUstream stream) { return standin_is_idle(stream) ? 0 : NOT_READY; }
static void finish(struct stream *stream) {
    while (stream->waits) {
        struct event *event = &stream->after[--stream->waits];
        if (event->stream->done < event->at) event->stream->done = event->at;
    }
    stream->done = stream->given;
}
API CUresult cuStreamSynchronize(CUstream stream) { COUNT; finish(stream_of(stream)); return 0; }
API CUresult cuCtxSynchronize(void) {
    COUNT;
    pthread_mutex_lock(&lock);
    int is_captured = 0;
    for (struct stream *at = streams; at; at = at->next) is_captured |= at->is_captured;
    for (struct stream *at = streams; at && !is_captured; at = at->next) finish(at);
    for (int at = 0; at < 3; at++) builtin[at].done = builtin[at].given;
    pthread_mutex_unlock(&lock);
    return is_captured ? CAPTURE_UNSUPPORTED : 0;
}
API CUresult cuStreamIsCapturing(CUstream stream, int *status) { *status = stream_of(stream)->is_captured; return 0; }
API CUresult cuStreamGetCaptureInfo_v2(CUstream stream, int *status, unsigned long long *id, void *a, void *b, void *c) {
    (void)a, (void)b, (void)c;
    *status = stream_of(stream)->is_captured;
    *id = stream_of(stream)->id;
    return 0;
}
API CUresult cuStreamBeginCapture_v2(CUstream stream, int mode) {
    (void)mode;
    stream_of(stream)->is_captured = 1;
    return 0;
}
API CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) {
    stream_of(stream)->is_captured = 0;
    *graph = NULL;
    return 0;
}
API CUresult cuThreadExchangeStreamCaptureMode(int *mode) { *mode = 0; return 0; }
API CUresult cuEventCreate(CUevent *event, unsigned flags) {
    (void)flags;
    *event = calloc(1, sizeof **event);
    return 0;
}
API CUresult cuEventDestroy_v2(CUevent event) { free(event); return 0; }
API CUresult cuEventRecord(CUevent event, CUstream stream) {
    event->stream = stream_of(stream);
    event->at = event->stream->given;
    return 0;
}
API CUresult cuEventQuery(CUevent event) { return !event->stream || event->stream->done >= event->at ? 0 : NOT_READY; }
API CUresult cuEventSynchronize(CUevent event) {
    if (event->stream) event->stream->done = event->stream->given;
    return 0;
}
API CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
    (void)flags;
    stream = stream_of(stream);
    if (!cuEventQuery(event) || stream->waits == 16) return 0;
    stream->given++;
    stream->after[stream->waits++] = *event;
    return 0;
}
API CUresult cuLaunchHostFunc(CUstream stream, void (*function)(void *), void *data) {
    (void)stream;
    function(data);
    return 0;
}
API CUresult cuIpcGetEventHandle(void *handle, CUevent event) { (void)handle, (void)event; return CUDA_ERROR_NOT_SUPPORTED; }
API CUresult cuIpcOpenEventHandle(CUevent *event, const void *handle) {
    (void)event, (void)handle;
    return CUDA_ERROR_NOT_SUPPORTED;
}

/* ---- plain memory ---- */

static int take(int device, size_t bytes) {
    pthread_mutex_lock(&lock);
    int has_room = held[device] + bytes <= capacity();
    if (has_room) held[device] += bytes;
    pthread_mutex_unlock(&lock);
    return has_room;
}

static void give_back(int device, size_t bytes) {
    pthread_mutex_lock(&lock);
    held[device] -= bytes;
    pthread_mutex_unlock(&lock);
}

static CUresult allocate(CUdeviceptr *at, size_t bytes, struct pool *pool) {
    if (is_started != getpid()) return NOT_INITIALIZED;
    if (!current) return INVALID_CONTEXT;
    if (!bytes) return CUDA_ERROR_INVALID_VALUE;
    if (bytes > capacity() || !take(current->device, ROUNDED(bytes))) return CUDA_ERROR_OUT_OF_MEMORY;
    void *memory = mmap(NULL, ROUNDED(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    block *made = malloc(sizeof *made);
    pthread_mutex_lock(&lock);
    *made = (block){(CUdeviceptr)memory, bytes, current->device, pool, blocks};
    blocks = made;
    if (pool) {
        pool->used += bytes;
        if (pool->used > pool->most) pool->most = pool->used;
    }
    pthread_mutex_unlock(&lock);
    *at = made->start;
    return 0;
}

static block *find(CUdeviceptr at) {
    block *found = blocks;
    while (found && (at < found->start || at >= found->start + found->bytes)) found = found->next;
    return found;
}

static CUresult release(CUdeviceptr start) {
    pthread_mutex_lock(&lock);
    block **at = &blocks;
    while (*at && (*at)->start != start) at = &(*at)->next;
    block *found = *at;
    if (found) {
        *at = found->next;
        held[found->device] -= ROUNDED(found->bytes);
        if (found->pool) found->pool->used -= found->bytes;
        munmap((void *)found->start, ROUNDED(found->bytes));
    }
    pthread_mutex_unlock(&lock);
    free(found);
    return found ? 0 : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
    COUNT;
    for (block *at = blocks, *next; at; at = next) {
        next = at->next;
        if (at->device == device) release(at->start);
    }
    is_active[device] = 0;
    return 0;
}
API CUresult cuMemAlloc_v2(CUdeviceptr *at, size_t bytes) { COUNT; return allocate(at, bytes, NULL); }
API CUresult cuMemAllocPitch_v2(CUdeviceptr *at, size_t *pitch, size_t width, size_t height, unsigned element) {
    COUNT;
    (void)element;
    *pitch = (width + 511) / 512 * 512;
    return allocate(at, *pitch * height, NULL);
}
API CUresult cuMemFree_v2(CUdeviceptr at) { COUNT; cuCtxSynchronize(); return release(at); }
API CUresult cuMemAllocManaged(CUdeviceptr *at, size_t bytes, unsigned flags) {
    COUNT;
    (void)flags;
    return allocate(at, bytes, NULL);
}
static CUresult on_host(void **at, size_t bytes) { return (*at = malloc(bytes)) ? 0 : CUDA_ERROR_OUT_OF_MEMORY; }
API CUresult cuMemHostAlloc(void **at, size_t bytes, unsigned flags) { COUNT; (void)flags; return on_host(at, bytes); }
API CUresult cuMemAllocHost_v2(void **at, size_t bytes) { COUNT; return on_host(at, bytes); }
API CUresult cuMemFreeHost(void *at) { COUNT; free(at); return 0; }
API CUresult cuMemAllocFromPoolAsync(CUdeviceptr *at, size_t bytes, CUmemoryPool pool, CUstream stream) {
    COUNT;
    (void)stream;
    return allocate(at, bytes, pool);
}
API CUresult cuMemAllocAsync(CUdeviceptr *at, size_t bytes, CUstream stream) {
    COUNT;
    (void)stream;
    return allocate(at, bytes, &defaults[current ? current->device : 0]);
}
API CUresult cuMemAllocAsync_ptsz(CUdeviceptr *at, size_t bytes, CUstream stream) {
    COUNT;
    return cuMemAllocAsync(at, bytes, stream);
}
API CUresult cuMemFreeAsync(CUdeviceptr at, CUstream stream) { COUNT; (void)stream; return release(at); }
API CUresult cuMemFreeAsync_ptsz(CUdeviceptr at, CUstream stream) { COUNT; (void)stream; return release(at); }
API CUresult cuMemGetInfo_v2(size_t *left, size_t *total) {
    if (!current) return INVALID_CONTEXT;
    *total = capacity();
    *left = capacity() - held[current->device];
    return 0;
}
API CUresult cuMemGetAddressRange_v2(CUdeviceptr *start, size_t *bytes, CUdeviceptr at) {
    block *found = find(at);
    if (!found) return CUDA_ERROR_INVALID_VALUE;
    *start = found->start;
    *bytes = found->bytes;
    return 0;
}
API CUresult cuPointerGetAttribute(void *value, int attribute, CUdeviceptr at) {
    (void)at;
    if (attribute != 2) return CUDA_ERROR_INVALID_VALUE;
    *(unsigned *)value = 2; /* memory of a device */
    return 0;
}
API CUresult cuPointerGetAttributes(unsigned count, int *attributes, void **values, CUdeviceptr at) {
    for (unsigned entry = 0; entry < count; entry++) cuPointerGetAttribute(values[entry], attributes[entry], at);
    return 0;
}
API CUresult cuIpcGetMemHandle(void *handle, CUdeviceptr at) {
    COUNT;
    (void)handle;
    return find(at) ? 0 : CUDA_ERROR_INVALID_VALUE;
}
API CUresult cuMemHostRegister_v2(void *at, size_t bytes, unsigned flags) { (void)at, (void)bytes, (void)flags; return 0; }
API CUresult cuMemHostUnregister(void *at) { (void)at; return 0; }
API CUresult cuMemRangeGetAttribute(void *to, size_t size, int attribute, CUdeviceptr at, size_t bytes) {
    (void)to, (void)size, (void)attribute, (void)at, (void)bytes;
    return CUDA_ERROR_INVALID_VALUE;
}

/* ---- the driver's pools ---- */

API CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device) { *pool = &defaults[device]; return 0; }
API CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) { (void)device, (void)pool; return 0; }
API CUresult cuMemSetMemPool(const int *location, int kind, CUmemoryPool pool) {
    (void)location, (void)kind, (void)pool;
    return 0;
}
API CUresult cuMemPoolCreate(CUmemoryPool *pool, const void *props) {
    COUNT;
    (void)props;
    *pool = calloc(1, sizeof **pool);
    return 0;
}
API CUresult cuMemPoolDestroy(CUmemoryPool pool) { COUNT; free(pool); return 0; }
API CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) { COUNT; (void)pool, (void)keep; return 0; }
API CUresult cuMemPoolSetAccess(CUmemoryPool pool, const void *access, size_t count_) {
    (void)pool, (void)access, (void)count_;
    return 0;
}
API CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value) {
    if (attribute == 4) pool->threshold = *(uint64_t *)value;
    return 0;
}
API CUresult cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void *value) {
    *(uint64_t *)value = attribute == 4 ? pool->threshold : attribute % 2 ? pool->used : pool->most;
    return 0;
}

/* ---- pages ---- */

typedef struct { int device, file; size_t bytes; } page;

API CUresult cuMemGetAllocationGranularity(size_t *bytes, const void *props, int option) {
    (void)props, (void)option;
    *bytes = GRANULARITY;
    return 0;
}
API CUresult cuMemAddressReserve(CUdeviceptr *at, size_t bytes, size_t alignment, CUdeviceptr hint, unsigned long long flags) {
    (void)alignment, (void)hint, (void)flags;
    void *memory = mmap(NULL, bytes + GRANULARITY, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    /* What does not begin at a page's address goes. */
    size_t before = ROUNDED((CUdeviceptr)memory) - (CUdeviceptr)memory;
    *at = (CUdeviceptr)memory + before;
    if (before) munmap(memory, before);
    munmap((void *)(*at + bytes), GRANULARITY - before);
    return 0;
}
API CUresult cuMemAddressFree(CUdeviceptr at, size_t bytes) { return munmap((void *)at, bytes) ? 1 : 0; }
API CUresult cuMemCreate(unsigned long long *handle, size_t bytes, const int *props, unsigned long long flags) {
    COUNT;
    (void)flags;
    int device = props[3];
    if (!take(device, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    page *made = malloc(sizeof *made);
    *made = (page){device, memfd_create("page", 0), bytes};
    if (ftruncate(made->file, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    *handle = (unsigned long long)made;
    return 0;
}
API CUresult cuMemRelease(unsigned long long handle) {
    COUNT;
    page *gone = (page *)handle;
    give_back(gone->device, gone->bytes);
    close(gone->file);
    free(gone);
    return 0;
}
API CUresult cuMemRetainAllocationHandle(unsigned long long *handle, void *at) { (void)handle, (void)at; return 801; }
API CUresult cuMemMap(CUdeviceptr at, size_t bytes, size_t offset, unsigned long long handle, unsigned long long flags) {
    (void)flags;
    void *wanted = (void *)at;
    return mmap(wanted, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, ((page *)handle)->file, offset) == wanted ? 0 : 1;
}
/* The GPU that last set its own access: a pool does so before it lets others in. */
static int granted[GPUS][GPUS], owner_at[1 << 16];
API int standin_granted(int owner, int peer) { return granted[owner][peer]; }
API CUresult cuMemSetAccess(CUdeviceptr at, size_t bytes, const int *access, size_t entries) {
    /* Each entry is the kind of place, its number, and what is allowed. */
    int *owner = &owner_at[at / GRANULARITY % (1 << 16)];
    if (entries == 1 && !*owner) *owner = access[1] + 1;
    for (size_t entry = 0; entry < entries; entry++) granted[*owner - 1][access[3 * entry + 1]]++;
    return mprotect((void *)at, bytes, PROT_READ | PROT_WRITE) ? 1 : 0;
}
API CUresult cuMemUnmap(CUdeviceptr at, size_t bytes) {
    void *wanted = (void *)at;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    return mmap(wanted, bytes, PROT_NONE, flags, -1, 0) == wanted ? 0 : 1;
}
API CUresult cuMemExportToShareableHandle(void *to, unsigned long long handle, unsigned kind, unsigned long long flags) {
    (void)to, (void)handle, (void)kind, (void)flags;
    return CUDA_ERROR_NOT_SUPPORTED;
}
API CUresult cuMemImportFromShareableHandle(unsigned long long *handle, void *from, unsigned kind) {
    (void)handle, (void)from, (void)kind;
    return CUDA_ERROR_NOT_SUPPORTED;
}

/* ---- bytes ---- */

API CUresult cuMemsetD8Async(CUdeviceptr at, unsigned char value, size_t bytes, CUstream stream) {
    (void)stream;
    memset((void *)at, value, bytes);
    return 0;
}
API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
    (void)stream;
    memcpy((void *)to, from, bytes);
    return 0;
}
API CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
    (void)stream;
    memcpy(to, (void *)from, bytes);
    return 0;
}
API CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    (void)stream;
    memmove((void *)to, (void *)from, bytes);
    return 0;
}
API CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext a, CUdeviceptr from, CUcontext b, size_t bytes, CUstream stream) {
    (void)a, (void)b;
    return cuMemcpyDtoDAsync_v2(to, from, bytes, stream);
}

/* ---- looking functions up ---- */

API CUresult cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status);

static const struct { const char *name; int since; uint64_t flags; void *function; } table[] = {
    {"cuGetProcAddress", 12000, 0, cuGetProcAddress_v2},
    {"cuInit", 2000, 0, cuInit},
    {"cuDevicePrimaryCtxRetain", 7000, 0, cuDevicePrimaryCtxRetain},
    {"cuCtxSetCurrent", 4000, 0, cuCtxSetCurrent},
    {"cuStreamCreate", 2000, 0, cuStreamCreate},
    {"cuMemAlloc", 3020, 0, cuMemAlloc_v2},
    {"cuMemFree", 3020, 0, cuMemFree_v2},
    {"cuMemAllocAsync", 11020, 0, cuMemAllocAsync},
    {"cuMemAllocAsync", 11020, 2, cuMemAllocAsync_ptsz},
    {"cuMemFreeAsync", 11020, 0, cuMemFreeAsync},
    {"cuMemFreeAsync", 11020, 2, cuMemFreeAsync_ptsz},
};

API CUresult cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status) {
    *function = NULL;
    for (size_t at = 0; at < sizeof table / sizeof *table; at++) {
        int fits = !strcmp(table[at].name, name) && table[at].since <= version && (flags & 2) >= table[at].flags;
        if (fits) *function = table[at].function;
    }
    if (status) *status = !*function;
    return *function ? 0 : NOT_FOUND;
}
API CUresult cuGetProcAddress(const char *name, void **function, int version, uint64_t flags) {
    return cuGetProcAddress_v2(name, function, version, flags, NULL);
}
