/* Two processes with one block, as NVIDIA's simpleIPC has it: the parent allocates, and its child opens. */

#include "check.h"

#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int to_child[2], to_parent[2];

static void tell(int to, const void *what, size_t bytes) { CHECK(write(to, what, bytes) == (ssize_t)bytes); }
static void hear(int from, void *what, size_t bytes) { CHECK(read(from, what, bytes) == (ssize_t)bytes); }

static void begin(void) {
    CUcontext context;
    CHECK(!cuInit(0) && !cuDevicePrimaryCtxRetain(&context, 0) && !cuCtxSetCurrent(context));
}

static void opens(void) {
    CUipcMemHandle handle, other;
    CUdeviceptr at, again, next;
    size_t bytes;
    begin();
    hear(to_child[0], &handle, sizeof handle);
    hear(to_child[0], &bytes, sizeof bytes);
    CHECK(!cuIpcOpenMemHandle_v2(&at, handle, 1));
    for (size_t each = 0; each < bytes; each += 4096) CHECK(((unsigned char *)at)[each] == 7);
    CHECK(((unsigned char *)at)[bytes - 1] == 7);
    memset((void *)at, 8, bytes);
    /* The same once more is at the same address, and is closed twice. */
    CHECK(!cuIpcOpenMemHandle_v2(&again, handle, 1) && again == at && !cuIpcCloseMemHandle(at));
    CHECK(*(unsigned char *)at == 8);
    tell(to_parent[1], "w", 1);
    hear(to_child[0], &other, sizeof other);
    CHECK(!cuIpcOpenMemHandle_v2(&next, other, 1) && next != at && *(unsigned char *)next == 9);
    CHECK(!cuIpcCloseMemHandle(at) && cuIpcCloseMemHandle(at) && !cuIpcCloseMemHandle(next));
    tell(to_parent[1], "c", 1);
    /* What was freed there, or is no handle, is not opened. */
    hear(to_child[0], &handle, 1);
    CHECK(cuIpcOpenMemHandle_v2(&at, other, 1) == CUDA_ERROR_INVALID_VALUE);
    memset(&other, 3, sizeof other);
    CHECK(cuIpcOpenMemHandle_v2(&at, other, 1) == CUDA_ERROR_INVALID_VALUE && standin_calls("cuIpcOpenMemHandle_v2") == 1);
    CHECK(standin_held(0) <= 2 * MIB);
}

int main(void) {
    CUipcMemHandle handle, same;
    CUdeviceptr at, before, next;
    size_t bytes = 3 * MIB + 1000;
    char told;
    CHECK(!pipe(to_child) && !pipe(to_parent));
    pid_t child = fork();
    if (!child) return opens(), 0;
    begin();
    /* So that it begins in the midst of a page. */
    CHECK(!cuMemAlloc_v2(&before, 5000) && !cuMemAlloc_v2(&at, bytes));
    memset((void *)at, 7, bytes);
    CHECK(!cuIpcGetMemHandle(&handle, at) && !cuIpcGetMemHandle(&same, at + 12345) && !memcmp(&handle, &same, sizeof handle));
    CHECK(cuIpcOpenMemHandle_v2(&next, handle, 1) == 201);
    tell(to_child[1], &handle, sizeof handle);
    tell(to_child[1], &bytes, sizeof bytes);
    hear(to_parent[0], &told, 1);
    CHECK(((unsigned char *)at)[bytes - 1] == 8);
    /* Freed while it is open there: its pages stay. */
    CHECK(!cuMemFree_v2(at) && !cuMemAlloc_v2(&next, bytes));
    memset((void *)next, 9, bytes);
    CHECK(!cuIpcGetMemHandle(&same, next) && memcmp(&handle, &same, sizeof handle));
    tell(to_child[1], &same, sizeof same);
    hear(to_parent[0], &told, 1);
    CHECK(!cuMemFree_v2(next));
    tell(to_child[1], "f", 1);
    int status;
    CHECK(waitpid(child, &status, 0) == child && !status);
    CHECK(!cuMemFree_v2(before) && standin_calls("cuIpcGetMemHandle") + standin_calls("cuMemAlloc_v2") == 0);
    return 0;
}
