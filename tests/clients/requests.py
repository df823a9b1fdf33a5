# SPDX-License-Identifier: MIT
"""usage: requests.py NODE MODULE...: each request of the headers once, on the node.

Prints a line of JSON for each: number, structure, fields as they were written and as they came
back, value, errno. Pointers lead to zeros, each to an address of its own.
"""

import ctypes
import importlib
import json
import os
import sys

from npukit.ioctl import Ioctl, Struct, Union

libc = ctypes.CDLL(None, use_errno=True)
libc.ioctl.argtypes = (ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p)
room = ctypes.create_string_buffer(1 << 16)


def fill(value, start: int) -> int:
    """Give each number a value of its own, pointers an address, and what counts elements 1."""
    counts = {part for p in value._pointers_.values() for part in (p.count, p.stride) if part}
    for name, ctype, *_bits in value._fields_:
        if name in value._pointers_:
            start += 1
            setattr(value, name, ctypes.addressof(room) + 512 * (start % 100))
        elif value._tail_ is not None and name in value._tail_:
            for element in getattr(value, name) if name == value._tail_[0] else ():
                if isinstance(element, Struct):
                    start = fill(element, start)
        elif name in counts:
            setattr(value, name, 1)
        elif isinstance(getattr(value, name), (Struct, Union)):
            start = fill(getattr(value, name), start)
        elif issubclass(ctype, ctypes._SimpleCData) and ctype is not ctypes.c_char:
            start += 1
            setattr(value, name, start % 100)
    return start


fd = os.open(sys.argv[1], os.O_RDWR)
for module in sys.argv[2:]:
    known = vars(importlib.import_module(f"npukit.abi.{module}")).values()
    for number, request in {int(r): r for r in known if isinstance(r, Ioctl)}.items():
        value = sent = None
        if request.struct is not None and issubclass(request.struct, (Struct, Union)):
            tail = request.struct._tail_ is not None
            value = request.struct.with_tail(3) if tail else request.struct()
            fill(value, 1)
            sent = value.asdict()
        pointer = None if value is None else ctypes.addressof(value)
        result = libc.ioctl(fd, number, pointer)
        errno = ctypes.get_errno() if result == -1 else 0
        struct = type(value).__name__ if value is not None else ""
        got = value.asdict() if value is not None else None
        line = [number, struct, sent, got, result, errno]
        print(json.dumps(line, default=lambda data: {"hex": data.hex()}), flush=True)
