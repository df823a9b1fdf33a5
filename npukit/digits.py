# SPDX-License-Identifier: MIT
"""Handwritten digits, and a small int8 network that reads them: real data for a first run.

The 1,797 images are the test part of "Optical Recognition of Handwritten Digits" (E. Alpaydin and
C. Kaynak, UCI Machine Learning Repository, https://doi.org/10.24432/C50P49, CC BY 4.0). The
network was trained by ``tools/train_digits.py`` on the images before `HELD_OUT`.

Nothing here knows a device: the matrix product of each layer is a function that the caller gives,
an NPU's or `numpy_matmul`. All else is numpy integers, so two right products give equal logits.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Matmul: TypeAlias = Callable[[NDArray[np.int8], NDArray[np.int8]], NDArray[np.int32]]
"""int8 (M, K) times int8 (K, N) to int32 (M, N), exact."""

PIXELS = 64
"""Pixels of an image: 8 rows of 8, row by row."""

PIXEL_MAX = 16
"""A pixel counts the inked dots, 0 to 16, of a 4x4 block of the scanned form."""

HELD_OUT = slice(1297, 1797)
"""The images that training never saw: the last 500, in the order of the file. Neighbours there
look written by one hand, and shuffling would put that hand on both sides."""

DATA = "data"


@dataclass(frozen=True, eq=False)
class Digits:
    """The data set.

    `images` is uint8 (1797, 64), each pixel 0 to 16; `labels` is uint8 (1797,), each 0 to 9;
    `held_out` selects the 500 images that the network was not trained on.
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.uint8]
    held_out: slice


@dataclass(frozen=True)
class Requantization:
    """From int32 sums back to int8 activations, the ReLU included.

    Each sum becomes ``sum * multiplier / 2**shift``, rounded to the nearest integer with ties
    towards plus infinity, then saturated to 0..127. `multiplier` is 2**14 to 2**15 - 1, so that
    the output converter of an NPU with a 16-bit signed scale can hold it; `shift` is 1 to 46, so
    that no step leaves 63 bits.
    """

    multiplier: int
    shift: int

    def __post_init__(self) -> None:
        if not 1 << 14 <= self.multiplier < 1 << 15:
            raise ValueError(f"multiplier {self.multiplier} is not in 16384..32767")
        if not 1 <= self.shift <= 46:
            raise ValueError(f"shift {self.shift} is not in 1..46")

    def __call__(self, sums: NDArray[np.int32]) -> NDArray[np.int8]:
        """The int8 activations of int32 `sums`, of the same shape."""
        half = 1 << (self.shift - 1)
        rounded = (sums.astype(np.int64) * self.multiplier + half) >> self.shift
        activations: NDArray[np.int8] = np.clip(rounded, 0, 127).astype(np.int8)
        return activations


@dataclass(frozen=True, eq=False)
class Layer:
    """One fully connected layer: ``activations @ weights + bias``.

    `weights` is int8 (K, N) without -128, `bias` is int32 (N,) in units of the sums.
    `requantization` is None in the last layer, whose sums are the logits.
    """

    weights: NDArray[np.int8]
    bias: NDArray[np.int32]
    requantization: Requantization | None


@dataclass(frozen=True, eq=False)
class IntegerNetwork:
    """Fully connected layers over int8 activations and int32 sums.

    Pixels are quantized by the identity: the int8 activation of a pixel is its count of 0 to 16,
    which stands for count / 16. No sum can overflow: K is at most 64, so |sum| stays below 2**20
    before the bias is added.
    """

    layers: tuple[Layer, ...]

    def logits(self, images: NDArray[np.uint8], matmul: Matmul) -> NDArray[np.int32]:
        """The int32 (M, 10) scores of uint8 (M, 64) `images`, each layer multiplied by `matmul`.

        Raises ValueError for images of another shape or with a pixel above 16.
        """
        if images.ndim != 2 or images.shape[1] != PIXELS:
            raise ValueError(f"images have shape {images.shape}, not (M, {PIXELS})")
        if images.size and images.max() > PIXEL_MAX:
            raise ValueError(f"a pixel is {images.max()}, above {PIXEL_MAX}")
        activations = images.astype(np.int8)
        for layer in self.layers:
            sums = matmul(activations, layer.weights) + layer.bias
            if layer.requantization is not None:
                activations = layer.requantization(sums)
        return sums

    def classify(self, images: NDArray[np.uint8], matmul: Matmul) -> NDArray[np.uint8]:
        """The digit, uint8 (M,), with the highest logit of each image; the lower digit of equals.

        Raises what `logits` raises.
        """
        digits: NDArray[np.uint8] = self.logits(images, matmul).argmax(axis=1).astype(np.uint8)
        return digits


def numpy_matmul(a: NDArray[np.int8], b: NDArray[np.int8]) -> NDArray[np.int32]:
    """The reference `Matmul`: numpy's product of `a` (M, K) and `b` (K, N) in int32."""
    product: NDArray[np.int32] = np.matmul(a, b, dtype=np.int32)
    return product


def load() -> Digits:
    """Read the data set from the package; each call gives arrays of its own."""
    arrays = _read("digits.npz")
    return Digits(arrays["images"], arrays["labels"], HELD_OUT)


def network() -> IntegerNetwork:
    """Read the trained network, 64 -> 64 -> 64 -> 10, from the package.

    The file holds ``weights_I`` and ``bias_I`` for each layer I, and ``multiplier`` and ``shift``
    with one entry for each layer but the last.
    """
    arrays = _read("digits_int8.npz")
    steps: list[Requantization | None] = [
        Requantization(int(multiplier), int(shift))
        for multiplier, shift in zip(arrays["multiplier"], arrays["shift"], strict=True)
    ]
    return IntegerNetwork(
        tuple(
            Layer(arrays[f"weights_{i}"], arrays[f"bias_{i}"], step)
            for i, step in enumerate([*steps, None])
        )
    )


def _read(name: str) -> dict[str, NDArray[Any]]:
    """The arrays of one .npz file of the package, whether or not the package is unpacked."""
    path = resources.files("npukit").joinpath(DATA, name)
    with path.open("rb") as file, np.load(file) as arrays:
        return dict(arrays)
