#!/usr/bin/env python3
"""Small Rust programs as RMM's logs: what they request of CUDA, in which order, without a GPU.

    scripts/fit/programs.py cudarc > cudarc.csv          bench/rust/cudarc: requests on four streams, of any length
    scripts/fit/programs.py generation > generation.csv  a GPT on candle whose caches keep what they were computed from
    scripts/fit/programs.py texts 4 40 > texts.csv       eight texts at once: each word makes 40 caches 4 KiB longer
    scripts/fit/programs.py beside > beside.csv          blocks that grow and go beside others of their length that stay
    scripts/fit/programs.py prompts 16 16 > prompts.csv  weights, and eight prompts in turn: keys and values of 16 layers, 16 KiB a word

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


def grow(log: Log, caches: list[Block], floats: int) -> None:
    """Replaces each cache by a longer one, which it is copied to."""
    for at, cache in enumerate(caches):
        caches[at] = log.alloc(floats)
        log.free(cache)


def beside(log: Log) -> None:
    stay = []
    for word in range(60):
        floats, go = (5000 + 24 * word) * 256, []
        for _ in range(12):
            stay += [log.alloc(floats), log.alloc(floats)]
            go.append(log.alloc(floats))
        log.free(*reversed(go))
    log.free(*stay)


def texts(log: Log, kib: int, layers: int) -> None:
    running = deque()
    for step in range(600):
        if step % 8 == 0:
            words = 300 + step // 8 * 170 % 1200
            running.append((words - step, [log.alloc(words * kib * 256) for _ in range(layers)]))
        for first, caches in running:
            grow(log, caches, (first + step + 1) * kib * 256)
        if step >= 60 and step % 8 == 4:
            log.free(*running.popleft()[1])
    for _, caches in running:
        log.free(*caches)


def prompts(log: Log, kib: int, layers: int) -> None:
    numbers, word = Numbers(2), kib * 256
    weights = [log.alloc(floats) for floats in 3 * layers * [word * 2048]]
    for _ in range(8):
        words, caches = numbers.within(200, 1500), []
        for _ in range(layers):
            x, inner = log.alloc(words * word), log.alloc(4 * words * word)
            caches += [log.alloc(words * word), log.alloc(words * word)]
            log.free(inner, x)
        for _ in range(64):
            words += 1
            grow(log, caches, words * word)
        log.free(*caches)
    log.free(*weights)


def main() -> None:
    programs = {"cudarc": cudarc, "generation": generation, "beside": beside, "texts": texts, "prompts": prompts}
    name, *sizes = sys.argv[1:] or [""]
    takes = 2 if name in ("texts", "prompts") else 0
    if name not in programs or len(sizes) != takes or not all(size.isdecimal() for size in sizes):
        sys.exit(__doc__)
    log = Log()
    for _ in range(2):
        programs[name](log, *map(int, sizes))
        log.now += PAUSE_US


if __name__ == "__main__":
    main()
