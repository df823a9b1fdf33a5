# SPDX-License-Identifier: MIT
"""Multiply on an NPU and show the program that does it.

python examples/matmul.py [PATH|sim:rknpu|sim:rocket]
"""

import sys

import numpy as np

import npukit
from npukit.programs.rk3588.matmul import matmul, matmul_program

path = sys.argv[1] if len(sys.argv) > 1 else "sim:rknpu"
rng = np.random.default_rng(0)
a = rng.standard_normal((100, 300)).astype(np.float16)
b = rng.standard_normal((300, 50)).astype(np.float16)

with npukit.open(path) as device:
    c = matmul(device, a, b)
print("largest difference to numpy:", np.abs(c - a.astype(np.float64) @ b.astype(np.float64)).max())

program = matmul_program(4, 32, 32, np.int8, np.int32, 0xFFF00000, 0xFFF10000, 0xFFF20000)
print("\n".join(str(program).splitlines()[:12]), "\n...")
