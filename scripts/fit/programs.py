#!/usr/bin/env python3
"""Small Rust programs as RMM's logs: what they request of CUDA, in which order, without a GPU.

    scripts/fit/programs.py cudarc > cudarc.csv          bench/rust/cudarc: requests on four streams, of any length
    scripts/fit/programs.py generation > generation.csv  a GPT on candle whose caches keep what they were computed from

An event takes 8 µs. Then `millpond replay`, or the example `fit`, says what they need and hold.
"""

import sys
from collections import deque

MASK = (1 << 64) - 1

#: Between two events, in microseconds: cudarc's program takes 65 for a request of eight events on an H200.
EVENT_US = 8

#: Between two passes.
PAUSE_US = 3_000_000

Block = tuple[int, int, int]


class Numbers:
    """SplitMix64, as `bench/rust/job` has it."""

    def __init__(self, seed: int) -> None:
        self.state = seed

    def next(self) -> int:
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        mixed = self.state
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & MASK
        return mixed ^ (mixed >> 31)

    def within(self, first: int, last: int) -> int:
        return first + self.next() % (last - first + 1)


class Log:
    """What is allocated and freed, in order."""

    def __init__(self) -> None:
        self.now, self.address = 0, 1 << 33
        print("Thread,Time,Action,Pointer,Size,Stream")

    def _print(self, action: str, block: Block) -> None:
        seconds, us = divmod(self.now, 1_000_000)
        time = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{us:06}"
        address, size, stream = block
        print(f"1,{time},{action},{address:#x},{size},{stream:#x}")

    def alloc(self, floats: int, stream: int = 1) -> Block:
        self.now += EVENT_US
        block = (self.address, 4 * floats, stream)
        self.address += (4 * floats + 511) // 512 * 512
        self._print("allocate", block)
        return block

    def free(self, *blocks: Block) -> None:
        for block in blocks:
            self.now += 1
            self._print("free", block)


def cudarc(log: Log) -> None:
    numbers, cache = Numbers(1), deque()
    for request in range(4000):
        stream = request % 4 + 1
        longest = 256 << numbers.within(7, 14)
        length = numbers.within(16 << 10, (16 << 10) + longest)
        # The kernel's arguments.
        numbers.next(), numbers.next()
        one, other, result, sums = [log.alloc(floats, stream) for floats in (length, length, length, 4096)]
        log.free(other, one, sums)
        if request % 8 == 0:
            cache.append(result)
            if len(cache) > 48:
                log.free(cache.popleft())
        else:
            log.free(result)
    log.free(*cache)


def generation(log: Log) -> None:
    width, heads, layers, words, longest = 1024, 16, 12, 16_384, 2048
    sizes = layers * [*4 * [width], *4 * [width * width], *2 * [4 * width * width]]
    weights = [log.alloc(floats) for floats in [*sizes, words * width, longest * width, width, width, words * width]]
    numbers = Numbers(5)
    for _ in range(20):
        batch, length, more = numbers.within(1, 6), numbers.within(16, 1024), numbers.within(16, 96)
        for _ in range(batch * length):
            numbers.next()
        kept, first, taken = [], 0, log.alloc(batch * length)
        for step in range(more):
            total, x = first + length, batch * length * width
            scores, cached = batch * heads * length * total, batch * total * width
            gone = [log.alloc(floats) for floats in (length, x, length * width, x, length * total)]
            for _ in range(layers):
                kept.append(log.alloc(x))
                gone += [log.alloc(x), log.alloc(x)]
                kept += [log.alloc(x) for _ in range(4)]
                kept += [log.alloc(cached) for _ in range(2 if step else 0)]
                sums = scores // total
                inner = [cached, scores, scores, scores, sums, scores, scores, sums, scores]
                gone += [log.alloc(floats) for floats in [*inner, x, x, x, x, x, 4 * x, 4 * x, x, x]]
            gone += [log.alloc(batch * floats) for floats in (width, width, words)]
            following = log.alloc(batch)
            log.free(*reversed(gone), taken)
            taken, first, length = following, total, 1
        log.free(taken, *reversed(kept))
    log.free(*weights)


def main() -> None:
    programs = {"cudarc": cudarc, "generation": generation}
    if len(sys.argv) != 2 or sys.argv[1] not in programs:
        sys.exit(__doc__)
    log = Log()
    for _ in range(2):
        programs[sys.argv[1]](log)
        log.now += PAUSE_US


if __name__ == "__main__":
    main()
