/* What code that rustc instrumented for ThreadSanitizer calls, and GCC's library for it lacks. For scripts/check-concurrency. */
#include <string.h>

void *__tsan_memcpy(void *to, const void *from, size_t bytes) { return memcpy(to, from, bytes); }
void *__tsan_memmove(void *to, const void *from, size_t bytes) { return memmove(to, from, bytes); }
void *__tsan_memset(void *to, int byte, size_t bytes) { return memset(to, byte, bytes); }
