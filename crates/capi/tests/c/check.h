/* Assertions that also hold in release builds, and say what the library said. */
#ifndef CHECK_H
#define CHECK_H

#include <millpond.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                                  \
    do {                                                                                                  \
        if (!(condition)) {                                                                               \
            fprintf(stderr, "%s:%d: %s does not hold; the last error: %s\n", __FILE__, __LINE__,          \
                    #condition, millpond_last_error());                                                   \
            exit(1);                                                                                      \
        }                                                                                                 \
    } while (0)

#define OK(call) CHECK((call) == MILLPOND_STATUS_OK)

/* The call fails with the status NAME, and its message has TEXT in it. */
#define FAILS(call, NAME, TEXT)                                                                           \
    do {                                                                                                  \
        CHECK((call) == MILLPOND_STATUS_##NAME);                                                          \
        CHECK(millpond_last_status() == MILLPOND_STATUS_##NAME);                                          \
        CHECK(strstr(millpond_last_error(), TEXT) != NULL);                                               \
    } while (0)

#endif
