"""A job that runs out of memory with PyTorch's own allocator, and fits under the same limit with millpond.

    python examples/python/fits.py [LIMIT_GIB]

Forty conversations are served at once. Each has a cache of keys and values that grows with its text, by `torch.cat`, as
in many a hand-written decoder; when one ends, another begins. The sizes change at every step, so that blocks of the one
size never quite fit the next. Both runs are stopped at the same limit (`torch.cuda.set_per_process_memory_fraction`).
Needs a GPU with 20 GiB free.
"""

import json
import random
import subprocess
import sys

GIB = 1 << 30
CONVERSATIONS, STEPS = 40, 400
#: Bytes of a token's keys and values: 32 layers, 8 heads of 128, two bytes each.
TOKEN = 32 * 2 * 8 * 128 * 2


def tokens_of_conversations(seed):
    """For each step, the conversations that change, and their new numbers of tokens; True where one begins anew."""
    chance = random.Random(seed)
    lengths = [chance.randint(200, 2000) for _ in range(CONVERSATIONS)]
    ends = [chance.randint(2000, 6000) for _ in range(CONVERSATIONS)]
    yield [(number, length, True) for number, length in enumerate(lengths)]
    for _ in range(STEPS):
        changes = []
        for number in range(CONVERSATIONS):
            if chance.random() < 0.5:
                continue
            lengths[number] += chance.randint(10, 120)
            begins = lengths[number] > ends[number]
            if begins:
                lengths[number], ends[number] = chance.randint(50, 1000), chance.randint(2000, 6000)
            changes.append((number, lengths[number], begins))
        yield changes


def serve(torch):
    """Runs the job; the steps that it came to."""
    caches = {}
    for step, changes in enumerate(tokens_of_conversations(seed=1)):
        for number, tokens, begins in changes:
            if begins:
                caches.pop(number, None)
                caches[number] = torch.zeros(tokens, TOKEN, dtype=torch.uint8, device="cuda")
            else:
                old = caches[number]
                fresh = torch.zeros(tokens - len(old), TOKEN, dtype=torch.uint8, device="cuda")
                caches[number] = torch.cat([old, fresh])
                del old
        yield step


def run(allocator, limit):
    """One run, in this process."""
    if allocator == "millpond":
        import millpond

        millpond.torch.enable()
    try:
        import torch
    except ImportError as missing:
        sys.exit(f"PyTorch cannot be imported ({missing}): install it with pip install torch")
    if not torch.cuda.is_available():
        sys.exit("PyTorch finds no GPU: this example needs one with 20 GiB free")

    free, total = torch.cuda.mem_get_info()
    if free < limit:
        sys.exit(f"the GPU has {free / GIB:.1f} GiB free, and the limit is {limit / GIB:.1f} GiB: pass a lower one")
    torch.cuda.set_per_process_memory_fraction(limit / total)
    step, error = -1, None
    try:
        for step in serve(torch):
            pass
    except torch.OutOfMemoryError as out_of_memory:
        error = str(out_of_memory)
    figures = torch.cuda.memory_stats()
    names = {"requested": "requested_bytes.all.peak", "reserved": "reserved_bytes.all.peak"}
    print(json.dumps({"steps": step, "error": error} | {name: figures[key] / GIB for name, key in names.items()}))


def main():
    """Both runs, each in a process of its own."""
    try:
        limit = float(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_LIMIT_GIB
    except ValueError:
        sys.exit(f"fits.py: {sys.argv[1]} is no number: pass the limit in GiB, such as 17.5")
    print(f"limit {limit:.1f} GiB; {STEPS} steps")
    print(f"{'':10}{'steps':>7}{'requested':>12}{'reserved':>12}")
    results = {}
    for allocator in ("native", "millpond"):
        command = [sys.executable, __file__, "--run", allocator, str(limit * GIB)]
        # What goes wrong there is said on the terminal.
        ended = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        if ended.returncode != 0:
            sys.exit(f"fits.py: the run with {allocator} failed; why is said above")
        result = results[allocator] = json.loads(ended.stdout.splitlines()[-1])
        sizes = f"{result['requested']:8.2f} GiB{result['reserved']:8.2f} GiB"
        print(f"{allocator:10}{result['steps']:7}{sizes}  {'out of memory' if result['error'] else 'fits'}")
    for allocator, result in results.items():
        if result["error"]:
            print(f"\n{allocator}: {result['error']}")


DEFAULT_LIMIT_GIB = 17.5

if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        run(sys.argv[2], float(sys.argv[3]))
    else:
        main()
