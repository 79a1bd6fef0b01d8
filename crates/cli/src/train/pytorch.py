"""Trains the model of `millpond train` with PyTorch: the same data, initial weights and order of images.

Called by the command with a folder, which has what is trained, and a way: eager, compiled or graph. Prints a line of JSON
for each epoch, and one for what all of them took.
"""

import contextlib
import json
import re
import sys
import time
from pathlib import Path

import torch

VALIDATION_BATCH = 1000


def read(path, dtype):
    return torch.frombuffer(bytearray(path.read_bytes()), dtype=dtype)


def resident(key):
    """What the process has of the machine's memory, in bytes: VmRSS now, or VmHWM at most."""
    return int(re.search(rf"{key}:\s+(\d+) kB", Path("/proc/self/status").read_text()).group(1)) << 10


class Split:
    def __init__(self, folder, name, device):
        self.labels = read(folder / f"{name}-labels", torch.uint8).long().to(device)
        self.images = read(folder / f"{name}-images", torch.uint8).view(len(self.labels), -1).to(device)

    def batch(self, index):
        return self.images[index].float() / 255, self.labels[index]


def model_of(folder, task, device):
    sizes, weights, at, layers = task["sizes"], read(folder / "weights", torch.float32), 0, []
    for inputs, outputs in zip(sizes, sizes[1:]):
        layer = torch.nn.Linear(inputs, outputs, bias=False)
        with torch.no_grad():
            layer.weight.copy_(weights[at : at + inputs * outputs].view(inputs, outputs).t())
        at += inputs * outputs
        layers += [layer, torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1]).to(device)


class Trainer:
    def __init__(self, folder, way):
        self.folder, self.task = folder, json.loads((folder / "task").read_text())
        self.device = torch.device(self.task["device"])
        self.is_gpu = self.device.type == "cuda"
        torch.backends.cuda.matmul.allow_tf32 = self.task["precision"] != "float32"
        self.train_split = Split(folder, "train", self.device)
        self.validation = Split(folder, "validation", self.device)
        if not self.is_gpu:
            with contextlib.suppress(OSError):  # VmHWM starts again from here, where that is allowed
                Path("/proc/self/clear_refs").write_text("5")
        self.resident = resident("VmRSS")
        self.model = model_of(folder, self.task, self.device)
        self.forward = torch.compile(self.model, dynamic=False) if way == "compiled" else self.model
        rate, momentum = self.task["learning_rate"], self.task["momentum"]
        options = {"fused": True} if self.is_gpu else {}
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=rate, momentum=momentum, **options)
        self.total = torch.zeros((), dtype=torch.float64, device=self.device)
        self.graph = self.captured() if way == "graph" else None

    def step(self, index):
        x, labels = self.train_split.batch(index)
        self.optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.cross_entropy(self.forward(x), labels)
        loss.backward()
        self.optimizer.step()
        self.total += loss.detach().double() * len(index)

    def captured(self):
        """A step over a fixed index as a graph. The weights are put back after those steps that warm up."""
        before = [weight.detach().clone() for weight in self.model.parameters()]
        self.index = torch.arange(self.task["batch_size"], device=self.device) % len(self.train_split.labels)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.step(self.index)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step(self.index)
        with torch.no_grad():
            for weight, value in zip(self.model.parameters(), before):
                weight.copy_(value)
            for state in self.optimizer.state.values():
                if state.get("momentum_buffer") is not None:
                    state["momentum_buffer"].zero_()
        return graph

    def epoch(self, order):
        self.total.zero_()
        for index in order.split(self.task["batch_size"]):
            if self.graph and len(index) == len(self.index):
                self.index.copy_(index)
                self.graph.replay()
            else:
                self.step(index)
        return self.total.item() / len(order)

    @torch.no_grad()
    def validate(self):
        count = len(self.validation.labels)
        loss, right = torch.zeros(2, dtype=torch.float64, device=self.device)
        for index in torch.arange(count, device=self.device).split(VALIDATION_BATCH):
            x, labels = self.validation.batch(index)
            logits = self.forward(x)
            loss += torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
            right += (logits.argmax(1) == labels).sum()
        return loss.item() / count, right.item() / count

    def run(self):
        orders = read(self.folder / "orders", torch.int32).long().view(self.task["epochs"], -1)
        for number, order in enumerate(orders, 1):
            began = time.perf_counter()
            train_loss = self.epoch(order.to(self.device))
            val_loss, val_accuracy = self.validate()
            wall_ms = (time.perf_counter() - began) * 1e3
            line = {"epoch": number, "train_loss": train_loss, "val_loss": val_loss, "device_calls": 0}
            print(json.dumps(line | {"val_accuracy": val_accuracy, "wall_ms": wall_ms}), flush=True)
        requested, reserved = 0, resident("VmHWM") - self.resident
        if self.is_gpu:
            stats = torch.cuda.memory_stats(self.device)
            requested, reserved = (stats[f"{what}_bytes.all.peak"] for what in ("requested", "reserved"))
        print(json.dumps({"peak_requested": requested, "peak_reserved": max(reserved, 0)}))


if __name__ == "__main__":
    Trainer(Path(sys.argv[1]), sys.argv[2]).run()
