"""As much of CuPy and of Numba as millpond uses, for tests without a GPU and without them."""

from __future__ import annotations

import sys
import types
import weakref
from typing import Any


def _module(name: str, **members: Any) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__dict__.update(members)
    sys.modules[name] = module
    return module


class UnownedMemory:
    def __init__(self, ptr: int, size: int, owner: object, device_id: int) -> None:
        self.ptr, self.size, self.owner, self.device_id = ptr, size, owner, device_id


class Pointer:
    def __init__(self, mem: Any, offset: int) -> None:
        self.mem, self.ptr = mem, mem.ptr + offset


class CupyError(MemoryError):
    def __init__(self, size: int, total: int) -> None:
        super().__init__(f"{size} of {total}")


class NullStream:
    ptr = 0


def install_cupy() -> Any:
    """Makes ``import cupy`` find the fake. Its current device is ``cupy.current``."""
    cuda = _module(
        "cupy.cuda",
        runtime=types.SimpleNamespace(getDevice=lambda: cupy.current),
        get_current_stream=NullStream,
        UnownedMemory=UnownedMemory,
        MemoryPointer=Pointer,
        PinnedMemoryPointer=Pointer,
        memory=types.SimpleNamespace(OutOfMemoryError=CupyError),
        set_allocator=lambda allocator: setattr(cupy, "allocator", allocator),
        set_pinned_memory_allocator=lambda allocator: setattr(cupy, "pinned_allocator", allocator),
    )
    cupy: Any = _module("cupy", cuda=cuda, current=0)
    return cupy


class MemoryPointer:
    def __init__(self, context: Any, pointer: Any, size: int, finalizer: Any = None) -> None:
        self.context, self.device_ctypes_pointer, self.size = context, pointer, size
        self._finalizer = weakref.finalize(self, finalizer) if finalizer else None

    def view(self, start: int, stop: int) -> MemoryPointer:
        pointer = type(self.device_ctypes_pointer)(self.device_ctypes_pointer.value + start)
        view = MemoryPointer(self.context, pointer, stop - start)
        view.owner = self  # type: ignore[attr-defined]
        return view


class DeviceArray:
    def __init__(self, shape: Any, strides: Any, dtype: Any, gpu_data: MemoryPointer) -> None:
        self.shape, self.strides, self.dtype, self.gpu_data = shape, strides, dtype, gpu_data


class Manager:
    def __init__(self, context: Any) -> None:
        self.context = context


def install_numba() -> Any:
    """Makes ``import numba.cuda`` find the fake, with a context of GPU 0."""
    context = types.SimpleNamespace(device=types.SimpleNamespace(id=0))
    cuda = _module(
        "numba.cuda",
        HostOnlyCUDAMemoryManager=Manager,
        MemoryPointer=MemoryPointer,
        MemoryInfo=lambda free, total: types.SimpleNamespace(free=free, total=total),
        set_memory_manager=lambda manager: setattr(context, "memory_manager", manager(context=context)),
        current_context=lambda: context,
    )
    _module("numba", cuda=cuda)
    _module("numba.cuda.cudadrv", devicearray=_module("numba.cuda.cudadrv.devicearray", DeviceNDArray=DeviceArray))
    return cuda
