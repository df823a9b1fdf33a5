# SPDX-License-Identifier: MIT
"""Models on the simulated DSP: results, limits, and each error with the numbers that it names."""

import io
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from devices.hexagon_session import session

from npukit import digits
from npukit.devices.fastrpc_errors import HexagonError
from npukit.ioctl import DeviceBusy, NpuError
from npukit.programs.hexagon.qnn_model import (
    BadTensorIndex,
    Model,
    ModelBusy,
    ModelNotLoaded,
    QnnRuntime,
    TooManyModels,
)
from npukit.sim import cdsp

DATA = Path(str(cdsp.__file__)).parent.parent / "data"


def write_model(path: Path, graphs: int, rng: np.random.Generator) -> list[Any]:
    """A file of ``graphs`` graphs of one layer, 3 -> 2; returns (weights, bias) of each."""
    arrays: dict[str, Any] = {}
    layers = []
    for graph in range(graphs):
        weights = rng.integers(-128, 128, (3, 2), np.int8)
        bias = rng.integers(-1000, 1000, 2, np.int32)
        layers.append((weights, bias))
        arrays |= {
            f"g{graph}/weights_0": weights,
            f"g{graph}/bias_0": bias,
            f"g{graph}/multiplier": np.zeros(0, np.int32),
            f"g{graph}/shift": np.zeros(0, np.int32),
        }
    np.savez(path, **arrays)
    return layers


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[QnnRuntime]:
    with session(tmp_path, DATA) as device, QnnRuntime(device) as runtime:
        yield runtime
        del runtime


def test_the_digits_are_read_as_numpy_reads_them(runtime: QnnRuntime) -> None:
    data, network = digits.load(), digits.network()
    with runtime.load("digits_int8.npz") as model:
        assert (model.graphs, model.tensor_counts()) == (1, (1, 1))
        model.set_input(0, data.images)
        model.execute()
        # More than the first buffer of get_output holds.
        logits = model.get_output(0).reshape(-1, 10)
    assert (logits == network.logits(data.images, digits.numpy_matmul)).all()
    right = logits.argmax(axis=1) == data.labels
    assert right[data.held_out].mean() >= 0.95


def test_eight_graphs_are_apart(runtime: QnnRuntime, tmp_path: Path) -> None:
    layers = write_model(tmp_path / "eight.npz", 8, np.random.default_rng(1))
    rows = np.array([[1, 2, 3], [4, 5, 6]], np.uint8)
    with runtime.load("eight.npz") as model:
        assert model.graphs == 8
        for graph in range(8):
            model.set_input(0, rows, graph)
        for graph, (weights, bias) in enumerate(layers):
            model.execute(graph)
            found = model.get_output(0, np.int32, graph).reshape(2, 2)
            assert (found == rows.astype(np.int32) @ weights.astype(np.int32) + bias).all()


def test_four_models_and_no_more(runtime: QnnRuntime, tmp_path: Path) -> None:
    write_model(tmp_path / "m.npz", 1, np.random.default_rng(2))
    models = [runtime.load("m.npz") for _ in range(4)]
    assert len({model.number for model in models}) == 4
    with pytest.raises(TooManyModels, match=r"model 'm\.npz': 4 models are loaded, which is"):
        runtime.load("m.npz")
    models[1].unload()
    runtime.load("m.npz").unload()


def test_nine_graphs_are_too_many(runtime: QnnRuntime, tmp_path: Path) -> None:
    write_model(tmp_path / "nine.npz", 9, np.random.default_rng(3))
    with pytest.raises(HexagonError, match="AEE_EBADSIZE"):
        runtime.load("nine.npz")


def test_an_unloaded_model_is_named(runtime: QnnRuntime, tmp_path: Path) -> None:
    write_model(tmp_path / "m.npz", 1, np.random.default_rng(2))
    model = runtime.load("m.npz")
    model.unload()
    for call, what in (
        (lambda: model.execute(3), "model 1, graph 3: is not loaded"),
        (lambda: model.set_input(2, np.zeros(3)), "model 1, graph 0, input 2: is not loaded"),
        (lambda: model.get_output(4), "model 1, graph 0, output 4: is not loaded"),
        (model.unload, "model 1, unload: is not loaded"),
    ):
        with pytest.raises(ModelNotLoaded, match=what) as caught:
            call()
        assert "AEE_ENOSUCHINSTANCE" in str(caught.value)
        assert isinstance(caught.value, NpuError)


