/* A library that stands for libnvidia-ml.so.1, over the stand-in for the driver. Another process has 300 MiB of each GPU.

   STANDIN_NVML is "none" where it may not look, "container" where it tells of no process of this container. */

#include "cuda.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

size_t standin_held(int device);
size_t standin_overhead(int device);

typedef struct { unsigned pid; unsigned long long used; unsigned instances[2]; } process;
typedef struct { unsigned long long total, free, used; } memory;

enum { NO_PERMISSION = 4, INSUFFICIENT_SIZE = 7 };

static int is_mode(const char *mode) {
    const char *text = getenv("STANDIN_NVML");
    return text && !strcmp(text, mode);
}

int nvmlInit_v2(void) { return is_mode("none") ? NO_PERMISSION : 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = (void *)(size_t)(index + 1); return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **device) {
    (void)bus; /* both have the same in the stand-in */
    *device = (void *)1;
    return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, process *all) {
    int at = (int)(size_t)device - 1;
    size_t used = standin_held(at) + standin_overhead(at);
    /* More than there is room for at first. */
    unsigned others = 100, told = others + (used > 0 && !is_mode("container"));
    if (*count < told) { *count = told; return INSUFFICIENT_SIZE; }
    for (unsigned other = 0; other < others; other++) all[other] = (process){getpid() + 1 + other, 3 << 20, {0}};
    if (told > others) all[others] = (process){getpid(), used, {0}};
    *count = told;
    return 0;
}
int nvmlDeviceGetMemoryInfo(void *device, memory *memory) {
    int at = (int)(size_t)device - 1;
    memory->total = 1ULL << 30;
    memory->used = (300ULL << 20) + standin_held(at) + standin_overhead(at);
    memory->free = memory->total - memory->used;
    return 0;
}
