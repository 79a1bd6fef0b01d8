/* A plug-in that is linked with libcuda.so.1, and a program (without LIBRARY defined) that opens it with RTLD_DEEPBIND. */

#define _GNU_SOURCE
#include "check.h"

#include <dlfcn.h>

#ifdef LIBRARY
CUresult plugin_free(CUdeviceptr at) { return cuMemFree_v2(at); }
CUresult plugin_allocate(CUdeviceptr *at) { return cuMemAlloc_v2(at, MIB); }
void *plugin_looks_up(const char *name) { return dlsym(RTLD_DEFAULT, name); }
#else
int main(int count, char **arguments) {
    CUcontext context;
    CUdeviceptr at;
    CHECK(count == 2 && !cuInit(0) && !cuDevicePrimaryCtxRetain(&context, 0) && !cuCtxSetCurrent(context));
    CHECK(!cuMemAlloc_v2(&at, MIB));
    void *plugin = dlopen(arguments[1], (arguments[1][9] == 'n' ? RTLD_NOW : RTLD_LAZY) | RTLD_DEEPBIND);
    CHECK(plugin);
    CUresult (*frees)(CUdeviceptr) = (CUresult(*)(CUdeviceptr))dlsym(plugin, "plugin_free");
    CUresult (*allocates)(CUdeviceptr *) = (CUresult(*)(CUdeviceptr *))dlsym(plugin, "plugin_allocate");
    void *(*looks_up)(const char *) = (void *(*)(const char *))dlsym(plugin, "plugin_looks_up");
    CHECK(frees && allocates && looks_up);
    /* Each frees what the other one allocated. */
    CHECK(!frees(at) && frees(at) == CUDA_ERROR_INVALID_VALUE);
    CHECK(!allocates(&at) && !cuMemFree_v2(at) && !allocates(&at) && !frees(at));
    CUresult (*found)(CUdeviceptr *, size_t) = (CUresult(*)(CUdeviceptr *, size_t))looks_up("cuMemAlloc_v2");
    CHECK(found && !found(&at, MIB) && !frees(at));
    CHECK(standin_calls("cuMemAlloc_v2") == 0);
    return 0;
}
#endif
