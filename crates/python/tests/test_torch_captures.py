"""Captures that fail give their memory back: with a class that stands for PyTorch's graphs."""

from __future__ import annotations

import pytest

from millpond import _millpond, _torch_captures


class Graph:
    """As ``torch.cuda.CUDAGraph``, of which a capture may fail."""

    def __init__(self, pools: Pools, fails: str | None = None) -> None:
        self.pools, self.fails = pools, fails

    def capture_begin(self, pool: tuple[int, int, int]) -> None:
        self.pools.open.add(pool)
        if self.fails == "begin":
            raise RuntimeError("begin")
        self.pool = pool

    def capture_end(self) -> None:
        if self.fails == "end":
            raise RuntimeError("end")
        self.pools.open.discard(self.pool)
        if self.fails == "instantiate":
            raise RuntimeError("instantiate")


class Pools:
    """What the extension knows of open pools."""

    def __init__(self) -> None:
        self.open: set[tuple[int, int, int]] = set()
        self.abandoned: list[tuple[int, int, int]] = []

    def abandon(self, *pool: int) -> None:
        number, first, second = pool
        if (number, first, second) in self.open:
            self.open.discard((number, first, second))
            self.abandoned.append((number, first, second))


@pytest.fixture
def pools(monkeypatch: pytest.MonkeyPatch) -> Pools:
    pools = Pools()
    monkeypatch.setattr(_millpond, "torch_open_captures", lambda: list(pools.open))
    monkeypatch.setattr(_millpond, "torch_abandon_capture", pools.abandon)
    return pools


@pytest.mark.parametrize(("fails", "abandoned"), [("begin", True), ("end", True), ("instantiate", False)])
def test_only_a_pool_that_was_left_open_is_abandoned(pools: Pools, fails: str, abandoned: bool) -> None:
    class OfTorch(Graph):
        pass

    _torch_captures.release_failed(OfTorch)
    pools.open.add((0, 7, 7))  # one of the program's, around the capture
    graph = OfTorch(pools, fails)
    with pytest.raises(RuntimeError, match=fails):
        graph.capture_begin((0, 0, 1))
        graph.capture_end()
    assert pools.abandoned == ([(0, 0, 1)] if abandoned else [])
    assert pools.open == {(0, 7, 7)}


def test_a_capture_that_succeeds_keeps_its_pool(pools: Pools) -> None:
    class OfTorch(Graph):
        pass

    _torch_captures.release_failed(OfTorch)
    graph = OfTorch(pools)
    graph.capture_begin((0, 0, 1))
    graph.capture_end()
    assert not pools.abandoned


def test_without_a_gpu_no_capture_is_open() -> None:
    assert _millpond.torch_open_captures() == []
    _millpond.torch_abandon_capture(0, 1, 2)
