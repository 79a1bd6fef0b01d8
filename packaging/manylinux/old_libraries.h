// Put before each C++ source of a wheel for manylinux_2_28: g++ -include old_libraries.h.
//
// Compilers of today call functions that glibc 2.28 and the libstdc++ of GCC 8 do not have. They are here, for one library
// only. Templates of libstdc++ are instantiated in the library itself.
#pragma once

#include <bits/c++config.h>
#undef _GLIBCXX_EXTERN_TEMPLATE
#define _GLIBCXX_EXTERN_TEMPLATE 0

#include <new>

#define OLD_LIBRARIES_HERE __attribute__((weak, visibility("hidden")))

// glibc 2.32: that there is one thread only. No: reference counts are atomic.
extern "C" {
OLD_LIBRARIES_HERE char __libc_single_threaded = 0;
}

// libstdc++ of GCC 11.
namespace std {
[[noreturn]] OLD_LIBRARIES_HERE void __throw_bad_array_new_length() {
    throw bad_array_new_length();
}
}  // namespace std

// glibc 2.34 has them in libc itself, under a new version too.
__asm__(".symver dlopen, dlopen@GLIBC_2.2.5");
__asm__(".symver dlsym, dlsym@GLIBC_2.2.5");
__asm__(".symver dlclose, dlclose@GLIBC_2.2.5");
