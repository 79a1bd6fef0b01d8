/* A program that uses functions with the driver's names which are not the driver's, or not those of the driver that it has
   loaded. With LINKED defined it is linked with the mock. */

#define _GNU_SOURCE
#include "check.h"

#include <dlfcn.h>
#include <string.h>

#define FIND(name) __typeof__(name) *name##_found = (__typeof__(name) *)dlsym(library, #name); CHECK(name##_found)

#ifdef LINKED
int main(void) {
    void *library = RTLD_DEFAULT;
    CUdeviceptr at;
    FIND(cuMemAlloc_v2);
    CHECK(cuMemAlloc_v2(&at, 1) == 77 && at == 0x1235 && cuMemFree_v2(0x1234) == 78);
    CHECK(cuMemAlloc_v2_found(&at, 2) == 77 && at == 0x1236);
    return 0;
}
#else
/* A mock beside the driver, which is loaded, or before it is. */
static void mocks(void) {
    void *library = dlopen("./libmock.so", RTLD_NOW);
    CUdeviceptr at;
    CHECK(library);
    FIND(cuMemAlloc_v2);
    CHECK(cuMemAlloc_v2_found(&at, 1) == 77 && at == 0x1235);
}

/* Memory of the driver of another namespace is that one's alone. */
static void namespaces(void) {
    void *library = dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW);
    CUcontext context;
    CUdeviceptr at;
    CHECK(library);
    FIND(cuInit);
    FIND(cuDevicePrimaryCtxRetain);
    FIND(cuCtxSetCurrent);
    FIND(cuMemAlloc_v2);
    FIND(cuMemFree_v2);
    FIND(standin_calls);
    CHECK(!cuInit_found(0) && !cuDevicePrimaryCtxRetain_found(&context, 0) && !cuCtxSetCurrent_found(context));
    CHECK(!cuMemAlloc_v2_found(&at, MIB) && standin_calls_found("cuMemAlloc_v2") == 1);
    CHECK(!cuMemFree_v2_found(at) && standin_calls_found("cuMemFree_v2") == 1);
}

int main(int count, char **arguments) {
    CHECK(count == 2);
    if (!strcmp(arguments[1], "mock")) return mocks(), 0;
    namespaces();
    CHECK(dlopen("libcuda.so.1", RTLD_NOW));
    mocks();
    namespaces();
    return 0;
}
#endif
