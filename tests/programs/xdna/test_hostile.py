# SPDX-License-Identifier: MIT
"""Files that were made to hurt; tests/programs/xdna/fuzz.py reads many more of them."""

import importlib.util
import sys
from pathlib import Path

import pytest

PATH = Path(__file__).with_name("fuzz.py")
SPEC = importlib.util.spec_from_file_location("xdna_fuzz", PATH)
assert SPEC is not None
assert SPEC.loader is not None
fuzz = importlib.util.module_from_spec(SPEC)
sys.modules["xdna_fuzz"] = fuzz
SPEC.loader.exec_module(fuzz)


@pytest.mark.parametrize("seed", range(4))
def test_mutated_files_are_read_or_refused(seed: int) -> None:
    seen = fuzz.run(900, seed)
    assert set(seen) == {f"{kind} {end}" for kind in fuzz.READERS for end in ("read", "refused")}


def test_the_good_files_are_read() -> None:
    for kind, data in fuzz.seeds():
        fuzz.READERS[kind](data)
