# SPDX-License-Identifier: MIT
"""Train the digit network of ``npukit smoke`` with numpy alone, and quantize it to int8.

    train_digits.py                      train, and write npukit/data/digits_int8.npz
    train_digits.py --check              train, write nothing, and compare with that file
    train_digits.py --images CSV_GZ      write npukit/data/digits.npz from scikit-learn's copy of
                                         the data set, sklearn/datasets/data/digits.csv.gz

The split is `npukit.digits.HELD_OUT`: the first 1,297 images of the file train the network, the
last 500 only measure it. Sizes and rates below were chosen by cross-validation within the first
1,200. One machine writes the same bytes every time. Another may round a float sum in another order
and so end with other weights, about as good: that is why ``--check`` compares accuracies.
"""

import argparse
import gzip
import itertools
import math
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from npukit.digits import (
    HELD_OUT,
    PIXEL_MAX,
    PIXELS,
    Digits,
    IntegerNetwork,
    Layer,
    Requantization,
    load,
    network,
    numpy_matmul,
)

Floats = NDArray[np.float64]

DATA = Path(__file__).resolve().parent.parent / "npukit" / "data"
SEED = 0
SIZES = (PIXELS, 64, 64, 10)
EPOCHS = 8
BATCH = 64
LEARNING_RATE = 4e-3
WEIGHT_DECAY = 5e-4
DROPOUT = 0.1
COPIES = 40
"""Warped copies of each training image, beside the image itself."""

ACCURACY_MIN = 0.95
ACCURACY_TOLERANCE = 0.015
"""How far two trainings on different machines may differ on the held-out images."""


@dataclass(frozen=True, eq=False)
class FloatNetwork:
    """Fully connected layers with a ReLU between them: weights (K, N) and biases (N,)."""

    weights: list[Floats]
    biases: list[Floats]

    def outputs(self, images: NDArray[np.uint8]) -> list[Floats]:
        """What each layer gives for `images` (M, 64); the last item is the logits (M, 10)."""
        results: list[Floats] = []
        values = images / PIXEL_MAX
        for weights, bias in zip(self.weights, self.biases, strict=True):
            results.append(values @ weights + bias)
            values = np.maximum(results[-1], 0)
        return results


def warp(images: Floats, rng: np.random.Generator) -> Floats:
    """`images` (M, 64), each turned, sheared, zoomed and moved a little, sampled bilinearly."""
    count = len(images)
    angle, shear = rng.uniform(-0.2, 0.2, (2, count, 1, 1))
    zoom_y, zoom_x = rng.uniform(0.88, 1.12, (2, count, 1, 1))
    move_y, move_x = rng.uniform(-0.5, 0.5, (2, count, 1, 1))
    centre = 3.5
    row, column = np.mgrid[0:8, 0:8] - centre
    row, column = zoom_y * row, zoom_x * (column + shear * row)
    y = np.cos(angle) * row - np.sin(angle) * column + centre + move_y
    x = np.sin(angle) * row + np.cos(angle) * column + centre + move_x

    # A border of blank pixels, where every point outside the image lands.
    padded = np.pad(images.reshape(-1, 8, 8), ((0, 0), (1, 2), (1, 2)))
    y, x = np.clip(y, -1, 8) + 1, np.clip(x, -1, 8) + 1
    top, left = np.floor(y).astype(int), np.floor(x).astype(int)
    down, right = y - top, x - left
    which = np.arange(count)[:, None, None]
    warped: Floats = (1 - down) * (
        (1 - right) * padded[which, top, left] + right * padded[which, top, left + 1]
    ) + down * (
        (1 - right) * padded[which, top + 1, left] + right * padded[which, top + 1, left + 1]
    )
    return warped.reshape(count, PIXELS)


def train(digits: Digits, epochs: int = EPOCHS) -> FloatNetwork:
    """Train on the images before `HELD_OUT`: cross-entropy, Adam, dropout, weight decay."""
    rng = np.random.default_rng(SEED)
    originals = digits.images[: HELD_OUT.start] / PIXEL_MAX
    images = np.concatenate([originals, *(warp(originals, rng) for _ in range(COPIES))])
    targets = np.eye(SIZES[-1])[np.tile(digits.labels[: HELD_OUT.start], 1 + COPIES)]

    shapes = list(itertools.pairwise(SIZES))
    weights = [rng.standard_normal(shape) * math.sqrt(2 / shape[0]) for shape in shapes]
    biases = [np.zeros(shape[1]) for shape in shapes]
    parameters = weights + biases
    means = [np.zeros_like(parameter) for parameter in parameters]
    squares = [np.zeros_like(parameter) for parameter in parameters]
    steps = epochs * math.ceil(len(images) / BATCH)
    step = 0
    for _ in range(epochs):
        order = rng.permutation(len(images))
        for start in range(0, len(order), BATCH):
            chosen = order[start : start + BATCH]
            step += 1
            gradients = _gradients(weights, biases, images[chosen], targets[chosen], rng)
            rate = LEARNING_RATE / 2 * (1 + math.cos(math.pi * step / steps))
            for parameter, gradient, mean, square in zip(
                parameters, gradients, means, squares, strict=True
            ):
                mean += 0.1 * (gradient - mean)
                square += 0.001 * (gradient**2 - square)
                unbiased = np.sqrt(square / (1 - 0.999**step)) + 1e-8
                parameter -= rate * mean / (1 - 0.9**step) / unbiased
    return FloatNetwork(weights, biases)


