// Stands for libc10_cuda.so, in which the type of OutOfMemoryError is, since it throws them too.
#include "c10.hpp"

extern "C" void throws_one() { throw c10::OutOfMemoryError({"", "", 0}, "native"); }
