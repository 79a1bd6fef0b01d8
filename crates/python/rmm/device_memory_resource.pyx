# The resource as a class of RMM's Python package, until RMM 26.4.
from libc.stdint cimport uintptr_t
from libcpp.memory cimport shared_ptr
from rmm.librmm.memory_resource cimport device_memory_resource
from rmm.pylibrmm.memory_resource cimport DeviceMemoryResource


cdef extern from "resource.hpp" namespace "millpond" nogil:
    shared_ptr[device_memory_resource] make_resource(int gpu, uintptr_t table) except +


cdef class Resource(DeviceMemoryResource):
    """The pool of a GPU. RMM's C++ calls it without Python."""

    def __cinit__(self, int gpu, uintptr_t table):
        self.c_obj = make_resource(gpu, table)
