# SPDX-License-Identifier: MIT
import json
import re
import shutil
import struct
import subprocess
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import SHARED, needs_shared

from npukit.ioctl import ProgramError
from npukit.programs.xdna import xclbin
from npukit.programs.xdna.xclbin import (
    AiePartition,
    CdoGroup,
    Connection,
    Ip,
    Memory,
    NpuKernel,
    Pdi,
    SectionKind,
    Xclbin,
    build,
    build_npu,
)

GOLDEN = SHARED / "data" / "xdna" / "mlir_aie.xclbin"
SECTIONS_AT, COUNT_AT = 456, 448


@needs_shared
def test_the_file_of_amds_tool_reads_as_its_own_mirror_says() -> None:
    data = GOLDEN.read_bytes()
    mirror = data[data.index(b"XCLBIN_MIRROR_DATA_START") :].decode()
    file = Xclbin(data)
    assert file.uuid.hex() == re.findall(r'"XclBinUUID":"(\w+)"', mirror)[0]
    assert str(file.timestamp) == re.findall(r'"TimeStamp":"(\d+)"', mirror)[0]
    assert (file.length, file.version, file.vbnv) == (len(data), (2, 25, 0), "")
    assert (file.signature_length, file.mode, file.interface_uuid) == (-1, 0, bytes(16))
    headers = re.findall(r'"Kind":"(\d+)","Name":"(\w*)","Offset":"(\w+)","Size":"(\w+)"', mirror)
    assert [(s.kind, s.name, len(s.data)) for s in file.sections] == [
        (int(kind), name, int(size, 16)) for kind, name, _offset, size in headers
    ]
    for section, (_kind, _name, offset, size) in zip(file.sections, headers, strict=True):
        start = int(offset, 16)
        assert section.data == data[start : start + int(size, 16)]
    payload = json.loads("{" + re.findall(r'"ip_layout":\{.*?\]\}', mirror)[0] + "}")["ip_layout"]
    (row,) = payload["m_ip_data"]
    (ip,) = file.ips
    assert (ip.name, ip.kernel_id) == (row["m_name"], int(row["m_kernel_id"], 16))
    assert (ip.type, ip.subtype, ip.functional) == (xclbin.IP_PS_KERNEL, 1, 0)
    topology = json.loads("{" + re.findall(r'"mem_topology":\{.*?\]\}', mirror)[0] + "}")
    assert [(m.tag, m.size_kib, m.base, m.used, m.type) for m in file.memories] == [
        (r["m_tag"], int(r["m_sizeKB"], 16), int(r["m_base_address"], 16), True, 2)
        for r in topology["mem_topology"]["m_mem_data"]
    ]
    for name, found in (
        ("connectivity", file.connections),
        ("group_connectivity", file.group_connections),
    ):
        rows = json.loads("{" + re.findall(rf'"{name}":\{{.*?\]\}}', mirror)[0] + "}")[name]
        assert [(c.argument, c.ip, c.memory) for c in found] == [
            (int(r["arg_index"]), int(r["m_ip_layout_index"]), int(r["mem_data_index"]))
            for r in rows["m_connection"]
        ]
    assert file.group_memories == file.memories


@needs_shared
def test_partition_and_compute_units_of_amds_file() -> None:
    file = Xclbin(GOLDEN.read_bytes())
    partition = file.partition
    assert partition is not None
    assert (partition.column_width, partition.ops_per_cycle) == (4, 2048)
    assert (partition.inference_fingerprint, partition.pre_post_fingerprint) == (23423, 12345)
    assert partition.start_columns == (0,)
    (pdi,) = partition.pdis
    assert (len(pdi.image), pdi.uuid.hex()) == (300, "f3f4f5f600001111222201234567" + "89ab")
    assert pdi.cdo_groups == (CdoGroup("DPU", 1, 1, (0x901,), (0xC1,)),)
    (unit,) = file.compute_units
    assert (unit.name, unit.index, unit.kernel.functional) == ("MLIR_AIE:MLIRAIE", 0, 0)
    assert unit.pdi is not None
    assert unit.pdi.image == pdi.image
    assert unit.kernel.arguments == xclbin.stream_arguments(3)
    assert unit.banks == {1: 1, 3: 0, 4: 0, 5: 0}
    assert file.compute_unit() is file.compute_unit("MLIR_AIE") is unit
    assert file.compute_unit("MLIR_AIE:MLIRAIE") is unit
    with pytest.raises(ProgramError, match="MLIR_AIE:MLIRAIE; asked for 'other'"):
        file.compute_unit("other")


