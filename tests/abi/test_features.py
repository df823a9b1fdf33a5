# SPDX-License-Identifier: MIT
"""What these headers ask of the floor below: reserved words as names, anonymous members, tails."""

import ctypes
from ctypes import c_uint8, c_uint16, c_uint32, c_uint64

import pytest

from npukit.abi import amdxdna, fastrpc, habanalabs, qaic, udmabuf
from npukit.ioctl import Pointer, Struct, Union


def test_a_field_named_in() -> None:
    arguments = habanalabs.hl_cb_args(in_=habanalabs.hl_cb_in(op=2, cb_size=4096))
    assert arguments.in_.cb_size == 4096
    assert getattr(arguments, "in").op == 2
    arguments.in_ = habanalabs.hl_cb_in(cb_handle=7)
    assert arguments.out.cb_handle == 7
    assert set(arguments.asdict()) == {"in", "out"}
    assert repr(arguments).startswith("hl_cb_args(in=hl_cb_in(cb_handle=7, ")
    assert habanalabs.hl_cb_args(**{"in": habanalabs.hl_cb_in(op=1)}).in_.op == 1


def test_members_of_anonymous_unions_are_fields() -> None:
    wait = habanalabs.hl_wait_cs_in(seq=5, timeout_us=6, seq_arr_len=3)
    assert (wait.addr, wait.target) == (5, 6)
    assert wait.interrupt_timeout_us == 3
    names = wait.fields()
    assert names[:5] == ["seq", "timeout_us", "addr", "cq_counters_handle", "target"]
    assert "_event" not in names
    assert wait.asdict()["cq_counters_handle"] == 5
    assert "cq_counters_handle=5" in repr(wait)
    assert habanalabs.hl_cs_in.chunks_execute.offset == 8
    assert habanalabs.hl_cs_in(engines=1, num_engines=2).chunks_execute == 2


def test_a_member_of_a_union_that_has_a_name() -> None:
    memory = habanalabs.hl_mem_in(op=habanalabs.HL_MEM_OP_MAP)
    memory.map_host.host_virt_addr = 0x1000
    memory.map_host.mem_size = 4096
    assert memory.export_dmabuf_fd.offset == 4096
    assert memory.alloc.mem_size == 0x1000
    with pytest.raises(TypeError, match="has no field 'nonsense'"):
        habanalabs.hl_mem_in(nonsense=1)


@pytest.mark.parametrize(
    ("cls", "count", "element", "head"),
    [
        (amdxdna.amdxdna_hwctx_param_config_cu, "num_cus", 8, 8),
        (amdxdna.amdxdna_drm_va_tbl, "num_entries", 16, 8),
        (amdxdna.amdxdna_drm_query_telemetry_header, "map_num_elements", 4, 16),
        (udmabuf.udmabuf_create_list, "count", 24, 8),
    ],
)
@pytest.mark.parametrize("length", [0, 1, 3, 100])
def test_flexible_arrays(
    cls: type[Struct], count: str, element: int, head: int, length: int
) -> None:
    tailed = cls.with_tail(length)
    assert getattr(tailed, count) == length
    assert ctypes.sizeof(tailed) == head + element * length
    assert type(tailed).__name__ == cls.__name__
    assert len(tailed.asdict()[cls.fields()[-1]]) == length
    assert cls.with_tail(length) == tailed


def test_a_tail_is_filled() -> None:
    table = amdxdna.amdxdna_drm_va_tbl.with_tail(2, dmabuf_fd=-1)
    table.va_entries[1] = amdxdna.amdxdna_drm_va_entry(vaddr=0x7000, len=4096)
    assert bytes(table)[24:32] == (0x7000).to_bytes(8, "little")
    assert table.asdict()["va_entries"][1] == {"vaddr": 0x7000, "len": 4096}
    with pytest.raises(ValueError, match="num_cus"):
        amdxdna.amdxdna_hwctx_param_config_cu.with_tail(3, num_cus=1 << 16)


def test_a_flexible_array_that_no_field_counts() -> None:
    transaction = qaic.qaic_manage_trans_passthrough(
        hdr=qaic.qaic_manage_trans_hdr(type=qaic.QAIC_TRANS_PASSTHROUGH_FROM_USR, len=16)
    )
    assert ctypes.sizeof(transaction) == 8
    assert list(transaction.data) == []
    with pytest.raises(TypeError, match="has no flexible array"):
        qaic.qaic_manage_trans_passthrough.with_tail(8)


def test_a_count_that_stands_in_a_header() -> None:
    run = qaic.qaic_execute(hdr=qaic.qaic_execute_hdr(count=3, dbc_id=1), data=0x1000)
    assert run.count == 3
    assert run.asdict() == {"hdr": {"count": 3, "dbc_id": 1}, "data": 0x1000}
    assert repr(run) == "qaic_execute(hdr=qaic_execute_hdr(count=3, dbc_id=1), data=0x1000)"


def test_reserved_words_are_not_printed() -> None:
    assert repr(fastrpc.fastrpc_mem_map(fd=3, vaddrin=0x1000)) == (
        "fastrpc_mem_map(version=0, fd=3, offset=0x0, flags=0x0, vaddrin=0x1000, length=0, "
        "vaddrout=0x0, attrs=0)"
    )


def test_a_member_that_has_no_fields_yet_is_told_by_the_size() -> None:
    class either(Union):
        _size_ = 8

    with pytest.raises(TypeError, match="states 16 bytes but is laid out in 8"):

        class early(Struct):
            _size_ = 16
            _fields_ = [("next", c_uint64), ("either", either)]


def test_fields_that_are_set_later() -> None:
    class either(Union):
        _size_ = 8

    class node(Struct):
        _size_ = 24
        _anonymous_ = ("_either",)
        _pointers_ = {"next": Pointer(c_uint16, count="in")}

    either._fields_ = [("one", c_uint64), ("other", c_uint32)]
    node._fields_ = [
        ("next", c_uint64),
        ("in", c_uint32),
        ("pad", c_uint8 * 4),
        ("_either", either),
    ]
    assert node(in_=4, other=5).asdict()["one"] == 5
    with pytest.raises(ValueError, match="cannot hold"):
        node(in_=1 << 32)


def test_a_wrong_size_is_told_at_once() -> None:
    with pytest.raises(TypeError, match="wrong states 12 bytes but is laid out in 16"):

        class wrong(Struct):
            _size_ = 12
            _fields_ = [("a", c_uint32), ("b", c_uint64)]
