# SPDX-License-Identifier: MIT
"""The examples of docs/fastrpc.md run as they stand."""

import re
import subprocess
import sys

from support import ROOT


def test_the_examples_run() -> None:
    text = (ROOT / "docs/fastrpc.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.S)
    assert len(blocks) == 1
    for block in blocks:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", block],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        lines = done.stdout.splitlines()
        assert lines[:3] == ["0x8c73", "hello, Hexagon", "254"]
        assert lines[3].endswith("['digits_int8.npz: found']")
