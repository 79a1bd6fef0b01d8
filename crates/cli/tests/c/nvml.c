/* A GPU as NVIDIA's management library tells of it, for the tests of `millpond top` where there is none. Its figures, in bytes,
   come from the environment: NVML_USED, and NVML_PID with NVML_PROCESS. */

#include <stdlib.h>
#include <string.h>

typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } process;

static unsigned long long figure(const char *name) {
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : 0;
}

int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }

int nvmlSystemGetDriverVersion(char *text, unsigned length) {
    strncpy(text, "580.00", length);
    return 0;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = 1;
    return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    *device = (void *)1;
    return index > 0;
}

int nvmlDeviceGetName(void *device, char *text, unsigned length) {
    (void)device;
    strncpy(text, "Planted", length);
    return 0;
}

int nvmlDeviceGetUUID(void *device, char *text, unsigned length) {
    (void)device;
    strncpy(text, getenv("NVML_UUID"), length);
    return 0;
}

int nvmlDeviceGetMemoryInfo_v2(void *device, memory *about) {
    (void)device;
    about->total = 1ull << 37;
    about->used = figure("NVML_USED");
    return 0;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, process *processes) {
    (void)device;
    if (*count < 1 || !processes) {
        *count = 1;
        return 7; /* NVML_ERROR_INSUFFICIENT_SIZE */
    }
    *count = 1;
    processes[0] = (process){(unsigned)figure("NVML_PID"), figure("NVML_PROCESS"), -1u, -1u};
    return 0;
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(void *device, unsigned *count, process *processes) {
    (void)device, (void)processes;
    *count = 0;
    return 0;
}
