# SPDX-License-Identifier: MIT
from typing import Any

from typing_extensions import Buffer

_Fault = tuple[str, tuple[int, int, int] | None, int, int | None, str]
"""Kind, field as (register offset, highest bit, lowest bit), its value, IOVA, text."""

def simd_available() -> list[str]: ...
def simd_level() -> str: ...
def simd_set(name: str) -> None: ...

class AddressSpace:
    """A 32-bit IOVA space that NPU cores read and write: an IOMMU domain.

    Several Npus may use one at once, from different threads. Mapping and unmapping wait until no
    run is under way in it.
    """

    def __init__(self) -> None: ...
    def map(self, iova: int, buffer: Buffer) -> None:
        """Make a C-contiguous buffer appear at ``iova``; it stays exported until unmapped.

        A read-only buffer can be read by the NPU and not written. No alignment is needed.
        ValueError: empty or not C-contiguous, overlaps a mapping, or does not fit below 4 GiB.
        """
    def unmap(self, iova: int) -> None:
        """Remove the mapping that starts at ``iova``; ValueError when there is none."""

class Core:
    def __init__(self, masks: Any) -> None: ...
    def reset(self) -> None: ...
    def write_register(self, offset: int, value: int) -> bool: ...
    def read_register(self, offset: int) -> int | None: ...
    def run(
        self,
        space: AddressSpace,
        iova: int,
        amount: int,
        tasks: int,
        int_mask: int,
        threads: int,
        meets: bool,
        budget: int,
    ) -> tuple[int, int, _Fault | None, tuple[int, int] | None]: ...
