# SPDX-License-Identifier: MIT
"""Command streams in words: what each task does, what is wrong with it, why a job did not end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from npukit.abi.rknpu import rknpu_task
from npukit.ioctl import ProgramError

from .check import check_words, read_task
from .cost import RK3588, Rates, task_cost
from .decode import TaskView
from .encodings import BANK_BYTES, Algorithm, OperandMode, PoolingMethod, Precision
from .program import TRAILER_WORDS, Words
from .registers import CNA, DPU, ENABLE_BITS, ENABLE_TARGET, MARKER_TARGET, PC, PPU, Register
from .text import split_tasks

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


# ---- In words -----------------------------------------------------------------------------------


def _precision(value: int) -> str:
    return Precision(value).name.lower()


_POOLS = (*(method.name.lower() for method in PoolingMethod), "method 3")


def describe(words: Words, rates: Rates = RK3588) -> list[dict[str, Any]]:
    """What each task of a stream does, as plain data; sizes are (height, width, channels).

    ProgramError when words remain behind the last enable word, or there is none.
    """
    problems = check_words(words)
    places = split_tasks(words)
    if not places:
        raise ProgramError(message=f"no enable word in {len(words)} words: nothing starts")
    tasks = []
    for number, (offset, count) in enumerate(places):
        checked = read_task(words[offset : offset + count])
        view = checked.view
        cost = task_cost(view, rates)
        tasks.append(
            {
                "task": number,
                "words": count,
                "blocks": sorted(view.blocks, key=ENABLE_BITS.__getitem__),
                **_operation(view),
                "accesses": [
                    {
                        "what": access.what,
                        "register": str(access.register),
                        "start": access.start,
                        "end": access.end,
                        "bytes": access.size,
                        "writes": access.write,
                    }
                    for access in checked.accesses
                ],
                "cost": {
                    "macs": cost.macs,
                    "bytes_read": cost.bytes_read,
                    "bytes_written": cost.bytes_written,
                    "seconds": cost.seconds,
                },
                "next": checked.next_address or None,
                "problems": [str(problem) for problem in problems if problem.task == number],
            }
        )
    return tasks


def _operation(view: TaskView) -> dict[str, Any]:
    """What is computed, from what size to what size, and how."""
    found: dict[str, Any] = {"operation": "nothing", "output": list(view.result)}
    if view.convolves:
        found |= _convolution(view)
    elif "DPU" in view.blocks:
        precision = _precision(view(DPU.DATA_FORMAT, "IN_PRECISION"))
        found |= {"operation": f"elementwise, {precision}", "input": list(view.result)}
    elif "PPU" in view.blocks:
        found |= _pooling(view)
    if "DPU" in view.blocks:
        found["output_precision"] = _precision(view(DPU.DATA_FORMAT, "OUT_PRECISION"))
        found["stages"] = list(_stages(view))
        found["pitches"] = {
            "output_line": view.result[1] + view(DPU.DATA_CUBE_NOTCH_ADDR, "NOTCH_ADDR_0"),
            "output_surface": view(DPU.DST_SURF_STRIDE, "DST_SURF_STRIDE"),
            **found.get("pitches", {}),
        }
    return found


def _convolution(view: TaskView) -> dict[str, Any]:
    kernels, height, width = view.kernel
    precision = _precision(view(CNA.CONV_CON1, "IN_PRECISION"))
    kind = "depthwise convolution" if view.depthwise else "convolution"
    if not view.depthwise and (height, width, view.image[1]) == (1, 1, 1):
        kind = f"matrix product {view.image[0]}x{view.image[2]} by {view.image[2]}x{kernels}"
    off = view(CNA.CONV_CON1, "GROUP_LINE_OFF")
    line = view(CNA.DMA_CON1, "LINE_STRIDE")
    surface = view(CNA.DMA_CON2, "SURF_STRIDE") + view.image[1] * (1 if off else 4)
    data, weights = (view(CNA.CBUF_CON0, f"{name}_BANK") for name in ("DATA", "WEIGHT"))
    return {
        "operation": f"{kind}, {precision}",
        "input": list(view.image),
        "kernel": [kernels, height, width],
        "stride": [view(CNA.CONV_CON3, f"CONV_{axis}_STRIDE") for axis in "YX"],
        "dilation": [view(CNA.CONV_CON3, f"ATROUS_{axis}_DILATION") + 1 for axis in "YX"],
        "padding": [view(CNA.PAD_CON0, f"PAD_{side}") for side in ("TOP", "LEFT")],
        "pad_value": view(CNA.PAD_CON1, "PAD_VALUE"),
        "pitches": {"input_line": line if off else line // 4, "input_surface": surface},
        "banks": {
            "data": data,
            "data_bytes": view.row_bytes * view.image[0],
            "data_reused": bool(view(CNA.CBUF_CON0, "DATA_REUSE")),
            "weight": weights,
            "weight_bytes": view(CNA.WEIGHT_SIZE0, "WEIGHT_BYTES"),
            "weight_reused": bool(view(CNA.CBUF_CON0, "WEIGHT_REUSE")),
        },
    }


def _pooling(view: TaskView) -> dict[str, Any]:
    method = _POOLS[view(PPU.OPERATION_MODE_CFG, "POOLING_METHOD")]
    precision = _precision(view(PPU.DATA_FORMAT, "PROC_PRECISION"))
    config, padding = PPU.POOLING_KERNEL_CFG, PPU.POOLING_PADDING_CFG
    return {
        "operation": f"{method} pooling, {precision}",
        "input": [
            view(PPU.DATA_CUBE_IN_HEIGHT, "CUBE_IN_HEIGHT") + 1,
            view(PPU.DATA_CUBE_IN_WIDTH, "CUBE_IN_WIDTH") + 1,
            view(PPU.DATA_CUBE_IN_CHANNEL, "CUBE_IN_CHANNEL") + 1,
        ],
        "kernel": [view(config, f"KERNEL_{axis}") + 1 for axis in ("HEIGHT", "WIDTH")],
        "stride": [view(config, f"KERNEL_STRIDE_{axis}") + 1 for axis in ("HEIGHT", "WIDTH")],
        "padding": [view(padding, f"PAD_{side}") for side in ("TOP", "LEFT")],
    }


def _stages(view: TaskView) -> Iterator[str]:
    """What the DPU does on the way, in its order."""
    for stage in ("BS", "BN"):
        config = getattr(DPU, f"{stage}_CFG")
        if view(config, f"{stage}_BYPASS"):
            continue
        if not view(config, f"{stage}_ALU_BYPASS"):
            memory = view(config, f"{stage}_ALU_SRC")
            sign = "-" if view(config, f"{stage}_ALU_ALGO") == Algorithm.MINUS else "+"
            value = _number(view, getattr(DPU, f"{stage}_ALU_CFG"), f"{stage}_ALU_OPERAND")
            yield f"{stage} {sign} {'an operand of each channel' if memory else value}"
        if not view(config, f"{stage}_MUL_BYPASS"):
            multiply = getattr(DPU, f"{stage}_MUL_CFG")
            memory = view(multiply, f"{stage}_MUL_SRC")
            value = _number(view, multiply, f"{stage}_MUL_OPERAND")
            shift = view(multiply, f"{stage}_MUL_SHIFT_VALUE")
            shifted = "" if _floats(view) else f" >> {shift}"
            below = " below 0" if view(config, f"{stage}_MUL_PRELU") else ""
            factor = "a factor of each channel" if memory else value
            yield f"{stage} x {factor}{shifted}{below}"
        yield from _clamp(view, stage)
    if not view(DPU.BS_OW_CFG, "OD_BYPASS") and view(DPU.BS_OW_CFG, "OW_SRC"):
        yield "window sums x an operand of each channel"
    elif not view(DPU.BS_OW_CFG, "OD_BYPASS") and view(DPU.BS_OW_OP, "OW_OP"):
        yield f"window sums x {view(DPU.BS_OW_OP, 'OW_OP')}"
    if not view(DPU.EW_CFG, "EW_BYPASS"):
        if not view(DPU.EW_CFG, "EW_OP_BYPASS"):
            algorithm = view(DPU.EW_CFG, "EW_ALU_ALGO")
            name = "x" if view(DPU.EW_CFG, "EW_OP_TYPE") else _EW.get(algorithm, str(algorithm))
            memory = view(DPU.EW_CFG, "EW_OP_SRC")
            channelwise = view(DPU.EW_CFG, "EW_DATA_MODE") == OperandMode.CHANNEL
            tensor = "an operand of each channel" if channelwise else "a tensor"
            yield f"EW {name} {tensor if memory else 'a constant'}"
        if not view(DPU.EW_CFG, "EW_LUT_BYPASS"):
            yield "lookup table"
        yield from _clamp(view, "EW")
    scale = view(DPU.OUT_CVT_SCALE, "OUT_CVT_SCALE")
    shift, offset = (
        view(DPU.OUT_CVT_SHIFT, "OUT_CVT_SHIFT"),
        view(DPU.OUT_CVT_OFFSET, "OUT_CVT_OFFSET"),
    )
    if (scale, shift, offset) != (1, 0, 0):
        yield f"x {scale} >> {shift}, + {offset}"


_EW: dict[int, str] = {algorithm: algorithm.name.lower() for algorithm in Algorithm}
_EW |= {Algorithm.ADD: "+", Algorithm.DIV: "/", Algorithm.MINUS: "-"}


def _floats(view: TaskView) -> bool:
    return view(DPU.DATA_FORMAT, "PROC_PRECISION") == Precision.FP16


def _number(view: TaskView, register: Register, field: str) -> int | float:
    """An operand: fp32, or fp16 where it has 16 bits, when the DPU computes with such."""
    value = view(register, field)
    if not _floats(view):
        return value
    if register.fields[field].width == 16:
        return float(np.uint16(value & 0xFFFF).view(np.float16))
    return float(np.uint32(value & 0xFFFFFFFF).view(np.float32))


def _clamp(view: TaskView, stage: str) -> Iterator[str]:
    config = getattr(DPU, f"{stage}_CFG")
    if not view(config, f"{stage}_RELU_BYPASS"):
        limit = getattr(DPU, f"{stage}_RELUX_CMP_VALUE")
        field = f"{stage}_RELUX_CMP_DAT"
        upper = _number(view, limit, field) if view(config, f"{stage}_RELUX_EN") else None
        yield f"{stage} ReLU" if upper is None else f"{stage} clamp to 0 .. {upper}"


def explain_words(words: Words, rates: Rates = RK3588) -> str:
    """``describe`` for people."""
    return "\n".join(line for task in describe(words, rates) for line in _lines(task))


def _lines(task: dict[str, Any]) -> Iterator[str]:
    blocks = " ".join(task["blocks"]) or "nothing"
    yield f"task {task['task']}: {task['words']} words, starts {blocks}"
    sizes = f"{_size(task['input'])} -> " if "input" in task else ""
    output = f", {task['output_precision']}" if "output_precision" in task else ""
    yield f"  {task['operation']}: {sizes}{_size(task['output'])}{output}"
    if "kernel" in task:
        kernel = _size(task["kernel"][-2:])
        parts = [f"kernel {kernel}", f"stride {_size(task['stride'])}"]
        if task.get("dilation", [1, 1]) != [1, 1]:
            parts.append(f"dilation {_size(task['dilation'])}")
        if any(task["padding"]):
            parts.append(f"padding top {task['padding'][0]}, left {task['padding'][1]}")
            if "pad_value" in task:
                parts.append(f"of {task['pad_value']}")
        yield f"  {', '.join(parts)}"
    for stage in task.get("stages", ()):
        yield f"  DPU: {stage}"
    for access in task["accesses"]:
        verb = "writes" if access["writes"] else "reads"
        yield (
            f"  {verb} {access['what']}: {access['bytes']:,} bytes in "
            f"{access['start']:#010x} .. {access['end']:#010x}"
        )
    if "pitches" in task:
        pitches = task["pitches"]
        named = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in pitches.items())
        yield f"  pitches in atoms: {named}"
    if "banks" in task:
        for kind in ("data", "weight"):
            banks, size = task["banks"][kind], task["banks"][f"{kind}_bytes"]
            how = "kept from before" if task["banks"][f"{kind}_reused"] else f"{size:,} bytes"
            streamed = "" if size <= banks * BANK_BYTES else ", streamed"
            yield f"  CBUF {kind}: {banks} banks, {how}{streamed}"
    cost = task["cost"]
    yield (
        f"  cost: {cost['macs']:,} MACs, {cost['bytes_read']:,} bytes read, "
        f"{cost['bytes_written']:,} written, about {cost['seconds'] * 1e6:.1f} us"
    )
    if task["next"] is not None:
        yield f"  next task at {task['next']:#010x}"
    for problem in task["problems"]:
        yield f"  WRONG: {problem}"


def _size(sizes: Sequence[int]) -> str:
    return "x".join(map(str, sizes))
