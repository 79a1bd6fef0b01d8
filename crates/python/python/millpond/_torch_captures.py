"""Captures that fail: PyTorch neither ends nor releases the memory pool of one, so nobody else would."""

from __future__ import annotations

from functools import wraps
from typing import Any

from . import _millpond

#: Where a graph notes the pools that its capture began.
_BEGUN = "_millpond_begun"


def release_failed(graph: Any) -> None:
    """Has the captures of a class of graphs, such as ``torch.cuda.CUDAGraph``, give their memory back where they fail."""
    of_torch_begin, of_torch_end = graph.capture_begin, graph.capture_end

    @wraps(of_torch_begin)
    def capture_begin(self: Any, *arguments: Any, **options: Any) -> None:
        before = set(_millpond.torch_open_captures())
        try:
            of_torch_begin(self, *arguments, **options)
        except BaseException:
            _abandon(set(_millpond.torch_open_captures()) - before)
            raise
        setattr(self, _BEGUN, set(_millpond.torch_open_captures()) - before)

    @wraps(of_torch_end)
    def capture_end(self: Any) -> None:
        begun = self.__dict__.pop(_BEGUN, set())
        try:
            of_torch_end(self)
        except BaseException:
            # Where PyTorch ended the pool before it failed, this does nothing, and PyTorch releases it.
            _abandon(begun)
            raise

    graph.capture_begin, graph.capture_end = capture_begin, capture_end


def _abandon(pools: set[tuple[int, int, int]]) -> None:
    for pool in pools:
        _millpond.torch_abandon_capture(*pool)
