/* A library that is not the driver, and has functions of its names. */

#include "cuda.h"

CUresult cuMemAlloc_v2(CUdeviceptr *at, size_t bytes) { *at = 0x1234 + bytes; return 77; }
CUresult cuMemFree_v2(CUdeviceptr at) { return at == 0x1234 ? 78 : 79; }