@needs_shared
def test_a_rebuilt_file_has_the_same_sections_and_header() -> None:
    first = Xclbin(GOLDEN.read_bytes())
    second = Xclbin(first.rebuild())
    assert second.sections == first.sections
    fields = ("uuid", "version", "timestamp", "unique_id", "vbnv", "mode", "interface_uuid")
    assert [getattr(first, f) for f in fields] == [getattr(second, f) for f in fields]
    assert second.length == len(second.data)
    assert second.rebuild() == first.rebuild()


def sample(pdis: int = 2) -> bytes:
    return build_npu(
        [NpuKernel(f"K{i}", bytes([i]) * (100 + i), i + 1, ("A", "B"), 0x901 + i)
         for i in range(pdis)],
        column_width=2,
        start_columns=(0, 2),
    )  # fmt: skip


def test_built_kernels_become_compute_units() -> None:
    file = Xclbin(sample())
    assert [unit.name for unit in file.compute_units] == ["K0:A", "K0:B", "K1:A", "K1:B"]
    assert [unit.index for unit in file.compute_units] == [0, 1, 2, 3]
    assert [bytes(u.pdi.image) for u in file.compute_units if u.pdi] == [
        b"\0" * 100, b"\0" * 100, b"\1" * 101, b"\1" * 101,
    ]  # fmt: skip
    assert file.compute_unit("K1").name == "K1:A"
    assert file.compute_unit("K1").banks == {1: 1, 3: 0, 4: 0}
    with pytest.raises(ProgramError, match="which compute unit"):
        file.compute_unit()
    with pytest.raises(ValueError, match="same dpu_kernel_id"):
        build_npu([NpuKernel("a", b"", 1), NpuKernel("b", b"", 1)], column_width=1)


def test_equal_designs_get_equal_files_and_others_another_identity() -> None:
    assert sample() == sample()
    assert Xclbin(sample(2)).uuid != Xclbin(sample(3)).uuid
    assert Xclbin(sample(2)).digest != Xclbin(sample(3)).digest
    assert Xclbin(build([], uuid=bytes(range(16)))).uuid == bytes(range(16))


def test_sections_and_pdis_are_views_of_the_buffer() -> None:
    data = bytearray(sample())
    file = Xclbin(data)
    pdi = file.compute_units[3].pdi
    assert pdi is not None
    place = bytes(data).index(b"\1" * 101)
    data[place] = 77
    assert pdi.image[0] == 77
    assert pdi.image.readonly
    array = np.frombuffer(sample(), np.uint8)
    assert Xclbin(memoryview(array)).sections == Xclbin(sample()).sections


names = st.text(st.characters(codec="ascii", exclude_characters="\0"), max_size=12)
u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
groups = st.builds(
    CdoGroup, names, st.integers(0, 255), u64,
    st.lists(u64, max_size=3).map(tuple), st.lists(u32, max_size=3).map(tuple),
)  # fmt: skip
pdi_lists = st.builds(
    Pdi, st.binary(min_size=16, max_size=16), st.binary(max_size=40).map(memoryview),
    st.lists(groups, max_size=3).map(tuple),
)  # fmt: skip
partitions = st.builds(
    AiePartition, names, st.integers(0, 65535), st.lists(st.integers(0, 65535)).map(tuple),
    st.lists(pdi_lists, max_size=3).map(tuple), u32, st.integers(0, 255), u64, u64, names,
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(
    partition=partitions,
    ips=st.lists(st.builds(Ip, u32, u32, u64, names), max_size=4),
    memories=st.lists(
        st.builds(Memory, st.integers(0, 255), st.booleans(), u64, u64, names), max_size=4
    ),
    connections=st.lists(
        st.builds(Connection, *[st.integers(-(2**31), 2**31 - 1)] * 3), max_size=4
    ),
)
def test_what_is_written_is_read(
    partition: AiePartition,
    ips: list[Ip],
    memories: list[Memory],
    connections: list[Connection],
) -> None:
    file = Xclbin(
        build(
            [
                (SectionKind.AIE_PARTITION, "p", xclbin.encode_partition(partition)),
                (SectionKind.IP_LAYOUT, "", xclbin.encode_ips(ips)),
                (SectionKind.MEM_TOPOLOGY, "", xclbin.encode_memories(memories)),
                (SectionKind.CONNECTIVITY, "", xclbin.encode_connections(connections)),
                (SectionKind.ASK_GROUP_TOPOLOGY, "", xclbin.encode_memories(memories)),
                (SectionKind.ASK_GROUP_CONNECTIVITY, "", xclbin.encode_connections(connections)),
                (4711, "unknown", b"anything"),
            ],
            vbnv="somewhere",
            version=(1, 2, 3),
        )
    )
    assert file.partition == partition
    assert file.ips == tuple(ips)
    assert file.memories == file.group_memories == tuple(memories)
    assert file.connections == file.group_connections == tuple(connections)
    assert file.sections[-1].data == b"anything"
    assert (file.vbnv, file.version) == ("somewhere", (1, 2, 3))


def patched(offset: int, layout: str, *values: int) -> bytes:
    data = bytearray(sample())
    struct.pack_into(layout, data, offset, *values)
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "0 bytes are no container"),
        (b"xclbin2\0" + bytes(447), "455 bytes are no container"),
        (patched(0, "8s", b"xclbin1\0"), "it begins with"),
        (patched(304, "<Q", 2**64 - 1), "cut off"),
        (patched(COUNT_AT, "<I", 65537), "65537 sections"),
        (patched(COUNT_AT, "<I", 65536), "table of 65536 sections is cut off"),
        (patched(SECTIONS_AT + 24, "<Q", 2**64 - 8), "section 0"),
        (patched(SECTIONS_AT + 32, "<Q", 2**64 - 1), "section 0"),
        (patched(SECTIONS_AT + 24, "<Q", 0), "section 0"),
        (patched(SECTIONS_AT + 24, "<QQ", 2**63, 2**63), "section 0"),
    ],
)
def test_a_broken_frame_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(ProgramError, match=re.escape(message)):
        Xclbin(data)