def test_a_bad_index_is_named(runtime: QnnRuntime, tmp_path: Path) -> None:
    write_model(tmp_path / "m.npz", 2, np.random.default_rng(2))
    with runtime.load("m.npz") as model:
        one = "the graph has 1 inputs and 1 outputs"
        two = "the model has 2 graphs"
        for call, what, has in (
            (lambda: model.execute(2), "model 1, graph 2: is not there", two),
            (lambda: model.execute(-1), "model 1, graph -1: is not there", two),
            (lambda: model.tensor_counts(7), "model 1, graph 7: is not there", two),
            (lambda: model.set_input(1, np.zeros(3, np.uint8)), "0, input 1: is not there", one),
            (lambda: model.set_input(-1, np.zeros(3, np.uint8)), "input -1: is not there", one),
            (lambda: model.get_output(5, np.int32, 1), "graph 1, output 5: is not there", one),
            (lambda: model.get_output(0, np.int32, 9), "graph 9, output 0: is not there", two),
        ):
            with pytest.raises(BadTensorIndex, match=what) as caught:
                call()
            assert isinstance(caught.value, IndexError)
            assert has in str(caught.value)


def test_order_and_sizes(runtime: QnnRuntime, tmp_path: Path) -> None:
    write_model(tmp_path / "m.npz", 1, np.random.default_rng(2))
    with runtime.load("m.npz") as model:
        for call, name in (
            (model.execute, "AEE_EBADSTATE"),
            (lambda: model.get_output(0), "AEE_EBADSTATE"),
            (lambda: model.set_input(0, np.zeros(4, np.uint8)), "AEE_EBADSIZE"),
            (lambda: model.set_input(0, np.zeros(0, np.uint8)), "AEE_EBADSIZE"),
        ):
            with pytest.raises(HexagonError, match=name):
                call()
        model.set_input(0, np.zeros(3, np.uint8))
        model.execute()
        model.set_input(0, np.zeros(3, np.uint8))
        # The output of the former input is gone.
        with pytest.raises(HexagonError, match="AEE_EBADSTATE"):
            model.get_output(0)


def test_files_that_are_no_models(runtime: QnnRuntime, tmp_path: Path) -> None:
    with pytest.raises(HexagonError) as caught:
        runtime.load("none.npz")
    assert caught.value.code == 2
    (tmp_path / "text.npz").write_bytes(b"no zip")
    odd = io.BytesIO()
    np.savez(odd, weights_0=np.zeros((2, 2), np.int8))
    (tmp_path / "odd.npz").write_bytes(odd.getvalue())
    uneven = io.BytesIO()
    np.savez(
        uneven,
        weights_0=np.zeros((2, 2), np.int8),
        bias_0=np.zeros(2, np.int32),
        weights_1=np.zeros((3, 2), np.int8),
        bias_1=np.zeros(2, np.int32),
        multiplier=np.array([20000]),
        shift=np.array([10]),
    )
    (tmp_path / "uneven.npz").write_bytes(uneven.getvalue())
    for name in ("text.npz", "odd.npz", "uneven.npz"):
        with pytest.raises(HexagonError, match="AEE_EINVALIDFORMAT"):
            runtime.load(name)


def test_a_graph_executes_for_one_at_a_time(runtime: QnnRuntime, tmp_path: Path) -> None:
    write_model(tmp_path / "m.npz", 2, np.random.default_rng(2))
    sim: Any = runtime.device.kernel
    process = next(iter(sim.devices[-1].dsp.processes.values()))
    skel = next(s for s in process.modules.values() if isinstance(s, cdsp.QnnModelSkel))
    with runtime.load("m.npz") as model:
        model.set_input(0, np.zeros(3, np.uint8))
        model.set_input(0, np.zeros(3, np.uint8), 1)
        # As if another call executed it now.
        with skel._models[model.number][0].busy:
            for call in (model.execute, lambda: model.set_input(0, np.zeros(3, np.uint8))):
                with pytest.raises(
                    ModelBusy, match=r"model 1, graph 0.*: executes already"
                ) as busy:
                    call()
                assert isinstance(busy.value, DeviceBusy)
            model.execute(1)
        model.execute()


def test_models_run_side_by_side(runtime: QnnRuntime, tmp_path: Path) -> None:
    layers = write_model(tmp_path / "m.npz", 8, np.random.default_rng(5))
    failures: list[BaseException] = []

    def run(model: Model, graph: int) -> None:
        try:
            weights, bias = layers[graph]
            for count in range(5):
                rows = np.full((count + 1, 3), count, np.uint8)
                model.set_input(0, rows, graph)
                model.execute(graph)
                wanted = rows.astype(np.int32) @ weights.astype(np.int32) + bias
                assert (model.get_output(0, np.int32, graph).reshape(-1, 2) == wanted).all()
        except BaseException as error:
            failures.append(error)

    with runtime.load("m.npz") as model:
        threads = [threading.Thread(target=run, args=(model, graph)) for graph in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == []
