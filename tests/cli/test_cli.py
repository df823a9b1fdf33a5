# SPDX-License-Identifier: MIT
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from support import no_leak

from npukit.cli import COMMANDS, main
from npukit.programs.rk3588.matmul import matmul_program
from npukit.requests import all_requests, requests_of
from npukit.sim import DEVICES, NPUS, SimKernel, serve


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == code, result.output
    return result.output


def test_every_command_has_help() -> None:
    assert "smoke" in run("--help")
    for name in COMMANDS:
        assert run(name, "--help").startswith("Usage")


def test_an_unknown_command_is_refused() -> None:
    assert "No such command" in run("toast", code=2)


@pytest.mark.parametrize("device", ["sim:amdxdna", "sim:fastrpc-cdsp", "sim:rknpu-misc"])
def test_smoke_of_the_other_families(device: str) -> None:
    with no_leak():
        report = json.loads(run("smoke", "--device", device, "--json"))
    assert report["passed"] is True
    assert len(report["steps"]) >= 5


@pytest.mark.parametrize("device", NPUS)
def test_a_traced_smoke_run_replays_with_no_difference(device: str, tmp_path: Path) -> None:
    trace = tmp_path / "smoke.jsonl"
    run("smoke", "--device", f"sim:{device}", "--trace", str(trace))
    assert run("trace", "replay", str(trace)).endswith(" calls, 0 differences\n")
    assert ", 0 waited for" not in run("trace", "show", str(trace))


@pytest.mark.parametrize("device", ["sim:rknpu", "sim:rocket"])
def test_smoke(device: str) -> None:
    with no_leak():
        report = json.loads(run("smoke", "--device", device, "--json"))
    assert report["passed"] is True
    assert report["device"] == f"using {device}"
    assert [step["name"] for step in report["steps"]] == [
        "open and identify",
        "allocate, map, write, sync, read back",
        "int8 matmul",
        "fp16 matmul",
        "classify handwritten digits",
    ]
    assert all(step["passed"] and step["seconds"] >= 0 for step in report["steps"])
    assert "1797 of 1797 equal" in report["steps"][-1]["detail"]


def test_smoke_as_a_table_says_when_it_simulates() -> None:
    text = run("smoke")
    assert "simulated" in text or "using /dev" in text
    assert text.count("ok") >= 5


def test_smoke_fails_loudly() -> None:
    assert "No such file" in run("smoke", "--device", "/dev/accel/accel99", code=1)


