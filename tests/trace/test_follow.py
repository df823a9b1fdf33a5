# SPDX-License-Identifier: MIT
import contextlib
import ctypes
from ctypes import c_char, c_uint8, c_uint32, c_uint64
from typing import Any

from npukit import _fast
from npukit.abi import qaic
from npukit.abi.amdxdna import DRM_IOCTL_AMDXDNA_GET_ARRAY, amdxdna_drm_get_array
from npukit.abi.drm import DRM_IOCTL_VERSION
from npukit.abi.rknpu import DRM_IOCTL_RKNPU_MEM_CREATE, DRM_IOCTL_RKNPU_MEM_CREATE_0_8
from npukit.abi.rocket import DRM_IOCTL_ROCKET_SUBMIT
from npukit.ioctl import Ioctl, Pointer, Struct
from npukit.ioctl.memory import OwnMemory
from npukit.trace.follow import Follower, pointer_names, request_of
from npukit.trace.record import Block, Memory


class Inner(Struct):
    _size_ = 8
    _fields_ = [("text", c_uint64)]
    _pointers_ = {"text": Pointer(c_char)}


class Outer(Struct):
    _size_ = 48
    _fields_ = [
        ("inner", Inner),
        ("reads", c_uint64),
        ("fills", c_uint64),
        ("rows", c_uint64),
        ("count", c_uint32),
        ("stride", c_uint32),
        ("null", c_uint64),
    ]
    _pointers_ = {
        "reads": Pointer(c_uint32, count="count"),
        "fills": Pointer(c_uint8, count="count", direction="out"),
        "rows": Pointer(Inner, stride="stride"),
        "null": Pointer(c_uint8),
    }


def address(value: Any) -> int:
    return ctypes.addressof(value)


def test_pointers_are_followed_before_and_after_a_call() -> None:
    text = ctypes.create_string_buffer(b"shell")
    numbers, filled = (c_uint32 * 2)(7, 9), (c_uint8 * 2)(1, 2)
    row = Inner(text=address(text))
    outer = Outer(
        inner=Inner(text=address(text)),
        reads=address(numbers),
        fills=address(filled),
        rows=address(row),
        count=2,
        stride=64,
    )
    memory = OwnMemory()
    shell = Memory("c_char", address(text), 5, b"shell")
    sent = Follower(memory.read).sent(Outer, bytes(outer))
    assert sent.fields["inner"] == {"text": address(text)}
    assert sent.memory == {
        "reads": Memory("c_uint", address(numbers), 2, [7, 9]),
        "rows": Memory(
            "Inner",
            address(row),
            1,
            [Block("Inner", {"text": address(text)}, {"text": shell})],
        ),
        "inner.text": shell,
    }
    # What came back announces more than there was room for.
    outer.count = 200
    received = Follower(memory.read).received(Outer, bytes(outer), sent)
    assert received.memory == {"fills": Memory("c_ubyte", address(filled), 2, b"\1\2")}
    assert received.fields["count"] == 200
    memory.close()


def test_a_string_may_end_with_the_memory() -> None:
    mapping = _fast.mmap(-1, _fast.PAGE_SIZE, flags=_fast.MAP_SHARED | _fast.MAP_ANONYMOUS)
    end = mapping.address + _fast.PAGE_SIZE
    memoryview(mapping)[-4:] = b"name"
    memory = OwnMemory()
    other = Follower(lambda at, size: memory.read(at, size) if at + size <= end else None)
    assert other.sent(Inner, bytes(Inner(text=end - 4))).memory["text"].content == b"name"
    assert other.sent(Inner, bytes(Inner(text=8))).memory["text"].content is None
    memory.close()


def test_octets_of_elements_of_a_given_size() -> None:
    room = (c_uint8 * 12)(*range(12))
    arg = amdxdna_drm_get_array(num_element=3, element_size=4, buffer=address(room))
    memory = OwnMemory()
    block = Follower(memory.read).sent(amdxdna_drm_get_array, bytes(arg))
    assert block.memory["buffer"] == Memory("c_ubyte", address(room), 12, bytes(range(12)))
    memory.close()


def test_a_number_is_named_by_the_driver() -> None:
    rows = [
        ("rocket", DRM_IOCTL_ROCKET_SUBMIT, "DRM_IOCTL_ROCKET_SUBMIT"),
        ("rknpu", DRM_IOCTL_RKNPU_MEM_CREATE, "DRM_IOCTL_RKNPU_MEM_CREATE"),
        ("rknpu", DRM_IOCTL_RKNPU_MEM_CREATE_0_8, "DRM_IOCTL_RKNPU_MEM_CREATE"),
        ("amdxdna_accel_driver", DRM_IOCTL_AMDXDNA_GET_ARRAY, "DRM_IOCTL_AMDXDNA_GET_ARRAY"),
        ("a driver", DRM_IOCTL_VERSION, "DRM_IOCTL_VERSION"),
    ]
    for driver, request, name in rows:
        found = request_of(driver, int(request))
        assert found is not None
        assert (found.name, found.struct) == (name, request.struct)
    # DRM looks at type and number alone.
    assert request_of("rocket", 0xC0FF6440 | 1) is not None
    assert request_of("rocket", 0x7A55) is None


def test_pointers_are_known_by_the_header() -> None:
    assert pointer_names(DRM_IOCTL_ROCKET_SUBMIT) == {
        "drm_rocket_submit": {"jobs"},
        "drm_rocket_job": {"tasks", "in_bo_handles", "out_bo_handles"},
        "drm_rocket_task": set(),
    }
    assert pointer_names(None) == pointer_names(Ioctl("NONE", 1)) == {}


def test_a_request_that_takes_other_entries_in_the_same_structure() -> None:
    entries = (qaic.qaic_partial_execute_entry * 2)()
    entries[0].handle, entries[1].handle, entries[1].resize = 5, 6, 1 << 40
    call = qaic.qaic_execute(hdr=qaic.qaic_execute_hdr(count=2), data=ctypes.addressof(entries))
    request = request_of("qaic", int(qaic.DRM_IOCTL_QAIC_PARTIAL_EXECUTE_BO))
    assert request is not None
    with contextlib.closing(OwnMemory()) as memory:
        block = Follower(memory.read).sent(request.struct, bytes(call))
    assert block.struct == "qaic_execute"
    content = block.memory["data"].content
    assert content is not None
    fields = [element.fields for element in content if isinstance(element, Block)]
    assert fields == [
        {"handle": 5, "dir": 0, "resize": 0}, {"handle": 6, "dir": 0, "resize": 1 << 40}
    ]  # fmt: skip
