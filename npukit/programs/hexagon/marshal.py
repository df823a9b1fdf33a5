# SPDX-License-Identifier: MIT
"""How qaic, the IDL compiler of the DSP, lays a call out in buffers.

The first in buffer holds the primitives in IDL order: each number that goes in, at its natural
alignment, and for each string and sequence its length as a u32, of one that only comes out its
capacity. Then each string and sequence that goes in has a buffer of its own. The first out buffer
holds the numbers that come out; each sequence that comes out has one of its own. A buffer of
primitives without any is absent. A method above 30 leads its primitives with its own number.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from npukit.abi.hexagon import EXTENDED_METHOD
from npukit.devices.fastrpc import DmaBuffer, DmaSlice

from .idl import Method, Parameter, Type

Input = Any
"""Something with the buffer protocol, a DmaBuffer or a DmaSlice."""
Output = Any
"""The same, writable, or how many bytes there are to be."""


def _layout(items: Sequence[str]) -> tuple[list[int], int]:
    """Offsets of numbers at their natural alignment, and the bytes they take."""
    offsets, end = [], 0
    for item in items:
        size = struct.calcsize(item)
        end = -(-end // size) * size
        offsets.append(end)
        end += size
    return offsets, end


def pack_primitives(items: Sequence[str], values: Sequence[Any]) -> bytearray:
    offsets, size = _layout(items)
    packed = bytearray(size)
    for item, offset, value in zip(items, offsets, values, strict=True):
        struct.pack_into(f"<{item}", packed, offset, value)
    return packed


def unpack_primitives(items: Sequence[str], packed: Any) -> list[Any]:
    """ValueError when ``packed`` is shorter than the numbers are."""
    offsets, size = _layout(items)
    if len(packed) < size:
        raise ValueError(f"{len(packed)} bytes of primitives, not {size}")
    return [
        struct.unpack_from(f"<{item}", packed, offset)[0]
        for item, offset in zip(items, offsets, strict=True)
    ]


def _in_items(method: Method) -> list[str]:
    extended = ["I"] if method.number >= EXTENDED_METHOD else []
    return extended + [
        "I" if parameter.type.is_buffer else parameter.type.item
        for parameter in method.parameters
        if parameter.type.is_buffer or parameter.goes_in
    ]


def _out_items(method: Method) -> list[str]:
    return [
        parameter.type.item
        for parameter in method.parameters
        if parameter.comes_out and not parameter.type.is_buffer
    ]


def arguments_of(method: Method) -> list[Parameter]:
    """The parameters that a caller gives: all but the numbers that only come out."""
    return [p for p in method.parameters if p.goes_in or p.type.is_buffer]


def pack_call(method: Method, arguments: Sequence[Any]) -> tuple[list[Input], list[Output]]:
    """(in buffers, out buffers) for FastRpcDevice.invoke.

    TypeError for a wrong number of arguments; ValueError for a value that its type cannot hold.
    """
    expected = arguments_of(method)
    if len(arguments) != len(expected):
        names = ", ".join(parameter.name for parameter in expected)
        raise TypeError(f"{method}: {len(arguments)} arguments given, {len(expected)}: {names}")
    primitives: list[Any] = [method.number] if method.number >= EXTENDED_METHOD else []
    ins: list[Input] = []
    outs: list[Output] = []
    for parameter, argument in zip(expected, arguments, strict=True):
        kind = parameter.type
        if not kind.is_buffer:
            primitives.append(_number(parameter, argument))
            continue
        if parameter.goes_in:
            data = _data(parameter, argument)
            primitives.append(_size(data) // kind.itemsize)
            ins.append(data)
            if parameter.comes_out:
                outs.append(_size(data))
        else:
            primitives.append(_capacity(parameter, argument))
            target: Output = argument
            if isinstance(argument, int):
                target = argument * kind.itemsize
            outs.append(target)
    out_items = _out_items(method)
    head: list[Input] = [pack_primitives(_in_items(method), primitives)] if primitives else []
    tail: list[Output] = [_layout(out_items)[1]] if out_items else []
    return head + ins, tail + outs


def unpack_results(
    method: Method, arguments: Sequence[Any], filled: Sequence[Any]
) -> tuple[Any, ...]:
    """The values that come out, in IDL order, from the out buffers as they were filled."""
    given = dict(zip((p.name for p in arguments_of(method)), arguments, strict=True))
    items = _out_items(method)
    numbers = iter(unpack_primitives(items, filled[0]) if items else [])
    buffers = iter(filled[1:] if items else filled)
    results: list[Any] = []
    for parameter in method.parameters:
        if not parameter.comes_out:
            continue
        if not parameter.type.is_buffer:
            results.append(next(numbers))
        elif parameter.direction == "rout" and not isinstance(given[parameter.name], int):
            next(buffers)
            results.append(given[parameter.name])
        else:
            results.append(_value(parameter.type, next(buffers)))
    return tuple(results)


def unpack_call(
    method: Method, ins: Sequence[Any], outs: Sequence[Any]
) -> tuple[list[Any], list[int]]:
    """The other side: (arguments as pack_call took them, capacities of what comes out, in bytes).

    A rout string or sequence is given as its capacity in items. ValueError when buffers are
    missing, or a length among the primitives is not that of its buffer.
    """
    items = _in_items(method)
    if items and not ins:
        raise ValueError(f"{method}: no primitives")
    numbers = iter(unpack_primitives(items, ins[0]) if items else [])
    if method.number >= EXTENDED_METHOD:
        next(numbers)
    buffers = iter(ins[1:] if items else ins)
    arguments: list[Any] = []
    for parameter in arguments_of(method):
        number = next(numbers)
        kind = parameter.type
        if not kind.is_buffer or not parameter.goes_in:
            arguments.append(number)
            continue
        data = next(buffers, None)
        if data is None or len(data) != number * kind.itemsize:
            found = "no buffer" if data is None else f"{len(data)} bytes"
            raise ValueError(f"{parameter}: {found} for {number} items")
        arguments.append(_value(kind, data))
    capacities = [len(out) for out in (outs[1:] if _out_items(method) else outs)]
    return arguments, capacities


def pack_results(method: Method, results: Sequence[Any]) -> list[bytes | bytearray]:
    """The contents of the out buffers, for results in IDL order."""
    numbers: list[Any] = []
    buffers: list[bytes | bytearray] = []
    for parameter, value in zip(
        (p for p in method.parameters if p.comes_out), results, strict=True
    ):
        if parameter.type.is_buffer:
            buffers.append(bytes(_data(parameter, value)))
        else:
            numbers.append(value)
    items = _out_items(method)
    return [pack_primitives(items, numbers), *buffers] if items else buffers


def _number(parameter: Parameter, value: Any) -> Any:
    try:
        struct.pack(parameter.type.item, value)
    except struct.error as error:
        raise ValueError(f"{parameter}: {value!r} does not fit: {error}") from None
    return value


def _data(parameter: Parameter, value: Any) -> Input:
    """The bytes of a string or sequence that goes in."""
    kind = parameter.type
    if isinstance(value, DmaBuffer | DmaSlice):
        return value
    if kind.item == "s":
        if not isinstance(value, str):
            raise ValueError(f"{parameter}: {value!r} is no string")
        return value.encode() + b"\0"
    if isinstance(value, bytes | bytearray | memoryview):
        data = memoryview(value).cast("B")
        if data.nbytes % kind.itemsize:
            raise ValueError(f"{parameter}: {data.nbytes} bytes are no whole number of items")
        return data
    array = np.asarray(value)
    wanted = np.dtype(kind.item)
    if array.dtype != wanted and array.size:
        if array.dtype.kind == "f" and wanted.kind != "f":
            raise ValueError(f"{parameter}: {array.dtype} values for integers")
        converted = array.astype(wanted)
        if wanted.kind != "f" and not np.array_equal(converted, array):
            raise ValueError(f"{parameter}: {array.min()} to {array.max()} do not all fit")
        array = converted
    return np.ascontiguousarray(array)


def _size(data: Input) -> int:
    return data.size if isinstance(data, DmaBuffer | DmaSlice) else memoryview(data).nbytes


def _capacity(parameter: Parameter, argument: Any) -> int:
    """In items."""
    if isinstance(argument, int):
        if argument < 0:
            raise ValueError(f"{parameter}: a capacity of {argument}")
        return argument
    return _size(argument) // parameter.type.itemsize


def _value(kind: Type, data: Any) -> Any:
    raw = bytes(data)
    if kind.item == "s":
        return raw.split(b"\0", 1)[0].decode(errors="replace")
    return raw if kind.item == "B" else np.frombuffer(raw, np.dtype(kind.item))
