/* What the programs share: a check that says where it failed, and a context on the first GPU. */

#ifndef MILLPOND_TESTS_CHECK_H
#define MILLPOND_TESTS_CHECK_H

#include "cuda.h"

#include <stdio.h>
#include <stdlib.h>

#define CHECK(holds)                                                        \
    do {                                                                    \
        if (!(holds)) {                                                     \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #holds);     \
            exit(1);                                                        \
        }                                                                   \
    } while (0)

#define MIB ((size_t)1 << 20)

#endif
