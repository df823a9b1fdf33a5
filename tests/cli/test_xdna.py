# SPDX-License-Identifier: MIT
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from npukit.cli.txn import txn as txn_group
from npukit.cli.xclbin import xclbin as xclbin_group
from npukit.ioctl import ProgramError
from npukit.programs.xdna.registers import MM2S, BufferDescriptor
from npukit.programs.xdna.txn import Assembler
from npukit.programs.xdna.xclbin import NpuKernel, Xclbin, build_npu


def run(group: object, *arguments: object) -> Result:
    return CliRunner().invoke(group, [str(a) for a in arguments])  # type: ignore[arg-type]


@pytest.fixture
def container(tmp_path: Path) -> Path:
    path = tmp_path / "design.xclbin"
    kernels = [NpuKernel("ONE", b"1" * 100, 2), NpuKernel("TWO", b"2" * 50, 1, dpu_kernel_id=7)]
    path.write_bytes(build_npu(kernels, column_width=2))
    return path


def test_show(container: Path) -> None:
    result = run(xclbin_group, "show", container)
    assert result.exit_code == 0, result.output
    assert "ONE:MLIRAIE" in result.output
    assert "0x014 bo0: address of 8 bytes, memory 0" in result.output
    assert "pdi" in result.output
    data = json.loads(run(xclbin_group, "show", container, "--json").output)
    assert data["partition"]["columns"] == 2
    assert [pdi["size"] for pdi in data["partition"]["pdis"]] == [100, 50]
    assert [unit["kernel_id"] for unit in data["compute_units"]] == [0x901, 7]
    assert data["digest"] == Xclbin(container.read_bytes()).digest


def test_extract_and_build_give_the_same_file(container: Path, tmp_path: Path) -> None:
    folder, again = tmp_path / "parts", tmp_path / "again.xclbin"
    assert run(xclbin_group, "extract", container, "-o", folder).exit_code == 0
    names = sorted(path.name for path in folder.iterdir())
    assert [name.partition("-")[0] for name in names] == [
        "00", "01", "02", "03", "04", "pdi", "pdi", "sections.json",
    ]  # fmt: skip
    assert next(folder.glob("pdi-0-*")).read_bytes() == b"1" * 100
    result = run(xclbin_group, "build", folder, "-o", again)
    assert result.exit_code == 0, result.output
    assert again.read_bytes() == container.read_bytes()


def test_a_wrong_manifest_is_named(tmp_path: Path) -> None:
    for text in ("{", "{}", '{"sections": [{"kind": 6}]}', '{"sections": [], "version": [1]}'):
        (tmp_path / "sections.json").write_text(text)
        result = run(xclbin_group, "build", tmp_path, "-o", tmp_path / "x")
        assert result.exit_code == 1
        assert "sections.json" in result.output


def test_a_folder_without_a_manifest(tmp_path: Path) -> None:
    result = run(xclbin_group, "build", tmp_path, "-o", tmp_path / "x")
    assert result.exit_code == 1
    assert result.output == f"Error: {tmp_path / 'sections.json'}: No such file or directory\n"


@pytest.mark.parametrize(
    "changes",
    [
        {"version": [999, 2, 3]},
        {"version": [1, 2, "3"]},
        {"timestamp": -1},
        {"timestamp": 1 << 64},
        {"timestamp": 1.5},
        {"platform": 5},
        {"platform": "x" * 65},
        {"uuid": 5},
        {"uuid": "00"},
        {"sections": [{"kind": -1, "file": "part"}]},
        {"sections": [{"kind": 1 << 32, "file": "part"}]},
        {"sections": [{"kind": 1.5, "file": "part"}]},
        {"sections": [{"kind": 6, "file": "part", "name": 5}]},
        {"sections": [{"kind": 6, "file": 5}]},
        {"sections": [{"kind": 6, "file": "none"}]},
        {"sections": [{"kind": 6, "file": "part\0"}]},
        {"sections": [{"kind": 6, "file": "../secret"}]},
        {"sections": [{"kind": 6, "file": "link"}]},
        {"sections": ["kind"]},
        {"sections": 5},
    ],
)
def test_numbers_and_names_of_a_manifest_that_do_not_fit(
    tmp_path: Path, changes: dict[str, object]
) -> None:
    (tmp_path / "secret").write_bytes(b"not for the container")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "part").write_bytes(b"data")
    (folder / "link").symlink_to("../secret")
    (folder / "sections.json").write_text(json.dumps({"sections": [], **changes}))
    output = tmp_path / "out"
    result = run(xclbin_group, "build", folder, "-o", output)
    assert isinstance(result.exception, SystemExit), result.exception
    assert (result.exit_code, output.exists()) == (1, False)
    assert "sections.json: " in result.output
    # An absolute name is no way out either.
    changes = {"sections": [{"kind": 6, "file": str(tmp_path / "secret")}]}
    (folder / "sections.json").write_text(json.dumps(changes))
    assert "is not in" in run(xclbin_group, "build", folder, "-o", output).output


def test_a_file_that_cannot_be_written_is_named(container: Path, tmp_path: Path) -> None:
    parts, listing = tmp_path / "parts", tmp_path / "i.asm"
    assert run(xclbin_group, "extract", container, "-o", parts).exit_code == 0
    asm = Assembler()
    asm.noop()
    listing.write_bytes(asm.finish().to_bytes())
    for group, *arguments in (
        (xclbin_group, "build", parts, "-o", "/dev/full"),
        (xclbin_group, "build", parts, "-o", tmp_path / "none" / "x"),
        (xclbin_group, "extract", container, "-o", "/proc/x"),
        (xclbin_group, "extract", container, "-o", listing / "x"),
        (txn_group, "asm", listing, "-o", "/dev/full"),
        (txn_group, "asm", listing, "-o", tmp_path / "none" / "x"),
    ):
        result = run(group, *arguments)
        assert isinstance(result.exception, SystemExit), result.exception
        assert result.exit_code == 1
        assert str(arguments[-1]) in result.output


def test_what_is_no_container_is_said(tmp_path: Path) -> None:
    for data in (b"", b"hello" * 200):
        path = tmp_path / "x"
        path.write_bytes(data)
        assert isinstance(run(xclbin_group, "show", path).exception, ProgramError)


def test_txn_dis_asm_explain(tmp_path: Path) -> None:
    asm = Assembler()
    asm.buffer_descriptor(0, 0, 3, BufferDescriptor(64))
    asm.patch(0, 0, 3, argument=1)
    asm.start(0, 0, MM2S, 0, 3)
    binary, text, back = tmp_path / "i.txt", tmp_path / "i.asm", tmp_path / "o"
    binary.write_bytes(asm.finish().to_bytes())
    listing = run(txn_group, "dis", binary).output
    assert "ddr_patch shim(0,0).DMA_BD3_1 1 00000000" in listing
    text.write_text(listing)
    assert run(txn_group, "asm", text, "-o", back).exit_code == 0
    assert back.read_bytes() == binary.read_bytes()
    hexadecimal = run(txn_group, "asm", text).output
    assert hexadecimal.splitlines()[0] == "06040001"
    text.write_text(hexadecimal)
    assert run(txn_group, "dis", text).output == listing
    sentences = run(txn_group, "explain", binary).output.splitlines()
    assert sentences[0] == "   0  shim tile (0,0), BD 3: 64 words"
    assert sentences[2] == "   2  shim tile (0,0): MM2S channel 0 runs BD 3"
