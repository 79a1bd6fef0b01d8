"""Tensors that other processes get by torch.multiprocessing: what they are rebuilt by there."""

from __future__ import annotations

from typing import Any

from ._errors import Error

#: What a handle of millpond's begins with.
HANDLE = b"millpond/"

#: PyTorch's own function. ``None`` where this process did not replace it, since it does not use the native interface.
_rebuild: Any = None


def rebuild_cuda_tensor(*arguments: Any) -> Any:
    """As PyTorch's function of this name. Also called in processes where millpond is not PyTorch's allocator.

    Raises:
        Error: for a tensor of millpond's that this process cannot open.
    """
    from torch.multiprocessing import reductions

    handle = arguments[7]
    if handle is not None and handle.startswith(HANDLE) and _rebuild is None:
        raise Error(
            "another process sent a CUDA tensor of millpond's, and this process allocates otherwise: call "
            "millpond.torch.enable(backend='native-interface') here as well, at the start of the program. A process that is "
            "spawned runs the main module without its `if __name__ == '__main__':`, so put the call above that"
        )
    return (_rebuild or reductions.rebuild_cuda_tensor)(*arguments)


def replace_rebuild() -> None:
    """Has tensors that this process sends rebuilt by :func:`rebuild_cuda_tensor`."""
    from torch.multiprocessing import reductions

    global _rebuild
    _rebuild, reductions.rebuild_cuda_tensor = reductions.rebuild_cuda_tensor, rebuild_cuda_tensor
