# SPDX-License-Identifier: MIT
"""The digits and their integer network: identity of the data, arithmetic, and training."""

import hashlib
import importlib.util
import math
import subprocess
import sys
import tomllib
from fractions import Fraction
from importlib import resources
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import ROOT

from npukit import digits

INT32 = st.integers(-(2**31), 2**31 - 1)


@pytest.fixture(scope="module")
def data() -> digits.Digits:
    return digits.load()


@pytest.fixture(scope="module")
def network() -> digits.IntegerNetwork:
    return digits.network()


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    """`tools/train_digits.py`, which is a script and in no package."""
    spec = importlib.util.spec_from_file_location(
        "train_digits", ROOT / "tools" / "train_digits.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# The data set


def test_the_images_are_those_of_the_source(data: digits.Digits) -> None:
    assert data.images.shape == (1797, 64)
    assert data.images.dtype == np.uint8
    assert data.images.min() == 0
    assert data.images.max() == 16
    # Both taken from scikit-learn's copy, before it was converted.
    assert data.images.sum(dtype=np.int64) == 561718
    assert (
        hashlib.sha256(data.images.tobytes()).hexdigest()
        == "8f26b2bd9d135c256808f68f14fdabddde6d9c7f869ae419704b051f0f14b3b3"
    )


def test_the_labels_are_those_of_the_source(data: digits.Digits) -> None:
    assert data.labels.shape == (1797,)
    assert data.labels.dtype == np.uint8
    assert data.labels[:10].tolist() == list(range(10))
    # The class distribution that the UCI repository publishes for the test part.
    published = [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert np.bincount(data.labels).tolist() == published
    assert (
        hashlib.sha256(data.labels.tobytes()).hexdigest()
        == "8ba4f891220f5e4c9c819638d1602d74b83618f167043c6da52a2a247841ddf0"
    )


def test_the_held_out_images_are_enough_and_hold_every_digit(data: digits.Digits) -> None:
    held_out = data.labels[data.held_out]
    assert len(held_out) == 500
    assert np.bincount(held_out, minlength=10).min() >= 40


def test_each_load_gives_arrays_of_its_own(data: digits.Digits) -> None:
    again = digits.load()
    again.images[:] = 0
    assert data.images.max() == 16


def test_the_data_is_small_named_and_declared_as_package_data() -> None:
    folder = resources.files("npukit") / "data"
    names = {entry.name for entry in folder.iterdir()}
    assert names == {"digits.npz", "digits_int8.npz", "README.md"}
    assert sum(len((folder / name).read_bytes()) for name in names) < 150 * 1024
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "data/*" in project["tool"]["setuptools"]["package-data"]["npukit"]
    for text in ((folder / "README.md").read_text(), (ROOT / "NOTICE").read_text()):
        for mention in ("Alpaydin", "Kaynak", "10.24432/C50P49", "CC BY 4.0"):
            assert mention in text


def test_the_module_imports_nothing_heavier_than_numpy() -> None:
    code = (
        "import sys, npukit.digits\n"
        "heavy = {'sklearn', 'click', 'rich', 'matplotlib', 'scipy'}\n"
        "sys.exit(' '.join(heavy & set(sys.modules)) or 0)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


# The integer network


def test_the_network_is_three_int8_layers(network: digits.IntegerNetwork) -> None:
    assert [layer.weights.shape for layer in network.layers] == [(64, 64), (64, 64), (64, 10)]
    for layer in network.layers:
        assert layer.weights.dtype == np.int8
        assert np.abs(layer.weights.astype(int)).max() == 127
        assert layer.bias.dtype == np.int32
        assert layer.bias.shape == layer.weights.shape[1:]
    assert [layer.requantization is None for layer in network.layers] == [False, False, True]


def test_no_activation_can_overflow_the_sums(network: digits.IntegerNetwork) -> None:
    for layer in network.layers:
        sums = 127 * np.abs(layer.weights.astype(np.int64)).sum(axis=0)
        assert sums.max() < 2**20
        assert (sums + np.abs(layer.bias.astype(np.int64))).max() < 2**31


def test_the_network_is_right_on_the_held_out_images(
    data: digits.Digits, network: digits.IntegerNetwork
) -> None:
    found = network.classify(data.images, digits.numpy_matmul)
    assert found.dtype == np.uint8
    assert found.shape == (1797,)
    right = found == data.labels
    assert right[data.held_out].mean() >= 0.96
    assert right.mean() >= 0.98


def test_the_logits_agree_with_plain_python(
    data: digits.Digits, network: digits.IntegerNetwork
) -> None:
    images = data.images[::180]
    logits = network.logits(images, digits.numpy_matmul)
    assert logits.dtype == np.int32
    assert logits.tolist() == [_plain_logits(network, image.tolist()) for image in images]


def test_every_product_goes_through_the_given_matmul(
    data: digits.Digits, network: digits.IntegerNetwork
) -> None:
    calls: list[tuple[tuple[int, ...], tuple[int, ...]]] = []

    def matmul(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        assert a.dtype == b.dtype == np.int8
        assert a.flags.c_contiguous
        assert b.flags.c_contiguous
        calls.append((a.shape, b.shape))
        # Exact in float64: every sum is far below 2**53.
        product: np.ndarray = (a.astype(float) @ b.astype(float)).astype(np.int32)
        return product

    logits = network.logits(data.images, matmul)
    assert calls == [
        ((1797, 64), (64, 64)),
        ((1797, 64), (64, 64)),
        ((1797, 64), (64, 10)),
    ]
    assert np.array_equal(logits, network.logits(data.images, digits.numpy_matmul))


def test_no_images_give_no_digits(network: digits.IntegerNetwork) -> None:
    assert network.classify(np.zeros((0, 64), np.uint8), digits.numpy_matmul).shape == (0,)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (np.zeros((2, 8, 8), np.uint8), r"shape \(2, 8, 8\)"),
        (np.zeros((2, 63), np.uint8), r"shape \(2, 63\)"),
        (np.full((2, 64), 17, np.uint8), "a pixel is 17"),
    ],
)
def test_images_that_are_no_digits_are_refused(
    network: digits.IntegerNetwork, images: np.ndarray, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        network.logits(images, digits.numpy_matmul)


@given(
    sums=st.lists(st.one_of(INT32, st.integers(-(2**20), 2**20)), max_size=20),
    multiplier=st.integers(2**14, 2**15 - 1),
    shift=st.integers(1, 46),
)
def test_requantization_agrees_with_exact_fractions(
    sums: list[int], multiplier: int, shift: int
) -> None:
    requantization = digits.Requantization(multiplier, shift)
    activations = requantization(np.array(sums, np.int32))
    assert activations.dtype == np.int8
    assert activations.tolist() == [_plain_requantize(requantization, total) for total in sums]


def test_requantization_rounds_ties_up_and_saturates() -> None:
    # 2**14 / 2**15 is one half.
    half = digits.Requantization(1 << 14, 15)
    sums = np.array([-(2**31), -3, -1, 0, 1, 2, 3, 253, 254, 255, 2**31 - 1], np.int32)
    assert half(sums).tolist() == [0, 0, 0, 0, 1, 1, 2, 127, 127, 127, 127]


@pytest.mark.parametrize(
    ("multiplier", "shift"), [(2**14 - 1, 20), (2**15, 20), (2**14, 0), (2**14, 47)]
)
def test_requantization_refuses_what_the_rule_does_not_cover(multiplier: int, shift: int) -> None:
    with pytest.raises(ValueError, match=r"is not in"):
        digits.Requantization(multiplier, shift)


def _plain_requantize(requantization: digits.Requantization, total: int) -> int:
    """The stated rule, in exact arithmetic."""
    exact = Fraction(total * requantization.multiplier, 2**requantization.shift)
    return min(max(math.floor(exact + Fraction(1, 2)), 0), 127)


def _plain_logits(network: digits.IntegerNetwork, values: list[int]) -> list[int]:
    """The network on one image, in Python integers."""
    for layer in network.layers:
        columns = layer.weights.T.tolist()
        sums = [
            sum(v * w for v, w in zip(values, column, strict=True)) + bias
            for column, bias in zip(columns, layer.bias.tolist(), strict=True)
        ]
        if layer.requantization is None:
            break
        values = [_plain_requantize(layer.requantization, total) for total in sums]
    return sums


# Training


def test_training_again_gives_a_network_as_good(tool: ModuleType, data: digits.Digits) -> None:
    trained = tool.train(data)
    quantized = tool.quantize(trained, data.images[: data.held_out.start])
    reached = tool.accuracy(quantized, data)
    assert reached >= tool.ACCURACY_MIN
    assert reached == pytest.approx(
        tool.accuracy(digits.network(), data), abs=tool.ACCURACY_TOLERANCE
    )

    logits = trained.outputs(data.images)[-1]
    found = quantized.classify(data.images, digits.numpy_matmul)
    assert (found == logits.argmax(axis=1)).mean() >= 0.995
    integer_logits = quantized.logits(data.images, digits.numpy_matmul)
    assert np.corrcoef(logits.ravel(), integer_logits.ravel())[0, 1] > 0.999


def test_training_is_reproducible_to_the_byte(
    tool: ModuleType, data: digits.Digits, tmp_path: Path
) -> None:
    files = [tmp_path / "first.npz", tmp_path / "second.npz"]
    for file in files:
        trained = tool.train(data, epochs=1)
        tool.save(file, tool.quantize(trained, data.images[: data.held_out.start]))
    assert files[0].read_bytes() == files[1].read_bytes()


def test_the_network_that_is_saved_is_the_one_in_the_package(
    tool: ModuleType, network: digits.IntegerNetwork, tmp_path: Path
) -> None:
    tool.save(tmp_path / "again.npz", network)
    with (
        np.load(tmp_path / "again.npz") as again,
        np.load(ROOT / "npukit" / "data" / "digits_int8.npz") as packaged,
    ):
        assert set(again) == set(packaged)
        for name in packaged:
            assert again[name].dtype == packaged[name].dtype
            assert np.array_equal(again[name], packaged[name])


@given(factor=st.floats(2**-30, 2**13))
def test_fixed_point_keeps_fifteen_bits(tool: ModuleType, factor: float) -> None:
    requantization = tool.fixed_point(factor)
    value = Fraction(requantization.multiplier, 2**requantization.shift)
    assert abs(value / Fraction(factor) - 1) <= Fraction(1, 2**15)