def partition_with(offset: int, layout: str, *values: int) -> Xclbin:
    section = bytearray(Xclbin(sample()).section(SectionKind.AIE_PARTITION).data)  # type: ignore[union-attr]
    struct.pack_into(layout, section, offset, *values)
    return Xclbin(build([(SectionKind.AIE_PARTITION, "", bytes(section))]))


HUGE = 2**32 - 1


@pytest.mark.parametrize(
    ("offset", "values", "message"),
    [
        (4, (HUGE,), "a name"),
        (40, (HUGE, 0), "start columns"),
        (40, (2, HUGE), "start columns"),
        (120, (HUGE, HUGE), "PDIs"),
        (120, (45, 184), "not within|overlap"),
        (128, (HUGE,), "a name"),
    ],
)
def test_a_broken_partition_is_refused(offset: int, values: tuple[int, ...], message: str) -> None:
    file = partition_with(offset, f"<{len(values)}I", *values)
    with pytest.raises(ProgramError, match=message):
        _ = file.partition


def test_arrays_that_share_their_bytes_are_refused_so_that_memory_stays_bounded() -> None:
    pdi = struct.Struct("<16sIIII64x")
    count = 2000
    head = bytearray(184)
    struct.pack_into("<II", head, 120, count, 184)
    groups_at = 184
    rows = pdi.pack(bytes(16), 0, 0, count, groups_at) * count
    file = Xclbin(build([(SectionKind.AIE_PARTITION, "", bytes(head) + rows)]))
    tracemalloc.start()
    with pytest.raises(ProgramError, match="overlap"):
        _ = file.partition
    _now, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 40 * len(file.data)


def test_sections_that_share_their_bytes_are_refused() -> None:
    kinds = (SectionKind.AIE_PARTITION, SectionKind.EMBEDDED_METADATA)
    data = bytearray(build([(kind, "", bytes(4096)) for kind in kinds]))
    first, second = SECTIONS_AT + 24, SECTIONS_AT + 40 + 24
    data[second : second + 16] = data[first : first + 16]  # offset and size of the other
    Xclbin(build([(kind, "", bytes(4096)) for kind in kinds]))
    del data[-4096:]
    struct.pack_into("<Q", data, 304, len(data))
    with pytest.raises(ProgramError, match="share bytes"):
        Xclbin(bytes(data))


def test_a_pdi_beyond_the_limit_is_refused_by_reader_and_writer() -> None:
    pdis_at = struct.unpack_from(
        "<I", Xclbin(sample()).section(SectionKind.AIE_PARTITION).data, 124  # type: ignore[union-attr]
    )[0]  # fmt: skip
    file = partition_with(pdis_at + 16, "<I", xclbin.MAX_PDI_BYTES + 1)
    with pytest.raises(ProgramError, match="a PDI of"):
        _ = file.partition
    large = memoryview(bytearray(xclbin.MAX_PDI_BYTES + 1))
    with pytest.raises(ValueError, match="a PDI of"):
        xclbin.encode_partition(AiePartition("", 1, (0,), (Pdi(bytes(16), large, ()),)))


def with_metadata(text: str | bytes) -> Xclbin:
    raw = text if isinstance(text, bytes) else text.encode()
    return Xclbin(build([(SectionKind.EMBEDDED_METADATA, "", raw)]))


