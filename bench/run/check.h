// What the programs share: a check that says where it failed.

#pragma once
#include <cstdio>
#include <cstdlib>

#define CHECK(holds)                                                    \
    do {                                                                \
        if (!(holds)) {                                                 \
            std::printf("%s:%d: %s\n", __FILE__, __LINE__, #holds);     \
            std::exit(1);                                               \
        }                                                               \
    } while (0)

#define OK(call)                                                                                        \
    do {                                                                                                \
        const cudaError_t code = (call);                                                                \
        if (code != cudaSuccess) {                                                                      \
            std::printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(code));        \
            std::exit(1);                                                                               \
        }                                                                                               \
    } while (0)
