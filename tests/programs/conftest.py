# SPDX-License-Identifier: MIT
from collections.abc import Iterator
from typing import Any

import pytest

import npukit


@pytest.fixture(params=["rknpu", "rknpu-misc", "rocket"], scope="module")
def device(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A simulated RK3588 under each driver, which tells what the driver would hide."""
    with npukit.open(f"sim:{request.param}", strict=True) as device:
        yield device
