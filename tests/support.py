# SPDX-License-Identifier: MIT
"""What several test modules share."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"
"""Golden data and specifications, which stand beside the checkout and are not part of it."""

needs_shared = pytest.mark.skipif(
    not (SHARED / "data").is_dir(), reason="golden data (../shared) is not beside this checkout"
)
