# SPDX-License-Identifier: MIT
"""Write the example designs as files, as a compiler would, and run them from the files.

python examples/xdna_kernels.py [DIRECTORY]

Each design is NAME.xclbin, a container, and NAME.bin, an instruction stream; look at them with
``npukit xclbin show`` and ``npukit txn explain``. Without DIRECTORY they go with this program.
Their PDIs are names that only the simulated NPU knows.
"""

import mmap
import sys
import tempfile
from pathlib import Path

import numpy as np

import npukit
from npukit.programs.xdna import designs, smoke
from npukit.programs.xdna.txn import Transaction

rng = np.random.default_rng(0)
words = rng.integers(0, 1 << 32, (64, 96), np.uint32)
numbers = rng.integers(-(1 << 30), 1 << 30, (2, 4096), np.int32)
a, b = rng.integers(-128, 128, (32, 64), np.int8), rng.integers(-128, 128, (64, 48), np.int8)
EXAMPLES = {
    "memcpy": (designs.memcpy(words.nbytes), [words], words),
    "transpose": (designs.transpose(*words.shape), [words], words.T),
    "vector_add": (designs.vector_add(numbers.shape[1]), list(numbers), numbers[0] + numbers[1]),
    "matmul": (designs.matmul(32, 64, 48), [a, b], a.astype(np.int32) @ b.astype(np.int32)),
}


def run(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, (example, _, _) in EXAMPLES.items():
        (directory / f"{name}.xclbin").write_bytes(example.xclbin)
        (directory / f"{name}.bin").write_bytes(example.instructions.to_bytes())
    with npukit.open("sim:amdxdna") as device:
        for name, (example, inputs, expected) in EXAMPLES.items():
            with open(directory / f"{name}.xclbin", "rb") as file:
                container = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            stream = Transaction((directory / f"{name}.bin").read_bytes())
            example = designs.Example(container, stream, example.contract)
            result = smoke.run_example(device, example, *inputs)
            assert result.tobytes() == expected.tobytes(), name
            print(f"{name}: {len(container)} bytes, {len(stream)} operations, equals numpy")


if len(sys.argv) > 1:
    run(Path(sys.argv[1]))
else:
    with tempfile.TemporaryDirectory() as temporary:
        run(Path(temporary))
