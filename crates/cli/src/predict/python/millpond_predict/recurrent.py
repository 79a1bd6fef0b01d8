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

#: What each layer and way takes besides.
OF_EACH = 8 << 20

#: Of an LSTM of one layer and one way in float16, over its gates: measured where 512 values are hidden, and not where 256 are.
LSTM_IN_HALF, FROM_HIDDEN = 6.3, 512


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

    def __init__(
        self, input: Any, mode: int, hidden: int, projected: int, layers: int, both_ways: bool, batches: Any, batch_first: bool
    ) -> None:
        self.directions = 2 if both_ways else 1
        #: Places of all sequences.
        self.places = input.shape[0] if batches else input.shape[0] * input.shape[1]
        self.is_packed = bool(batches)
        #: Sequences at once.
        self.batch = int(batches[0]) if batches else input.shape[0 if batch_first else 1]
        self.outside = (projected or hidden) * self.directions
        self.mode, self.hidden, self.layers = mode, hidden, layers
        self.inside, self.element = input.shape[-1], input.element_size()

    def kept(self, input: Any, dropout: float) -> int:
        layer = self.places * self.hidden * self.directions
        # Of what is dropped, one bit each.
        dropped = layer * (self.layers - 1) // 8 if dropout > 0 else 0
        times = KEPT[self.mode == GRU] * self.layers + self.layers - 1
        return int(layer * times * input.element_size() + dropped + 256)

    def workspace(self, weights: Any) -> int:
        """The gates, the outputs of both ways twice, and the weights once: as measured (``docs/lab/predict.md``)."""
        outputs = self.places * self.hidden * self.directions * self.element
        gates = GATES[self.mode] * outputs
        taken = gates + (2 * outputs if self.directions == 2 else 0) + weights.numel() * self.element
        of_each = OF_EACH + (GATES[self.mode] + 2) * self.batch * self.hidden * self.element
        taken += self.layers * self.directions * of_each
        if not self.is_packed:
            # Its own copies of what goes in and comes out. Those of a GRU took up to one more.
            copied = self.inside, self.outside
            taken += self.places * self.element * (sum(copied) + (max(copied) if self.mode == GRU else 0))
            is_alone = self.layers * self.directions == 1
            if self.mode == LSTM and self.element == 2 and is_alone and self.hidden >= FROM_HIDDEN:
                taken = max(taken, LSTM_IN_HALF * gates)
        return int(taken)


def forward(working_in: Any) -> Any:
    def run(
        input: Any, weights: Any, stride: int, buffer: Any, state: Any, cells: Any, mode: int, hidden: int, projected: int,
        layers: int, batch_first: bool, dropout: float, train: bool, both_ways: bool, batches: Any, dropout_state: Any,
    ) -> Any:  # fmt: skip
        if buffer is None:
            # Where the weights lie in one buffer, it is this one.
            buffer = torch.empty(0, dtype=weights[0].dtype, device=input.device).set_(weights[0].untyped_storage())
        sizes = Layers(input, mode, hidden, projected, layers, both_ways, batches, batch_first)
        lasting = input.transpose(0, 1).contiguous() if batch_first and not batches else input.contiguous()
        output = torch.empty((*lasting.shape[:-1], sizes.outside), dtype=input.dtype, device=input.device)
        last_state = torch.empty_like(state)
        last_cells = torch.empty_like(cells) if cells is not None else torch.empty(0, device=input.device)
        with working_in(sizes.workspace(buffer), input.device):
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
        sizes = Layers(input, mode, hidden, projected, layers, both_ways, batches, batch_first)
        turned = batch_first and not batches

        def in_order(tensor: Any) -> Any:
            return (tensor.transpose(0, 1) if turned else tensor).contiguous()

        # Gradients of states that nobody used are zeros.
        pairs = ((of_cells, cells), (of_state, state))
        unused = [torch.zeros_like(part) for given, part in pairs if given is None and part is not None]
        lasting, of_outputs = in_order(input), in_order(of_output) if of_output is not None else None
        of_input = torch.empty_like(lasting)
        gradients = [torch.empty_like(part) if part is not None else None for part in (state, cells)]
        work_in(sizes.workspace(buffer), input.device)
        del lasting, of_outputs
        # The gradients of the weights are a second call.
        lasting, flat = in_order(input), torch.zeros_like(buffer)
        work_in(sizes.workspace(buffer), input.device)
        del lasting, unused
        parts, at = [], 0
        for weight in weights:
            parts.append(flat[at : at + weight.numel()].view(weight.shape))
            at += weight.numel()
        if turned:
            of_input = of_input.transpose(0, 1)
        return of_input, *gradients, parts

    return run
