# SPDX-License-Identifier: MIT
"""Why did a job not finish? What its command streams say about that."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from npukit.abi.rknpu import rknpu_task

from .program import TRAILER_WORDS
from .registers import ENABLE_TARGET, MARKER_TARGET, PC

ReadMemory = Callable[[int, int], bytes | None]


def explain_timeout(tasks: Sequence[rknpu_task], counter: int, read: ReadMemory) -> str:
    """Follow the chain of a job that timed out, as the NPU does, and say where it breaks.

    ``tasks`` is the job's table, ``counter`` how many tasks the hardware counted, ``read`` gives
    the bytes at a DMA address or None. The kernel hands the NPU the first task only; each further
    one is found through the words before.
    """
    address = tasks[0].regcmd_addr
    pairs = (tasks[0].regcfg_amount + TRAILER_WORDS + 1) // 2
    for index, task in enumerate(tasks):
        where = f"task {index} at {address:#x}"
        if index and address != task.regcmd_addr:
            return f"chain: {where}, but the table has {task.regcmd_addr:#x}"
        if index and pairs != (task.regcfg_amount + TRAILER_WORDS + 1) // 2:
            return f"chain: {where} is fetched as {pairs} pairs of words, the table differs"
        image = read(address, 8 * (task.regcfg_amount + TRAILER_WORDS))
        if image is None:
            return f"chain: {where} is in no buffer of this device"
        problem, address, pairs = _trailer(np.frombuffer(image, np.uint64)[-TRAILER_WORDS:])
        if problem:
            return f"chain: {where} {problem}"
        if not address and index + 1 < len(tasks):
            return (
                f"chain: it ends after {index + 1} of {len(tasks)} tasks: word 1 of that task's "
                "trailer must hold the next task's address"
            )
    stopped = min(counter, len(tasks) - 1)
    return f"chain: {len(tasks)} tasks, intact; task {stopped} started and did not finish"


def _trailer(words: np.ndarray[tuple[int], np.dtype[np.uint64]]) -> tuple[str, int, int]:
    """(what is wrong, next task's address or 0, its pairs of words)."""
    chain, amount, marker, enable = (int(word) for word in words)
    if marker != MARKER_TARGET << 48:
        return f"has {marker:#018x} where the marker word belongs", 0, 0
    if enable >> 48 != ENABLE_TARGET or enable & 0xFFFF != PC.OPERATION_ENABLE.offset:
        return f"ends in {enable:#018x}, which enables nothing", 0, 0
    if chain == 0:
        return "", 0, 0
    if chain >> 48 != PC.target or chain & 0xFFFF != PC.BASE_ADDRESS.offset:
        return f"has {chain:#018x} where the next task's address belongs", 0, 0
    return "", chain >> 16 & 0xFFFFFFF0, (amount >> 16 & 0xFFFF) + 1
