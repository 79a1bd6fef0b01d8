"""PyTorch in processes that are spawned: each says by which allocator it has its memory."""

import torch
import torch.multiprocessing as processes


def child(answers, number: int) -> None:
    total = float((torch.ones(1 << 20, device="cuda") * number).sum())
    answers.put((number, total, torch.cuda.get_allocator_backend()))


if __name__ == "__main__":
    processes.set_start_method("spawn")
    answers = processes.Queue()
    children = [processes.Process(target=child, args=(answers, number)) for number in (1, 2)]
    for started in children:
        started.start()
    print(sorted(answers.get() for _ in children))
    for started in children:
        started.join()
