"""Two processes share one budget, on the CPU as the device. What is idle in one goes to the other.

On a GPU, pass its number instead of "host".
"""

import multiprocessing
import os
from multiprocessing.connection import Connection

import millpond

NAME = f"example-{os.getpid()}"


def other(name: str, steps: Connection) -> None:
    """The other process: it uses memory, frees it, and keeps it cached."""
    budget = millpond.Budget("256MiB", name=name, floor="32MiB")
    pool = millpond.Pool("host", budget=budget)
    block = pool.allocate("200MiB")
    steps.send("allocated")
    steps.recv()
    block.free()
    steps.send("freed")
    steps.recv()


if __name__ == "__main__":
    here, there = multiprocessing.Pipe()
    # A new program, not a fork of this one: it joins for itself.
    process = multiprocessing.get_context("spawn").Process(target=other, args=(NAME, there))
    process.start()
    here.recv()

    budget = millpond.Budget("256MiB", name=NAME)
    pool = millpond.Pool("host", budget=budget)
    try:
        pool.allocate("200MiB")
    except millpond.OutOfMemoryError as error:
        print(error)
    here.send("free it")
    here.recv()
    block = pool.allocate("200MiB")  # it lay idle in the other process
    print(budget, budget.tenants())

    here.send("end")
    process.join()
    assert process.exitcode == 0 and budget.held >= block.size
