"""A rank is killed, and the job goes on with one rank fewer from its checkpoint."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from pathlib import Path
from typing import Any

from on_several import ON_CPU, WIDTH, Job
from on_several_nccl import churn
from on_several_training import network
from turns import Turn

FOLDER, DIES_AT = "JOBS_CHECKPOINTS", "JOBS_DIES_AT"
STEPS, EVERY, DEATH = 24, 5, 13
#: Of all ranks together: a number that three and four ranks divide.
ROWS = 768


def resumable(job: Job) -> None:
    """DDP that keeps a checkpoint each fifth step, and begins with the last one. Its last rank may kill itself."""
    import torch
    import torch.distributed as dist

    folder = Path(os.environ.get(FOLDER) or tempfile.mkdtemp())
    kept, dies_at = folder / "kept.pt", int(os.environ.get(DIES_AT, "-1"))
    model = torch.nn.parallel.DistributedDataParallel(network().to(job.device), device_ids=None if ON_CPU else [job.rank])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    begin = 0
    if kept.exists():
        state = torch.load(kept, map_location=job.device, weights_only=True)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        begin = state["step"]
    job.notes["begins at"] = begin
    for index in range(begin, STEPS):
        if index == dies_at and job.rank == job.world - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        rows = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(index))
        optimizer.zero_grad()
        loss = model(rows[job.rank :: job.world].to(job.device)).square().mean()
        loss.backward()
        optimizer.step()
        if not ON_CPU:
            churn(job, index)
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        job.losses.append((mean.item() / job.world).hex())
        if job.rank == 0:
            with open(folder / f"losses-{job.world}", "a") as file:
                file.write(json.dumps([index, job.losses[-1]]) + "\n")
            if (index + 1) % EVERY == 0:
                state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": index + 1}
                torch.save(state, folder / "new.pt")
                os.replace(folder / "new.pt", kept)


def resumed(job: Job, script: str, ranks: int = 4) -> None:
    """A job of several ranks of which one dies, and what goes on from its checkpoint with one rank fewer."""

    def losses(ranks: int) -> dict[int, str]:
        lines = (folder / f"losses-{ranks}").read_text().splitlines()
        return {index: loss for index, loss in map(json.loads, lines)}

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        variables = {FOLDER: name}
        first = Turn(script, "resumable", job.allocator, ranks, {**variables, DIES_AT: str(DEATH)})
        # Also where one is left, which alone has no rank of its own.
        second = Turn(script, "resumable", job.allocator, ranks - 1, {**variables, "RANK": "0", "LOCAL_RANK": "0"})
        try:
            results, wrong = first.finish(25)
            assert not results and f"rank {ranks - 1}: status -9" in wrong, wrong
            results, wrong = second.finish(25)
            assert not wrong, wrong
        finally:
            first.kill()
            second.kill()
        before, after = losses(ranks), losses(ranks - 1)
    began = DEATH // EVERY * EVERY
    assert [result["notes"]["begins at"] for result in results] == [began] * (ranks - 1), results
    assert sorted(before) == list(range(DEATH)) and sorted(after) == list(range(began, STEPS)), (before, after)
    off = [abs(float.fromhex(after[at]) / float.fromhex(before[at]) - 1) for at in range(began, DEATH)]
    assert max(off) < 1e-4, f"steps that both did have other losses: {off}"
    job.notes |= {"repeated steps differ by": max(off), "begins at": began}
    job.losses = [*before.values(), *after.values()]
    job.gpus = []


RANKS: tuple[Any, ...] = (resumable,)