def _gradients(
    weights: list[Floats],
    biases: list[Floats],
    images: Floats,
    targets: Floats,
    rng: np.random.Generator,
) -> list[Floats]:
    """The loss's gradients for all weights, then all biases, over one batch."""
    inputs = [images]
    for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
        values = np.maximum(inputs[-1] @ weight + bias, 0)
        inputs.append(values * (rng.random(values.shape) >= DROPOUT) / (1 - DROPOUT))
    logits = inputs[-1] @ weights[-1] + biases[-1]
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    error = (odds / odds.sum(axis=1, keepdims=True) - targets) / len(images)
    of_weights: list[Floats] = []
    of_biases: list[Floats] = []
    for weight, values in zip(reversed(weights), reversed(inputs), strict=True):
        of_weights.append(values.T @ error + WEIGHT_DECAY * weight)
        of_biases.append(error.sum(axis=0))
        # A unit that the ReLU or dropout put to 0 passes nothing back.
        error = (error @ weight.T) * (values > 0) / (1 - DROPOUT)
    return of_weights[::-1] + of_biases[::-1]


def fixed_point(factor: float) -> Requantization:
    """The requantization nearest to multiplying by `factor`, with 15 significant bits."""
    fraction, exponent = math.frexp(factor)
    multiplier = round(fraction * (1 << 15))
    if multiplier == 1 << 15:
        multiplier, exponent = multiplier >> 1, exponent + 1
    return Requantization(multiplier, 15 - exponent)


def quantize(trained: FloatNetwork, images: NDArray[np.uint8]) -> IntegerNetwork:
    """`trained` in int8: one symmetric scale for each layer's weights and for its activations.

    The largest |weight| of a layer becomes 127, and so does the largest activation that `images`
    (training images, M by 64) bring about in it.
    """
    layers: list[Layer] = []
    outputs = trained.outputs(images)
    last = len(outputs) - 1
    input_scale = 1 / PIXEL_MAX
    for i, output in enumerate(outputs):
        weight_scale = np.abs(trained.weights[i]).max() / 127
        sum_scale = input_scale * weight_scale
        output_scale = output.max() / 127
        layers.append(
            Layer(
                np.rint(trained.weights[i] / weight_scale).astype(np.int8),
                np.rint(trained.biases[i] / sum_scale).astype(np.int32),
                None if i == last else fixed_point(sum_scale / output_scale),
            )
        )
        input_scale = output_scale
    return IntegerNetwork(tuple(layers))


def save(path: Path, quantized: IntegerNetwork) -> None:
    """Write `quantized` in the form that `npukit.digits.network` reads."""
    steps = [layer.requantization for layer in quantized.layers if layer.requantization]
    arrays: dict[str, NDArray[np.int8 | np.int32]] = {
        "multiplier": np.array([step.multiplier for step in steps], np.int32),
        "shift": np.array([step.shift for step in steps], np.int32),
    }
    for i, layer in enumerate(quantized.layers):
        arrays[f"weights_{i}"] = layer.weights
        arrays[f"bias_{i}"] = layer.bias
    # numpy dates every member 1980-01-01, so equal arrays make equal files.
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]


def accuracy(quantized: IntegerNetwork, digits: Digits) -> float:
    """The share of the held-out images that `quantized` reads right."""
    found = quantized.classify(digits.images[HELD_OUT], numpy_matmul)
    return float((found == digits.labels[HELD_OUT]).mean())


def import_images(source: Path, target: Path) -> None:
    """Write `target` (.npz) from scikit-learn's gzipped CSV: 64 pixels and a label on each row."""
    with gzip.open(source, "rt") as file:
        rows = np.loadtxt(file, delimiter=",", dtype=np.uint8)
    np.savez_compressed(
        target,
        images=np.ascontiguousarray(rows[:, :PIXELS]),
        labels=np.ascontiguousarray(rows[:, PIXELS]),
    )


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; the exit status is 1 where the accuracy is not what it should be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, compare accuracies")
    parser.add_argument("--images", type=Path, metavar="CSV_GZ", help="import the data set")
    parser.add_argument("--output", type=Path, default=DATA / "digits_int8.npz")
    options = parser.parse_args(arguments)
    if options.images:
        import_images(options.images, DATA / "digits.npz")
        return 0

    digits = load()
    quantized = quantize(train(digits), digits.images[: HELD_OUT.start])
    reached = accuracy(quantized, digits)
    print(f"{reached:.2%} of {len(digits.labels[HELD_OUT])} held-out images right (int8)")
    if reached < ACCURACY_MIN:
        print(f"that is below {ACCURACY_MIN:.0%}", file=sys.stderr)
        return 1
    if not options.check:
        save(options.output, quantized)
        return 0
    stored = accuracy(network(), digits)
    print(f"{stored:.2%} by the network in the package")
    return int(abs(reached - stored) > ACCURACY_TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