KERNEL = "<project><platform><device><core>{}</core></device></platform></project>"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('<!DOCTYPE a [<!ENTITY b "c">]><project/>', "declarations"),
        ("<project>", "is not XML"),
        (b"\xff\xfe<\0", "not UTF-8"),
        (KERNEL.format('<kernel name="k"><arg id="x"/></kernel>'), "is no number"),
        (KERNEL.format(f'<kernel name="k"><arg id="{2**64}"/></kernel>'), "no number of 64 bits"),
        (KERNEL.format('<kernel name="k"><instance name="i"/></kernel>'), "k:i is not in IP_LAYO"),
        (" " * (xclbin.MAX_METADATA_BYTES + 1), "at most"),
        ("<a>" * 20000, "is not XML"),
    ],
)
def test_hostile_metadata_is_refused(text: str | bytes, message: str) -> None:
    file = with_metadata(text)
    with pytest.raises(ProgramError, match=message):
        _ = file.compute_units


def test_a_container_without_npu_sections_says_so_by_empty_answers() -> None:
    file = Xclbin(build([]))
    assert file.partition is None
    assert file.ips == file.memories == file.connections == file.compute_units == ()


@pytest.mark.parametrize("kind", ["ips", "memories", "connections"])
@pytest.mark.parametrize("count", [-1, -(2**31), 2**31 - 1])
def test_entry_counts_are_checked(kind: str, count: int) -> None:
    number = {
        "ips": SectionKind.IP_LAYOUT,
        "memories": SectionKind.MEM_TOPOLOGY,
        "connections": SectionKind.CONNECTIVITY,
    }[kind]
    file = Xclbin(build([(number, "", struct.pack("<i", count) + bytes(60))]))
    with pytest.raises(ProgramError, match="entries"):
        getattr(file, kind)
    with pytest.raises(ProgramError, match="ends within"):
        getattr(Xclbin(build([(number, "", b"ab")])), kind)


@pytest.mark.skipif(shutil.which("xclbinutil") is None, reason="AMD's xclbinutil is not installed")
@pytest.mark.parametrize("seed", range(20))
def test_amds_tool_reads_what_we_build(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    kernels = [
        NpuKernel(f"K{i}", rng.bytes(int(rng.integers(1, 4000))), int(rng.integers(1, 6)),
                  dpu_kernel_id=0x901 + i)
        for i in range(int(rng.integers(1, 5)))
    ]  # fmt: skip
    path = tmp_path / "t.xclbin"
    path.write_bytes(build_npu(kernels, column_width=int(rng.integers(1, 5)), start_columns=(0, 1)))
    file = Xclbin(path.read_bytes())

    def tool(*arguments: str) -> str:
        command = ["xclbinutil", "--force", "--input", str(path), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def dumped(section: str) -> Any:
        target = tmp_path / f"{section}.json"
        tool("--dump-section", f"{section}:JSON:{target}")
        return json.loads(target.read_text())[section.lower()]

    info = tool("--info")
    assert file.uuid.hex() in info.replace("-", "")
    memories = dumped("MEM_TOPOLOGY")["m_mem_data"]
    assert [(m["m_tag"], int(m["m_sizeKB"], 0), int(m["m_base_address"], 0)) for m in memories] == [
        (m.tag, m.size_kib, m.base) for m in file.memories
    ]
    ips = dumped("IP_LAYOUT")["m_ip_data"]
    assert [(ip["m_name"], int(ip["m_kernel_id"], 0)) for ip in ips] == [
        (ip.name, ip.kernel_id) for ip in file.ips
    ]
    assert {(ip["m_type"], ip["m_subtype"], ip["m_functional"]) for ip in ips} == {
        ("IP_PS_KERNEL", "DPU", "DPU")
    }
    links = dumped("CONNECTIVITY")["m_connection"]
    assert [
        (int(c["arg_index"]), int(c["m_ip_layout_index"]), int(c["mem_data_index"])) for c in links
    ] == [(c.argument, c.ip, c.memory) for c in file.connections]
    partition, ours = dumped("AIE_PARTITION"), file.partition
    assert ours is not None
    assert int(partition["operations_per_cycle"]) == ours.ops_per_cycle
    shape = partition["partition"]
    assert (int(shape["column_width"]), [int(c) for c in shape["start_columns"]]) == (
        ours.column_width,
        list(ours.start_columns),
    )
    assert len(partition["PDIs"]) == len(ours.pdis)
    for theirs, pdi in zip(partition["PDIs"], ours.pdis, strict=True):
        assert theirs["uuid"].replace("-", "") == pdi.uuid.hex()
        assert (tmp_path / theirs["file_name"]).read_bytes() == pdi.image
        (group,) = theirs["cdo_groups"]
        assert [int(i, 0) for i in group["dpu_kernel_ids"]] == list(
            pdi.cdo_groups[0].dpu_kernel_ids
        )
