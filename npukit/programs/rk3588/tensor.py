# SPDX-License-Identifier: MIT
"""How tensors lie in the NPU's memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from npukit import _fast
from npukit.ioctl import ProgramError

from .encodings import Precision
from .quantize import Quantization

Array = npt.NDArray[Any]

ATOM = 16
"""Bytes that are moved at once: 16 channels of int8 or 8 of float16 of a pixel."""


def align(value: int, step: int) -> int:
    return -(-value // step) * step


@dataclass(frozen=True, slots=True)
class Tensor:
    """How a tensor (height, width, channels) lies in memory: [surfaces][height][width][lanes]."""

    height: int
    width: int
    channels: int
    quantization: Quantization | None
    """None: the elements are float16."""
    surfaces: int
    """At least channels / lanes: the NPU writes whole groups of channels."""

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.height, self.width, self.channels

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the values; uint8 is stored as int8."""
        return np.dtype(self.quantization.dtype if self.quantization else np.float16)

    @property
    def precision(self) -> Precision:
        """As stored."""
        return Precision.INT8 if self.quantization else Precision.FP16

    @property
    def lanes(self) -> int:
        """Channels in an atom."""
        return ATOM // self.dtype.itemsize

    @property
    def zero(self) -> int:
        """What stands for 0, as stored."""
        return self.quantization.stored_zero_point if self.quantization else 0

    @property
    def area(self) -> int:
        """Atoms of a surface."""
        return self.height * self.width

    @property
    def size(self) -> int:
        """Bytes."""
        return self.surfaces * self.area * ATOM

    def pack(self, values: Array) -> Array:
        """``values`` (height, width, channels) as stored, int8 or float16; 0 in channels behind.

        ProgramError: another shape or dtype.
        """
        if values.shape != self.shape:
            raise ProgramError(message=f"values {values.shape} for a tensor of {self.shape}")
        if self.quantization is not None:
            stored: Array = self.quantization.store(values)
        elif values.dtype == np.float16:
            stored = np.ascontiguousarray(values)
        else:
            raise ProgramError(message=f"{values.dtype} values for a tensor of float16")
        shape = (self.surfaces, self.height, self.width, self.lanes)
        image = np.full(shape, self.zero, stored.dtype)
        packed = _fast.pack_nhwc(stored, self.zero)
        image[: len(packed)] = packed
        return image

    def unpack(self, image: Array) -> Array:
        """The values (height, width, channels) in ``image``, whose first bytes are the tensor."""
        surfaces = -(-self.channels // self.lanes)
        used = np.ascontiguousarray(image).reshape(-1).view(np.uint8)[: surfaces * self.area * ATOM]
        shape = (surfaces, self.height, self.width, self.lanes)
        if self.quantization is None:
            return _fast.unpack_nhwc(used.view(np.float16).reshape(shape), self.channels)
        stored = _fast.unpack_nhwc(used.view(np.int8).reshape(shape), self.channels)
        return self.quantization.load(stored)
