# SPDX-License-Identifier: MIT
"""Quantized TFLite models of a few layers, written as FlatBuffers.

A FlatBuffers table is a dict of field number to value here; the numbers are those of
tensorflow/lite/schema/schema.fbs, the layout is that of FlatBuffers' "Internals" page.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

ADD, CONV_2D, DEPTHWISE_CONV_2D = 0, 3, 4
"""BuiltinOperator."""
_OPTIONS = {ADD: 11, CONV_2D: 1, DEPTHWISE_CONV_2D: 2}
"""BuiltinOperator -> member of the union BuiltinOptions."""
_TYPES = {"int32": 2, "uint8": 3, "int8": 9}


@dataclass(frozen=True)
class Number:
    """A scalar, which stands in its table itself; ``format`` is struct's."""

    format: str
    value: int


@dataclass(frozen=True)
class Tensor:
    shape: tuple[int, ...]
    scale: float
    zero_point: int = 0
    data: Array | None = None
    """What is constant; its dtype is the tensor's, else that is uint8."""


@dataclass(frozen=True)
class Layer:
    code: int
    inputs: Sequence[int]
    """Numbers of tensors: of a convolution the input, the weights and the bias."""
    output: int
    same: bool = True
    stride: int = 1


def model(
    tensors: Sequence[Tensor],
    layers: Sequence[Layer],
    inputs: Sequence[int],
    outputs: Sequence[int],
) -> bytes:
    """A .tflite file with one graph."""
    codes = sorted({layer.code for layer in layers})
    constants = [tensor.data for tensor in tensors if tensor.data is not None]
    places = iter(range(1, len(constants) + 1))
    described = [
        {
            0: _integers(tensor.shape),
            1: Number("b", _TYPES["uint8" if tensor.data is None else tensor.data.dtype.name]),
            2: Number("I", 0 if tensor.data is None else next(places)),
            4: {
                2: np.array([tensor.scale], np.float32),
                3: np.array([tensor.zero_point], np.int64),
            },
        }
        for tensor in tensors
    ]
    operators = [
        {
            0: Number("I", codes.index(layer.code)),
            1: _integers(layer.inputs),
            2: _integers([layer.output]),
            3: Number("B", _OPTIONS[layer.code]),
            4: _options(layer),
        }
        for layer in layers
    ]
    root = {
        0: Number("I", 3),
        1: [{0: Number("b", code), 3: Number("i", code)} for code in codes],
        2: [{0: described, 1: _integers(inputs), 2: _integers(outputs), 3: operators}],
        # The first is empty: that of all tensors that are not constant.
        4: [{}, *({0: data.reshape(-1).view(np.uint8)} for data in constants)],
    }
    file = bytearray(b"\0\0\0\0TFL3")
    _put(file, 0, root)
    return bytes(file)


def _options(layer: Layer) -> dict[int, Number]:
    if layer.code == ADD:
        return {}
    options = {
        0: Number("b", 0 if layer.same else 1),
        1: Number("i", layer.stride),
        2: Number("i", layer.stride),
    }
    if layer.code == DEPTHWISE_CONV_2D:
        options[3] = Number("i", 1)
    return options


def _integers(values: Sequence[int]) -> Array:
    return np.array(values, np.int32)


def _put(file: bytearray, at: int, value: Any) -> None:
    """Append a value and write its offset at ``at``: offsets point forward, so all comes later."""
    # Elements of 8 bytes stand behind a count of 4.
    file += bytes(-(len(file) + 4) % 8)
    if isinstance(value, dict):
        target = _put_table(file, value)
    else:
        target = len(file)
        file += struct.pack("<I", len(value))
        if isinstance(value, list):
            file += bytes(4 * len(value))
            for index, each in enumerate(value):
                _put(file, target + 4 + 4 * index, each)
        else:
            file += value.tobytes()
    struct.pack_into("<I", file, at, target - at)


def _put_table(file: bytearray, fields: dict[int, Any]) -> int:
    """Every field has 4 bytes, whatever its size: no table here has a scalar of 8."""
    slots = max(fields, default=-1) + 1
    size = 4 + 2 * slots
    offsets = [4 + 4 * slot if slot in fields else 0 for slot in range(slots)]
    start = len(file)
    file += struct.pack(f"<{slots + 2}H", size, 4 + 4 * slots, *offsets)
    file += bytes(-len(file) % 4)
    target = len(file)
    file += struct.pack("<i", target - start) + bytes(4 * slots)
    for slot, value in fields.items():
        at = target + 4 + 4 * slot
        if isinstance(value, Number):
            struct.pack_into(f"<{value.format}", file, at, value.value)
        else:
            _put(file, at, value)
    return target
