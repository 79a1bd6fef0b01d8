"""Operations of cuDNN, which the preloaded library does not have: what they return, and the workspaces that they take.

The workspaces are measured: ``docs/lab/predict.md``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from . import recurrent
from .settings import ANSWER
from .values import LIBRARY

RECORDING: Any = None


def begin(recording: Any) -> None:
    global RECORDING
    RECORDING = recording
    for name, operation in {
        "cudnn_convolution": convolution,
        "cudnn_convolution.out": convolution_out,
        "cudnn_convolution_transpose": transposed_convolution,
        "convolution_backward": convolution_backward,
        "cudnn_batch_norm": batch_norm,
        "cudnn_batch_norm_backward": batch_norm_backward,
        "_cudnn_rnn": recurrent.forward(working_in),
        "_cudnn_rnn_backward": recurrent.backward(work_in),
        "_cudnn_rnn_flatten_weight": recurrent.flat_weights,
        "_cudnn_init_dropout_state": recurrent.dropout_state,
        "_cudnn_ctc_loss": ctc_loss,
        "_cudnn_ctc_loss.Tensor": ctc_loss,
        "_scaled_dot_product_cudnn_attention": attention,
        "_scaled_dot_product_cudnn_attention_backward": attention_backward,
    }.items():
        LIBRARY.impl(name, operation, "CUDA", allow_override=True)


def work_in(bytes: int, device: Any) -> None:
    """A workspace that is given back at once."""
    with working_in(bytes, device):
        pass


@contextlib.contextmanager
def working_in(bytes: int, device: Any) -> Iterator[None]:
    """A workspace that is given back at the end."""
    phase, module = RECORDING.phase, RECORDING.module
    RECORDING.set("workspace", module)
    workspace = torch.empty(bytes, dtype=torch.uint8, device=device)
    RECORDING.set(phase, module)
    yield
    del workspace


def bytes_of(*tensors: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


# Convolutions


def format_for(input: Any, weight: Any) -> torch.memory_format:
    """As PyTorch chooses it (``cudnn_conv_suggest_memory_format``)."""
    last = torch.channels_last if input.dim() == 4 else torch.channels_last_3d
    if input.dim() in (4, 5) and (is_in(input, last) or is_in(weight, last)):
        return last
    return torch.contiguous_format


def is_in(tensor: Any, format: torch.memory_format) -> bool:
    return tensor.is_contiguous(memory_format=format) and not tensor.is_contiguous()


#: Channels that tensor cores take at once, where cuDNN fills up to them.
TOGETHER = {torch.float16: 4, torch.bfloat16: 8}


def padded(tensor: Any, dimension: int) -> int:
    """Bytes with the channels rounded up."""
    channels = tensor.shape[dimension]
    step = TOGETHER.get(tensor.dtype, 1)
    return int(bytes_of(tensor) // max(channels, 1) * (-(-channels // step) * step))


def workspace(input: Any, weight: Any, output: Any, stride: Any, groups: int, of_weight: bool = False) -> int:
    """Tensor cores want the channels last, so cuDNN copies what has another order. The gradient of a weight is summed in parts."""
    if torch.backends.cudnn.benchmark:
        ANSWER.say_first(
            "torch.backends.cudnn.benchmark is on, and is predicted as if it were off: cuDNN tries kernels with larger workspaces. "
            "A small ResNet requested 3 times as much. The figures are those without the setting"
        )
    if groups > 1 and groups == input.shape[1]:
        return 0
    has_order = format_for(input, weight) != torch.contiguous_format
    is_product = all(size == 1 for size in (*weight.shape[2:], *stride))
    part = weight.numel() * 4
    image = bytes_of(input) // max(input.shape[0] * input.shape[1], 1)
    if is_product and of_weight and image % ALIGNED == 0:
        # A product for each image.
        return part * int(input.shape[0]) + SMALL
    is_float32 = input.dtype == torch.float32
    if is_float32 and not has_order and input.shape[1] < FEW and all(step == 1 for step in stride):
        return SMALL
    is_padded = input.shape[1] % 8 != 0
    bytes = 0
    if (not has_order and (of_weight or not is_product)) or (is_padded and of_weight and is_float32):
        bytes = padded(input, 1) + padded(output, 1) + padded(weight, 1)
    elif is_padded:
        bytes = padded(input, 1) + padded(weight, 1)
    if of_weight:
        places = output.numel() // max(output.shape[1], 1)
        bytes += parts_of_float32(weight) if is_float32 else part * min(MOST_PARTS, places // PLACES)
    return bytes + SMALL


def parts_of_float32(weight: Any) -> int:
    """A weight's gradient in float32 is cut into tiles of 128 channels to 128, and summed in as many parts as the card computes at once."""
    tiles = -(-weight.shape[0] // 128) * -(-weight.shape[1] // 128) * (weight.numel() // max(weight.shape[0] * weight.shape[1], 1))
    parts = MULTIPROCESSORS // max(tiles, 1)
    return int(weight.numel() * 4 * (parts if parts > 1 else FEWER_PARTS))


#: Bytes that rows have to be multiples of for tensor cores.
ALIGNED = 16

#: The parts that a weight's gradient is summed in: one for so many places of the output, of the whole batch.
PLACES = 8000
MOST_PARTS = 13

#: Of an H100. What is left where a tile each is too many.
MULTIPROCESSORS = 132
FEWER_PARTS = 11 / 12

#: Convolutions in float32 of fewer channels, such as colours, copy nothing where they take each place.
FEW = 4

#: What cuDNN asks for besides.
SMALL = 256


def convolution(input: Any, weight: Any, padding: Any, stride: Any, dilation: Any, groups: int, *_: Any, **__: Any) -> Any:
    format = format_for(input, weight)
    input, weight = input.contiguous(memory_format=format), weight.contiguous(memory_format=format)
    kernel = weight.shape[2:]
    sizes = [
        (size + 2 * pad - step * (width - 1) - 1) // stride_ + 1
        for size, pad, step, width, stride_ in zip(input.shape[2:], padding, dilation, kernel, stride)
    ]
    output = torch.empty(
        (input.shape[0], weight.shape[0], *sizes), dtype=input.dtype, device=input.device, memory_format=format
    )
    work_in(workspace(input, weight, output, stride, groups), input.device)
    return output


def convolution_out(
    input: Any, weight: Any, padding: Any, stride: Any, dilation: Any, groups: int, *_: Any, out: Any, **__: Any
) -> Any:
    work_in(workspace(input, weight, out, stride, groups), input.device)
    return out


def transposed_convolution(
    input: Any, weight: Any, padding: Any, output_padding: Any, stride: Any, dilation: Any, groups: int, *_: Any, **__: Any
) -> Any:
    format = format_for(input, weight)
    input, weight = input.contiguous(memory_format=format), weight.contiguous(memory_format=format)
    sizes = [
        (size - 1) * stride_ - 2 * pad + step * (width - 1) + more + 1
        for size, pad, step, width, stride_, more in zip(
            input.shape[2:], padding, dilation, weight.shape[2:], stride, output_padding
        )
    ]
    output = torch.empty(
        (input.shape[0], weight.shape[1] * groups, *sizes), dtype=input.dtype, device=input.device, memory_format=format
    )
    work_in(workspace(input, weight, output, stride, groups), input.device)
    return output


def convolution_backward(
    gradient: Any, input: Any, weight: Any, bias_sizes: Any, stride: Any, padding: Any, dilation: Any, transposed: bool,
    output_padding: Any, groups: int, wanted: Any,
) -> Any:  # fmt: skip
    format = format_for(input, weight)
    gradient = gradient.contiguous(memory_format=format)
    of_input = of_weight = of_bias = None
    if wanted[0]:
        of_input = torch.empty(input.shape, dtype=input.dtype, device=input.device, memory_format=format)
        work_in(workspace(input, weight, gradient, stride, groups), input.device)
    if wanted[1]:
        of_weight = torch.empty(weight.shape, dtype=weight.dtype, device=weight.device, memory_format=format)
        work_in(workspace(input, weight, gradient, stride, groups, of_weight=True), input.device)
    if wanted[2]:
        of_bias = gradient.sum(dim=[0, *range(2, gradient.dim())])
    return of_input, of_weight, of_bias


# Batch norms

#: Bytes of a forward's workspace for each element with the channels last, by the bytes of one; and those of a backward's.
FOR_EACH = {2: 0.051, 4: 0.127}
OF_BACKWARD = 536_612


def is_last(input: Any) -> bool:
    return format_for(input, input) != torch.contiguous_format


def batch_norm(input: Any, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, *_: Any, **__: Any) -> Any:
    output = torch.empty_like(input)
    channels = input.shape[1] if training else 0
    saved = [torch.empty(channels, dtype=weight.dtype, device=input.device) for _ in range(2)]
    if training and is_last(input):
        work_in(int(input.numel() * FOR_EACH.get(input.element_size(), 0)), input.device)
    return output, *saved, torch.empty(0, dtype=torch.uint8, device=input.device)


def batch_norm_backward(input: Any, gradient: Any, weight: Any, *_: Any, **__: Any) -> Any:
    gradients = torch.empty_like(input), torch.empty_like(weight), torch.empty_like(weight)
    if is_last(input):
        work_in(OF_BACKWARD, input.device)
    return gradients


# Texts beside sounds


def ctc_loss(log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, *_: Any) -> Any:
    """A table of what may lead to each place of a text, and one of what may follow, with blanks between."""
    times, texts, _classes = log_probs.shape
    longest = int(max(target_lengths)) if not isinstance(target_lengths, torch.Tensor) else targets.numel() // max(texts, 1)
    gradients = torch.empty_like(log_probs)
    ANSWER.remark("the workspace of cuDNN's ctc_loss() was not measured; it is taken to be two tables of the text's places and times")
    work_in(2 * 4 * times * texts * (2 * longest + 1), log_probs.device)
    return torch.empty(texts, dtype=log_probs.dtype, device=log_probs.device), gradients


# Attention


def like(sizes: Any, query: Any) -> Any:
    """Of these sizes, with the dimensions in memory in the order of the query's."""
    order = sorted(range(4), key=lambda dim: (query.stride(dim), query.size(dim) == 1), reverse=True)
    there = torch.empty([sizes[dim] for dim in order], dtype=query.dtype, device=query.device)
    return there.permute([order.index(dim) for dim in range(4)])


def attention(
    query: Any, key: Any, value: Any, bias: Any, with_logsumexp: bool, dropout: float = 0.0, is_causal: bool = False,
    debug: bool = False, *, scale: Any = None,
) -> Any:  # fmt: skip
    batch, heads, length, _ = query.shape
    seed, offset = (torch.empty((), dtype=torch.int64, device=query.device) for _ in range(2))
    output = like((batch, heads, length, value.shape[3]), query)
    sums = torch.empty((batch, heads, length, 1) if with_logsumexp else (0,), dtype=torch.float32, device=query.device)
    work_in(SMALL, query.device)
    nothing = torch.Tensor()
    return output, sums, nothing, nothing, length, key.shape[2], seed, offset, nothing


def attention_backward(gradient: Any, query: Any, key: Any, value: Any, output: Any, sums: Any, *_: Any, **__: Any) -> Any:
    gradients = tuple(like(tensor.shape, tensor) for tensor in (query, key, value))
    # The query's gradient is summed in float32, and a sum of each row besides.
    work_in(query.numel() * 4 + sums.numel() * 4 + SMALL, query.device)
    return gradients
