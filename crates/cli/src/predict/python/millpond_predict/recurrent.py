"""cuDNN's recurrent layers: what they return, what they keep for the backward, and their workspaces (``docs/lab/predict.md``)."""

from __future__ import annotations

from typing import Any

import torch

#: PyTorch's number of an LSTM, which has a state of cells besides.
LSTM = 2

#: Gates of each kind of layer: with ReLU, with tanh, an LSTM, a GRU.
GATES = (1, 1, 4, 3)

GRU = 3

#: Of a layer's outputs, how many times as much it keeps: a GRU, and others.
KEPT = {True: 6, False: 5}

#: The state of random numbers for dropout on an H100: 24 bytes for each thread that it runs at once.
DROPOUT_STATE = 132 * 2048 * 24

#: Measured workspaces over the gates in float32: of one layer, of more, and of those that run both ways.
#: Those of a GRU are as of layers that run both ways.
WORKSPACES = {False: (2.0, 2.65, 2.2), True: (3.15, 1.65, 1.65)}


def flat_weights(
    weights: list[Any], stride: int, inside: int, mode: int, hidden: int, projected: int, layers: int, batch_first: bool,
    both_ways: bool,
) -> Any:  # fmt: skip
    """One buffer, in which all weights lie from here on."""
    buffer = torch.zeros(sum(weight.numel() for weight in weights), dtype=weights[0].dtype, device=weights[0].device)
    at = 0
    with torch.no_grad():
        for weight in weights:
            weight.set_(buffer[at : at + weight.numel()].view(weight.shape))
            at += weight.numel()
    return buffer


def dropout_state(dropout: float, train: bool, seed: int, **where: Any) -> Any:
    is_used = dropout > 0 and train
    return torch.empty(DROPOUT_STATE if is_used else 0, dtype=torch.uint8, device=where["device"])


class Layers:
    """The sizes of one call."""

    def __init__(self, input: Any, mode: int, hidden: int, projected: int, layers: int, both_ways: bool, batches: Any) -> None:
        self.directions = 2 if both_ways else 1
        #: Places of all sequences.
        self.places = input.shape[0] if batches else input.shape[0] * input.shape[1]
        self.outside = (projected or hidden) * self.directions
        self.mode, self.hidden, self.layers = mode, hidden, layers
        self.is_half = input.element_size() == 2

    def kept(self, input: Any, dropout: float) -> int:
        layer = self.places * self.hidden * self.directions
        # Of what is dropped, one bit each.
        dropped = layer * (self.layers - 1) // 8 if dropout > 0 else 0
        times = KEPT[self.mode == GRU] * self.layers + self.layers - 1
        return int(layer * times * input.element_size() + dropped + 256)

    def workspace(self) -> int:
        one, more, both_ways = WORKSPACES[self.is_half]
        times = both_ways if self.directions == 2 or self.mode == GRU else more if self.layers > 1 else one
        return int(self.places * GATES[self.mode] * self.hidden * self.directions * 4 * times)


def forward(working_in: Any) -> Any:
    def run(
        input: Any, weights: Any, stride: int, buffer: Any, state: Any, cells: Any, mode: int, hidden: int, projected: int,
        layers: int, batch_first: bool, dropout: float, train: bool, both_ways: bool, batches: Any, dropout_state: Any,
    ) -> Any:  # fmt: skip
        if buffer is None:
            # Where the weights lie in one buffer, it is this one.
            buffer = torch.empty(0, dtype=weights[0].dtype, device=input.device).set_(weights[0].untyped_storage())
        sizes = Layers(input, mode, hidden, projected, layers, both_ways, batches)
        lasting = input.transpose(0, 1).contiguous() if batch_first and not batches else input.contiguous()
        output = torch.empty((*lasting.shape[:-1], sizes.outside), dtype=input.dtype, device=input.device)
        last_state = torch.empty_like(state)
        last_cells = torch.empty_like(cells) if cells is not None else torch.empty(0, device=input.device)
        with working_in(sizes.workspace(), input.device):
            kept = torch.empty(sizes.kept(input, dropout) if train else 0, dtype=torch.uint8, device=input.device)
        if batch_first and not batches:
            output = output.transpose(0, 1)
        return output, last_state, last_cells, kept, buffer

    return run


def backward(work_in: Any) -> Any:
    def run(
        input: Any, weights: Any, stride: int, buffer: Any, state: Any, cells: Any, output: Any, of_output: Any, of_state: Any,
        of_cells: Any, mode: int, hidden: int, projected: int, layers: int, batch_first: bool, dropout: float, train: bool,
        both_ways: bool, batches: Any, dropout_state: Any, kept: Any, wanted: Any,
    ) -> Any:  # fmt: skip
        sizes = Layers(input, mode, hidden, projected, layers, both_ways, batches)
        turned = batch_first and not batches

        def in_order(tensor: Any) -> Any:
            return (tensor.transpose(0, 1) if turned else tensor).contiguous()

        # Gradients of states that nobody used are zeros.
        pairs = ((of_cells, cells), (of_state, state))
        unused = [torch.zeros_like(part) for given, part in pairs if given is None and part is not None]
        lasting, of_outputs = in_order(input), in_order(of_output) if of_output is not None else None
        of_input = torch.empty_like(lasting)
        gradients = [torch.empty_like(part) if part is not None else None for part in (state, cells)]
        work_in(sizes.workspace(), input.device)
        del lasting, of_outputs
        # The gradients of the weights are a second call.
        lasting, flat = in_order(input), torch.zeros_like(buffer)
        work_in(sizes.workspace(), input.device)
        del lasting, unused
        parts, at = [], 0
        for weight in weights:
            parts.append(flat[at : at + weight.numel()].view(weight.shape))
            at += weight.numel()
        if turned:
            of_input = of_input.transpose(0, 1)
        return of_input, *gradients, parts

    return run
