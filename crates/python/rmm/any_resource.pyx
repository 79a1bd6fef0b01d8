# The resource as a class of RMM's Python package, since RMM 26.6.
from libc.stdint cimport uintptr_t
from libcpp.memory cimport unique_ptr
from libcpp.optional cimport optional
from rmm.librmm.memory_resource cimport device_async_resource_ref
from rmm.pylibrmm.memory_resource cimport DeviceMemoryResource


cdef extern from "resource.hpp" namespace "millpond" nogil:
    cdef cppclass CppResource "millpond::Resource":
        CppResource(int gpu, uintptr_t table) except +

cdef extern from *:
    optional[device_async_resource_ref] reference_to "make_device_async_resource_ref"(CppResource&) except +


cdef class Resource(DeviceMemoryResource):
    """The pool of a GPU. RMM's C++ calls it without Python."""

    cdef unique_ptr[CppResource] c_obj

    def __cinit__(self, int gpu, uintptr_t table):
        self.c_obj.reset(new CppResource(gpu, table))
        self.c_ref = reference_to(self.c_obj.get()[0])