def test_python_m_npukit() -> None:
    command = [sys.executable, "-m", "npukit", "decode", "0xC0186440"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "rocket: DRM_IOCTL_ROCKET_CREATE_BO" in result.stdout


def test_decode_names_each_driver_that_a_number_may_belong_to() -> None:
    rows = json.loads(run("decode", "--json", "0xC0106440", "21531", "3222824000"))
    assert [row["number"] for row in rows] == [0xC0106440, 21531, 0xC0186440]
    assert {r["driver"] for r in rows[2]["requests"]} >= {"rocket"}
    assert rows[1]["requests"] == []
    assert "no driver that npukit knows" in run("decode", "21531")
    assert "not a 32-bit request number" in run("decode", "0x1FFFFFFFF", code=2)
    assert "not a 32-bit request number" in run("decode", "cow", code=2)


def test_decode_falls_back_to_type_and_number() -> None:
    matches = requests_of(0xC0386442)
    assert matches
    assert not any(match.exact for match in matches)
    assert "rknpu" in {match.module for match in matches}
    assert "48 bytes there" in run("decode", "0xC0386442")


def test_no_request_is_claimed_twice_by_one_module() -> None:
    seen = [(module, request.name, int(request)) for module, request in all_requests()]
    assert len(seen) == len(set(seen))


def test_regcmd_listing_goes_both_ways(tmp_path: Path) -> None:
    words = matmul_program(4, 32, 32, np.int8, np.int32, 0, 0x1000, 0x2000).words
    binary, listing = tmp_path / "job.bin", tmp_path / "job.txt"
    binary.write_bytes(words.astype("<u8").tobytes())
    text = run("regcmd", "dis", str(binary))
    assert "enable CNA CORE DPU" in text
    listing.write_text(text)
    printed = run("regcmd", "asm", str(listing))
    assert [int(line, 16) for line in printed.split()] == words.tolist()
    again = tmp_path / "again.bin"
    run("regcmd", "asm", str(listing), "-o", str(again))
    assert again.read_bytes() == binary.read_bytes()
    hexadecimal = tmp_path / "job.hex"
    hexadecimal.write_text(printed)
    assert run("regcmd", "dis", str(hexadecimal)) == text


def test_smoke_names_the_simulated_devices() -> None:
    assert "no simulated device" in run("smoke", "--device", "sim:toaster", code=2)


def test_regcmd_says_what_is_wrong(tmp_path: Path) -> None:
    listing = tmp_path / "bad.txt"
    listing.write_text("nop\nCNA.DATA_SIZE0 DATAIN_WIDTH=9999\n")
    assert "line 2" in run("regcmd", "asm", str(listing), code=1)


def test_devices(tmp_path: Path) -> None:
    assert "no NPU found" in run("devices", "--root", str(tmp_path))
    assert json.loads(run("devices", "--json", "--root", str(tmp_path))) == []
    driver = tmp_path / "sys/bus/pci/drivers/habanalabs"
    driver.mkdir(parents=True)
    node = tmp_path / "sys/class/accel/accel0/device"
    node.mkdir(parents=True)
    (node / "driver").symlink_to(driver)
    (tmp_path / "dev/accel").mkdir(parents=True)
    (tmp_path / "dev/accel/accel0").write_text("")
    (row,) = json.loads(run("devices", "--json", "--root", str(tmp_path)))
    assert (row["driver"], row["drivable"]) == ("habanalabs", False)
    assert "cannot drive it yet" in run("devices", "--root", str(tmp_path))


def test_explain_takes_a_listing(tmp_path: Path) -> None:
    words = matmul_program(4, 32, 32, np.int8, np.int32, 0, 0x1000, 0x2000).words
    binary, listing = tmp_path / "job.bin", tmp_path / "job.txt"
    binary.write_bytes(words.astype("<u8").tobytes())
    listing.write_text(run("regcmd", "dis", str(binary)))
    assert run("regcmd", "explain", str(listing)) == run("regcmd", "explain", str(binary))
    listing.write_text("nop\nnothing of the sort\n")
    text = run("regcmd", "explain", str(listing), code=1)
    assert "not hexadecimal words" in text
    assert "nor a listing: line 2" in text


def test_explain_says_that_nothing_starts() -> None:
    assert "no enable word in 3 words" in run("regcmd", "explain", "1", "2", "3", code=1)


def test_a_machine_that_is_served_says_what_it_has(tmp_path: Path) -> None:
    path = tmp_path / "npu"
    text = run("smoke", "--device", f"sim:rknpu@{path}", code=1)
    assert f"{path}: No such file or directory (ENOENT): npukit sim serve --socket {path}" in text
    with serve(SimKernel(["amdxdna", "dma_heap"]), path):
        text = run("smoke", "--device", f"sim:rknpu@{path}", code=1)
    assert "no simulated device 'rknpu' is served; there are amdxdna, dma_heap (ENODEV)" in text


@pytest.mark.parametrize("command", [["smoke", "--help"], ["devices", "--root", "/nowhere"]])
def test_all_simulated_npus_are_named(command: list[str]) -> None:
    text = "".join(run(*command).split())
    assert [name for name in NPUS if name not in text] == []
    assert "wrapfd" not in text


def test_sim_run_names_its_devices_and_what_it_lacks() -> None:
    text = "".join(run("sim", "run", "--help").split())
    assert [name for name in DEVICES if name not in text] == []
    assert "[OPTIONS] -- COMMAND..." in run("sim", "run", code=2)
    text = run("sim", "run", "--trace", "./c", code=2)
    assert "'./c' was taken for the FILE of --trace" in text


@pytest.mark.parametrize(
    "command", [["sim", "run", "--trace=/nope/x", "--", "true"], ["trace", "-o", "/nope/x", "true"]]
)
def test_a_trace_that_cannot_be_written_is_one_line(command: list[str]) -> None:
    assert run(*command, code=1) == "npukit: /nope/x: No such file or directory\n"
