# SPDX-License-Identifier: MIT
"""The doctor, shown a tree of each kind of machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from verify import trees
from verify.trees import MEMBER, STRANGER, Mode, plant

from npukit.verify.doctor import Diagnosis, Identity, Npu, Problem, diagnose

IN_RENDER = "sudo usermod -aG render alice; then log in again"


def only(diagnosis: Diagnosis) -> Npu:
    (npu,) = diagnosis.npus
    return npu


def finding(diagnosis: Diagnosis, name: str) -> tuple[str, Problem | None]:
    return next((f.value, f.problem) for f in diagnosis.findings if f.name == name)


def test_rk3588_with_the_vendor_kernel(tmp_path: Path) -> None:
    root = plant(tmp_path, trees.rk3588_vendor())
    diagnosis = diagnose(root, STRANGER)
    assert (diagnosis.model, diagnosis.kernel) == (
        "Radxa ROCK 5B",
        "Linux 6.1.115-vendor-rk35xx aarch64",
    )
    npu = only(diagnosis)
    assert (npu.title, npu.subject) == ("Rockchip RK3588 NPU, vendor driver", "rknpu")
    assert (npu.places, npu.nodes) == (("fdab0000.npu",), ("/dev/dri/card1", "/dev/dri/renderD129"))
    assert (npu.versions, npu.drivable) == ({"driver": "0.9.8"}, True)
    assert npu.problems == (
        Problem(
            "alice may not open /dev/dri/renderD129 (render, mode 0660): not in the group render",
            IN_RENDER,
        ),
    )
    assert diagnosis.blocked
    heaps, problem = finding(diagnosis, "dma-heap")
    assert heaps == "cma, system"
    assert problem is not None
    assert problem.what == (
        "alice may not open /dev/dma_heap/system (render, mode 0600), and no group may"
    )
    assert problem.fix.startswith(
        'echo \'SUBSYSTEM=="dma_heap", KERNEL=="system", GROUP="render", MODE="0660"\''
        " | sudo tee /etc/udev/rules.d/70-npukit.rules; "
    )
    assert diagnose(root, MEMBER).npus[0].problems == ()
    assert not diagnose(root, MEMBER).blocked


def test_rk3588_with_debians_kernel(tmp_path: Path) -> None:
    diagnosis = diagnose(plant(tmp_path, trees.rk3588_mainline()), MEMBER)
    npu = only(diagnosis)
    assert npu.places == ("fdab0000.npu", "fdac0000.npu", "fdad0000.npu")
    assert (npu.subject, npu.nodes) == ("rocket", ())
    assert npu.problems == (
        Problem(
            "this kernel was built without CONFIG_DRM_ACCEL_ROCKET",
            "use a kernel with CONFIG_DRM_ACCEL_ROCKET=m",
        ),
    )
    value, problem = finding(diagnosis, "dma-heap")
    assert value == "none"
    assert problem is not None
    assert problem.what == "this kernel was built without dma-heaps"
    assert problem.fix.endswith("until then npukit makes dma-bufs through /dev/udmabuf")
    assert finding(diagnosis, "udmabuf") == ("/dev/udmabuf", None)
    assert "DRM_ACCEL_ROCKET=n DRM_ACCEL=y" in finding(diagnosis, "configuration")[0]


@pytest.mark.parametrize(
    ("release", "config", "problem"),
    [
        (
            "6.12.30",
            "",
            Problem(
                "Linux 6.12.30 is older than its driver, which came with 6.18",
                "boot Linux 6.18 or newer",
            ),
        ),
        (
            "6.18.3",
            "DRM_ACCEL_ROCKET=m",
            Problem(
                "the module rocket is not installed",
                "install the package of Linux 6.18.3 that has it (on Ubuntu: "
                "linux-modules-extra-6.18.3)",
            ),
        ),
        (
            "6.18.3",
            "DRM_ACCEL_ROCKET=y",
            Problem(
                "the driver rocket is loaded but did not take it",
                "sudo dmesg | grep -i -e rocket -e fdab0000.npu",
            ),
        ),
    ],
)
def test_rk3588_without_its_driver(
    tmp_path: Path, release: str, config: str, problem: Problem
) -> None:
    root = plant(tmp_path, trees.rk3588_mainline(release, config))
    assert only(diagnose(root, STRANGER)).problems == (problem,)


def test_rk3588_with_a_module_that_is_not_loaded(tmp_path: Path) -> None:
    tree = trees.rk3588_mainline("6.18.3", "DRM_ACCEL_ROCKET=m")
    tree["lib/modules/6.18.3/kernel/drivers/accel/rocket/rocket.ko.zst"] = b""
    npu = only(diagnose(plant(tmp_path, tree), STRANGER))
    assert npu.problems == (Problem("the module rocket is not loaded", "sudo modprobe rocket"),)


def test_rk3588_with_rocket(tmp_path: Path) -> None:
    root = plant(tmp_path, trees.rk3588_rocket())
    npu = only(diagnose(root, MEMBER))
    assert (npu.nodes, npu.problems, npu.drivable) == (("/dev/accel/accel0",), (), True)
    assert only(diagnose(root, STRANGER)).problems[0].fix == IN_RENDER


def test_rk3588_whose_device_tree_hides_the_npu(tmp_path: Path) -> None:
    tree = {
        **trees.system("7.3.4", "aarch64", "render", "DRM_ACCEL_ROCKET=m"),
        **trees.board("Some Board", "some,board", "rockchip,rk3588s"),
    }
    npu = only(diagnose(plant(tmp_path, tree), MEMBER))
    assert npu.problems[0].what == "the device tree does not describe the NPU, or has it disabled"
    assert "rockchip,rk3588-rknn-core" in npu.problems[0].fix


def test_snapdragon_x_laptop(tmp_path: Path) -> None:
    root = plant(tmp_path, trees.snapdragon_x())
    adsp, cdsp = diagnose(root, STRANGER).npus
    assert (adsp.title, adsp.subject) == ("Qualcomm Hexagon DSP (adsp)", "fastrpc")
    assert adsp.nodes == ("/dev/fastrpc-adsp",)
    assert adsp.problems == (
        Problem(
            "alice may not open /dev/fastrpc-adsp (fastrpc, mode 0660): not in the group fastrpc",
            "sudo usermod -aG fastrpc alice; then log in again",
        ),
    )
    assert (cdsp.places, cdsp.nodes) == (("remoteproc1",), ())
    firmware = "qcom/x1e80100/LENOVO/21N1/qccdsp8380.mbn"
    assert cdsp.versions == {"firmware": firmware}
    assert cdsp.problems == (
        Problem(
            f"the DSP is offline: its firmware, /lib/firmware/{firmware}, is missing",
            "take it from the machine's vendor (linux-firmware has some), then: "
            "echo start | sudo tee /sys/class/remoteproc/remoteproc1/state",
        ),
    )
    adsp, cdsp = diagnose(root, MEMBER).npus
    assert (adsp.problems, adsp.drivable) == ((), True)


def test_a_dsp_that_runs_without_a_node(tmp_path: Path) -> None:
    tree = trees.snapdragon_x()
    tree["sys/class/remoteproc/remoteproc1/state"] = "running\n"
    cdsp = diagnose(plant(tmp_path / "described", tree), MEMBER).npus[1]
    assert "no qcom,fastrpc below its remote processor" in cdsp.problems[0].what
    del tree["sys/module/fastrpc/refcnt"], tree["dev/fastrpc-adsp"]
    tree["lib/modules/6.16.0-1-arm64/kernel/drivers/misc/fastrpc.ko.xz"] = b""
    adsp, cdsp = diagnose(plant(tmp_path / "loaded", tree), MEMBER).npus
    assert adsp.problems == cdsp.problems
    assert cdsp.problems[0].fix == "sudo modprobe fastrpc"


def test_ryzen_ai_laptop(tmp_path: Path) -> None:
    root = plant(tmp_path, trees.ryzen_ai())
    diagnosis = diagnose(root, STRANGER)
    assert diagnosis.model == "ASUSTeK COMPUTER INC. Zenbook S 16"
    npu = only(diagnosis)
    assert (npu.title, npu.places) == ("AMD XDNA 2 (Strix, Krackan)", ("0000:c5:00.1",))
    assert npu.versions == {"firmware": "1.5.2.380", "model": "RyzenAI-npu4"}
    assert [problem.what for problem in npu.problems] == [
        "alice may not open /dev/accel/accel0 (render, mode 0660): not in the group render",
        "only 8192 KiB may be locked in memory, its instruction heap is 65536 KiB",
    ]
    assert npu.problems[1].fix.startswith("echo '* - memlock unlimited' | sudo tee /etc/security/")
    assert finding(diagnosis, "IOMMU") == ("ivhd0", None)
    assert finding(diagnosis, "memlock") == ("8192 KiB", None)


def test_a_group_that_this_session_does_not_have_yet(tmp_path: Path) -> None:
    tree = trees.ryzen_ai()
    tree["etc/group"] = f"render:x:{os.getgid()}:alice\n"
    problem = only(diagnose(plant(tmp_path, tree), STRANGER)).problems[0]
    assert problem.what.endswith("alice is in the group render, but this session began before that")
    assert problem.fix == "log in again, or: newgrp render"


@pytest.mark.parametrize(
    ("options", "what", "fix"),
    [
        (
            {"command_line": "quiet amd_iommu=off"},
            "the driver needs an IOMMU and the device has none",
            "remove amd_iommu=off from the kernel command line, then reboot",
        ),
        (
            {},
            "the driver needs an IOMMU and the device has none",
            "enable the IOMMU (AMD-Vi) in the firmware set-up",
        ),
        (
            {"firmware": False, "iommu": True},
            "its firmware, /lib/firmware/amdnpu/17f0_10/npu*.sbin, is missing",
            "install the linux-firmware package of your distribution that has it, then: "
            "sudo modprobe -r amdxdna; sudo modprobe amdxdna",
        ),
        (
            {"iommu": True},
            "the driver amdxdna is loaded but did not take it",
            "sudo dmesg | grep -i -e amdxdna -e 0000:c5:00.1",
        ),
    ],
)
def test_ryzen_ai_that_the_driver_did_not_take(
    tmp_path: Path, options: dict[str, object], what: str, fix: str
) -> None:
    root = plant(tmp_path, trees.ryzen_ai_unbound(**options))  # type: ignore[arg-type]
    npu = only(diagnose(root, MEMBER))
    assert Problem(what, fix) == npu.problems[0]


def test_ryzen_ai_in_a_virtual_machine(tmp_path: Path) -> None:
    tree = trees.ryzen_ai_unbound(iommu=True)
    tree["proc/cpuinfo"] = "flags\t\t: fpu hypervisor lahf_lm\n"
    problem = only(diagnose(plant(tmp_path, tree), MEMBER)).problems[0]
    assert problem.what == "the driver refuses to run in a virtual machine"


def test_core_ultra_laptop(tmp_path: Path) -> None:
    diagnosis = diagnose(plant(tmp_path, trees.core_ultra()), MEMBER)
    npu = only(diagnosis)
    assert npu.title == "Intel NPU (Lunar Lake)"
    assert npu.versions == {"driver": "1.0.0 6.12.117-amd64"}
    assert [problem.what for problem in npu.problems] == [
        "alice may not open /dev/accel/accel0 (render, mode 0600), and no group may"
    ]
    assert npu.problems[0].fix == (
        'echo \'SUBSYSTEM=="accel", KERNEL=="accel*", GROUP="render", MODE="0660"\' | '
        "sudo tee /etc/udev/rules.d/70-npukit.rules; sudo udevadm control --reload; "
        f"sudo udevadm trigger; {IN_RENDER}"
    )
    assert "DRM_ACCEL_IVPU=m" in finding(diagnosis, "configuration")[0]


def test_a_machine_with_nothing(tmp_path: Path) -> None:
    diagnosis = diagnose(plant(tmp_path, trees.nothing()), STRANGER)
    assert diagnosis.npus == ()
    assert not diagnosis.blocked
    assert finding(diagnosis, "memlock") == ("unlimited", None)
    assert finding(diagnosis, "user") == ("alice (in users)", None)
    value, problem = finding(diagnosis, "udmabuf")
    assert (value, problem is not None) == ("none", True)


def test_an_empty_directory(tmp_path: Path) -> None:
    diagnosis = diagnose(tmp_path, STRANGER)
    assert (diagnosis.npus, diagnosis.kernel) == ((), "Linux ?")
    assert finding(diagnosis, "configuration")[0] == "not there"
    assert finding(diagnosis, "BTF")[0] == "none"


def test_root_may_open_everything(tmp_path: Path) -> None:
    root = plant(tmp_path, trees.core_ultra())
    assert only(diagnose(root, Identity("root", 0, frozenset()))).problems == ()


def test_the_process_asks_the_system_itself(tmp_path: Path) -> None:
    root = plant(tmp_path, {**trees.core_ultra(), "dev/accel/accel0": Mode(0o600)})
    # The file belongs to whoever runs the tests.
    assert only(diagnose(root)).problems == ()


def test_a_node_of_a_chip_that_is_not_in_the_table(tmp_path: Path) -> None:
    tree = {
        **trees.system("7.5.0", "x86_64", "render"),
        **trees.pci("0000:00:0b.0", 0x8086, 0xFFFE, "intel_vpu"),
        **trees.node("accel/accel7", "pci0000:00/0000:00:0b.0"),
    }
    npu = only(diagnose(plant(tmp_path, tree), MEMBER))
    assert (npu.subject, npu.nodes, npu.problems) == ("ivpu", ("/dev/accel/accel7",), ())


FILES = (
    "proc/config.gz",
    "proc/cmdline",
    "proc/self/limits",
    "etc/group",
    "proc/sys/kernel/osrelease",
    "sys/class/remoteproc/remoteproc0/firmware",
    "sys/devices/pci0000:00/0000:c5:00.1/vendor",
    "sys/devices/pci0000:00/0000:c5:00.1/accel/accel0/uevent",
)


@settings(max_examples=60)
@given(place=st.sampled_from(FILES), data=st.binary(max_size=60))
def test_any_bytes_in_any_file_are_survived(
    tmp_path_factory: pytest.TempPathFactory, place: str, data: bytes
) -> None:
    tree = {**trees.snapdragon_x(), **trees.ryzen_ai(), place: data}
    assert diagnose(plant(tmp_path_factory.mktemp("m"), tree), STRANGER).findings
