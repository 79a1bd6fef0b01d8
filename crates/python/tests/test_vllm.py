"""vLLM's sleep mode over the tags of PyTorch's pools, on the CPU as a device. With vLLM itself where it is installed; else with
modules that have the same classes."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import abc, ctypes, sys, types
import millpond, millpond.vllm
from millpond import _millpond
try:
    import vllm.device_allocator.sleep_mode_backend
except ImportError:
    class SleepModeBackend(abc.ABC):
        def __init__(self): self._state = "RUNNING"
        @abc.abstractmethod
        def suspend(self, level=1): ...
        @abc.abstractmethod
        def resume(self, tags=None): ...
        def state(self): return self._state
    class SleepModeBackendFactory:
        registry = {}
        @classmethod
        def register_backend(cls, name, module, what):
            if name in cls.registry: raise ValueError(name)
            cls.registry[name] = lambda: getattr(sys.modules[module], what)
        @classmethod
        def get_backend_class(cls, name): return cls.registry[name]()
    class CuMemAllocator:
        @staticmethod
        def get_instance(): raise AssertionError
    for name in ("vllm", "vllm.device_allocator", "vllm.device_allocator.cumem", "vllm.device_allocator.sleep_mode_backend"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["vllm.device_allocator.cumem"].CuMemAllocator = CuMemAllocator
    there = sys.modules["vllm.device_allocator.sleep_mode_backend"]
    there.SleepModeBackend, there.SleepModeBackendFactory = SleepModeBackend, SleepModeBackendFactory

from vllm.device_allocator.cumem import CuMemAllocator
from vllm.device_allocator.sleep_mode_backend import SleepModeBackend, SleepModeBackendFactory

pool = millpond.Pool("host", name="gpu")
_millpond.stand_in(0, pool)
millpond.vllm.install()
millpond.vllm.install()  # once more changes nothing
allocator = CuMemAllocator.get_instance()
assert allocator is CuMemAllocator.get_instance()
backend = SleepModeBackendFactory.get_backend_class("millpond")()
assert isinstance(backend, SleepModeBackend) and type(backend).preserves_communicators()

pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
hooks = dict(_millpond.torch_hooks()[1])
alloc = ctypes.CFUNCTYPE(pointer, size, number, pointer)(hooks["alloc"])
free = ctypes.CFUNCTYPE(None, pointer, size, number, pointer)(hooks["free"])
BYTES = 3 << 20
holds = lambda block, value: ctypes.string_at(block, BYTES) == bytes([value]) * BYTES

blocks = {"none": alloc(BYTES, 0, None)}
assert allocator.get_current_usage() == 0
for tag in ("weights", "kv_cache", "runtime"):
    with allocator.use_memory_pool(tag=tag):
        blocks[tag] = alloc(BYTES, 0, None)
assert allocator.get_current_usage() == 3 * BYTES
def fill():
    for value, block in enumerate(blocks.values(), 1): ctypes.memset(block, value, BYTES)
asleep = lambda: {tag for tag in pool.tags if pool.tagged(tag).is_asleep}

fill()
backend.suspend(1)
assert backend.state() == "SUSPENDED" and asleep() == {"weights", "kv_cache", "runtime"}
assert holds(blocks["none"], 1), "what has no tag stays awake"
backend.suspend(1)  # what sleeps sleeps on
backend.resume(["weights"])
assert backend.state() == "SUSPENDED" and asleep() == {"kv_cache"}, "only weights and kv_cache may wait"
assert holds(blocks["weights"], 2) and holds(blocks["runtime"], 4)
backend.resume(["kv_cache"])
assert backend.state() == "RUNNING" and asleep() == set()

fill()
backend.suspend(2)
backend.resume()
assert asleep() == set() and holds(blocks["runtime"], 4) and pool.tagged("weights").stats().asleep == 0

fill()
backend.discard(("kv_cache", "unknown"))
assert asleep() == {"kv_cache"} and holds(blocks["weights"], 2)
allocator.wake_up()
fill()
allocator.sleep("weights")
assert asleep() == {"weights", "kv_cache", "runtime"}
allocator.wake_up(None)
assert asleep() == set() and holds(blocks["weights"], 2)
for block in blocks.values(): free(block, BYTES, 0, None)
assert allocator.get_current_usage() == 0
assert millpond.last_error() is None, millpond.last_error()
pool.check()
"""


def test_tags_sleep_and_wake_as_vllm_asks() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_plugin_does_nothing_unless_it_is_asked_to() -> None:
    program = "import sys, millpond.vllm as v; v.plugin(); assert 'vllm' not in sys.modules and 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
