# SPDX-License-Identifier: MIT
"""The whole check, against kernels made of directories: running, offline, single modules."""

from __future__ import annotations

import ctypes
import gzip
import lzma
import struct
from pathlib import Path
from typing import Any

import pytest
from verify.btf_writer import BtfWriter
from verify.elf_writer import driver, elf

from npukit.abi import dma_heap, ethosu, rknpu, rocket
from npukit.ioctl import Ioctl
from npukit.verify import FormatError, Result, Verdict, check

RELEASE = "7.3.4-toy"


class Kernel:
    """A kernel's BTF: its base, and what is added of npukit's own classes."""

    def __init__(self, base: BtfWriter | None = None) -> None:
        self.btf = BtfWriter(base)
        self._known: dict[str, int] = {}

    def scalar(self, ctype: Any) -> int:
        size, code = ctypes.sizeof(ctype), ctype._type_
        name = "char" if code == "c" else ctype.__name__
        if name not in self._known:
            self._known[name] = self.btf.int(name, size, signed=code.islower())
        return self._known[name]

    def type(self, ctype: Any) -> int:
        if issubclass(ctype, ctypes.Array):
            element = self.type(ctype._type_)
            return self.btf.array(element, self.scalar(ctypes.c_uint32), ctype._length_)
        if issubclass(ctype, ctypes.Structure):
            return self.add(ctype)
        return self.scalar(ctype)

    def add(self, cls: Any, **shifts: int) -> int:
        """A structure; ``shifts`` moves fields by so many bytes."""
        members = [
            (name, self.type(ctype), 8 * (getattr(cls, name).offset + shifts.get(name, 0)))
            for name, ctype in cls._fields_
        ]
        return self.btf.struct(cls.__name__, ctypes.sizeof(cls), members)


def rocket_module(base: BtfWriter, *, moved: int = 0, number: int = 0) -> bytes:
    """rocket.ko, possibly with a field moved or a request number changed."""
    kernel = Kernel(base)
    for name in ("create_bo", "prep_bo", "fini_bo", "task", "submit"):
        kernel.add(getattr(rocket, f"drm_rocket_{name}"))
    kernel.add(rocket.drm_rocket_job, task_count=moved)
    requests = [value for value in vars(rocket).values() if isinstance(value, Ioctl)]
    table = [
        (int(request) + number, request.name.removeprefix("DRM_IOCTL_"), 0) for request in requests
    ]
    return driver(table, more={".BTF": kernel.btf.build()})


def system(root: Path, module: bytes | None = None, *, live: bool = False) -> BtfWriter:
    """A system whose kernel has dma-heaps built in and rocket as a module."""
    kernel = Kernel()
    kernel.add(dma_heap.dma_heap_allocation_data)
    config = "CONFIG_DMABUF_HEAPS=y\nCONFIG_DRM_ACCEL_ROCKET=m\n# CONFIG_UDMABUF is not set\n"
    files = {
        f"lib/modules/{RELEASE}/kernel/drivers/accel/rocket.ko.xz": lzma.compress(
            module or rocket_module(kernel.btf)
        ),
        f"lib/modules/{RELEASE}/vmlinuz": elf({".BTF": kernel.btf.build()}),
        f"boot/config-{RELEASE}": config.encode(),
    }
    if live:
        files["proc/sys/kernel/osrelease"] = f"{RELEASE}\n".encode()
        files["sys/kernel/btf/vmlinux"] = kernel.btf.build()
        files["proc/config.gz"] = gzip.compress(config.encode())
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return kernel.btf


def by_witness(results: list[Result], driver: str) -> dict[str, Result]:
    return {result.witness: result for result in results if result.driver == driver}


def test_an_offline_kernel_that_agrees(tmp_path: Path) -> None:
    system(tmp_path)
    results = check(["rocket", "dma_heap", "udmabuf"], kernel=tmp_path)
    said = by_witness(results, "rocket")
    assert {name: result.verdict for name, result in said.items()} == {
        "btf": Verdict.AGREED,
        "module": Verdict.AGREED,
        "snapshot": Verdict.AGREED,
    }
    # 6 structures with 4 + 3 + 2 + 2 + 7 + 4 fields; 4 requests.
    assert (said["btf"].facts, said["module"].facts) == (28, 4)
    assert by_witness(results, "dma_heap")["btf"].verdict is Verdict.AGREED
    missing = by_witness(results, "udmabuf")["btf"]
    assert missing.verdict is Verdict.UNCHECKED
    assert missing.reason == f"{tmp_path} was built without CONFIG_UDMABUF"


@pytest.mark.parametrize("place", [f"lib/modules/{RELEASE}", "."])
def test_a_kernel_may_be_given_by_its_own_directory(tmp_path: Path, place: str) -> None:
    system(tmp_path)
    results = by_witness(check(["rocket"], kernel=tmp_path / place), "rocket")
    assert results["btf"].verdict is Verdict.AGREED
    assert results["snapshot"].source == "headers of Linux 7.3"


def test_a_moved_field_and_a_changed_number_are_told(tmp_path: Path) -> None:
    base = system(tmp_path)
    system(tmp_path, rocket_module(base, moved=4, number=0x10000))
    said = by_witness(check(["rocket"], kernel=tmp_path), "rocket")
    assert said["btf"].verdict is Verdict.DIFFERS
    assert [str(d) for d in said["btf"].differences] == [
        "drm_rocket_job.task_count: offset is 28, npukit says 24"
    ]
    assert str(said["module"].differences[0]) == (
        "DRM_IOCTL_ROCKET_CREATE_BO: value is 0xc0196440, npukit says 0xc0186440"
    )
    assert len(said["module"].differences) == 4
    assert said["btf"].asdict()["differences"] == [
        {"subject": "drm_rocket_job.task_count", "what": "offset", "npukit": 24, "kernel": 28}
    ]


def test_the_running_kernel(tmp_path: Path) -> None:
    base = system(tmp_path, live=True)
    said = by_witness(check(["rocket"], root=tmp_path), "rocket")
    assert said["btf"].verdict is said["module"].verdict is Verdict.AGREED
    # A loaded module's types come from /sys and count before its file's.
    loaded = Kernel(base)
    loaded.add(rocket.drm_rocket_task, regcmd_count=4)
    (tmp_path / "sys/kernel/btf/rocket").write_bytes(loaded.btf.build())
    said = by_witness(check(["rocket"], root=tmp_path), "rocket")
    assert said["btf"].verdict is Verdict.DIFFERS
    assert "header" in said


def test_one_module_finds_its_kernel(tmp_path: Path) -> None:
    system(tmp_path)
    path = tmp_path / f"lib/modules/{RELEASE}/kernel/drivers/accel/rocket.ko.xz"
    said = by_witness(check(ko=path), "rocket")
    assert said["btf"].verdict is said["module"].verdict is Verdict.AGREED


def test_one_module_alone_needs_a_base(tmp_path: Path) -> None:
    base = system(tmp_path / "system")
    path = tmp_path / "rocket.ko"
    path.write_bytes(rocket_module(base))
    said = by_witness(check(ko=path, root=tmp_path / "nothing"), "rocket")
    assert said["btf"].verdict is Verdict.UNCHECKED
    assert "needs the kernel's" in said["btf"].reason
    assert said["module"].verdict is Verdict.AGREED
    image = tmp_path / f"system/lib/modules/{RELEASE}/vmlinuz"
    for kernel in (image, tmp_path / "system"):
        assert by_witness(check(ko=path, kernel=kernel), "rocket")["btf"].verdict is Verdict.AGREED
    # The running kernel's base does when the module was built for it.
    system(tmp_path / "system", live=True)
    said = by_witness(check(ko=path, root=tmp_path / "system"), "rocket")
    assert said["btf"].verdict is Verdict.AGREED


def test_a_vendor_driver_is_told_by_its_variant(tmp_path: Path) -> None:
    base = Kernel()
    kernel = Kernel(base.btf)
    old = rknpu.variant("0.8")
    for name, value in old.names.items():
        if name.startswith("rknpu_"):
            layout = kernel.add(value)
            assert layout
    path = tmp_path / "rknpu.ko"
    sections = {".BTF": kernel.btf.build(), ".BTF.base": base.btf.build()}
    path.write_bytes(driver([], more=sections))
    said = by_witness(check(ko=path), "rknpu")["btf"]
    assert said.verdict is Verdict.AGREED
    assert said.notes == ("this is the variant '0.8'",)


def test_a_kernel_older_than_the_interface(tmp_path: Path) -> None:
    kernel = Kernel()
    kernel.add(ethosu.drm_ethosu_bo_wait)
    path = tmp_path / "lib/modules/6.12.1/vmlinux"
    path.parent.mkdir(parents=True)
    path.write_bytes(elf({".BTF": kernel.btf.build()}))
    said = by_witness(check(["ethosu"], kernel=tmp_path), "ethosu")
    assert said["btf"].reason == "Linux 6.12 has no ethosu interface"


def test_corrupt_files_are_a_reason_and_no_crash(tmp_path: Path) -> None:
    system(tmp_path, module=b"\x7fELF\x02\x01" + bytes(80))
    said = by_witness(check(["rocket"], kernel=tmp_path), "rocket")
    assert said["btf"].verdict is said["module"].verdict is Verdict.UNCHECKED
    assert "corrupt ELF" in said["btf"].reason
    (tmp_path / f"lib/modules/{RELEASE}/vmlinuz").write_bytes(
        struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, 0, 4000, 0, 0)
    )
    said = by_witness(check(["dma_heap"], kernel=tmp_path), "dma_heap")
    assert "corrupt BTF" in said["btf"].reason


def test_sources_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="no such file"):
        check(kernel=tmp_path / "nowhere")
    with pytest.raises(FormatError, match="neither a kernel image nor modules"):
        check(kernel=tmp_path)
    for release in ("6.1.0-1", "6.12.0-2"):
        (tmp_path / "lib/modules" / release).mkdir(parents=True)
    with pytest.raises(FormatError, match=r"several kernels \(6.1.0-1, 6.12.0-2\)"):
        check(kernel=tmp_path)
    with pytest.raises(ValueError, match="no interface 'toaster'"):
        check(["toaster"])
    path = tmp_path / "toaster.ko"
    path.write_bytes(driver([]))
    with pytest.raises(FormatError, match="not the module of a driver that npukit knows"):
        check(ko=path)


def test_a_machine_with_nothing_gives_reasons_only(tmp_path: Path) -> None:
    results = [result for result in check(root=tmp_path) if result.witness in ("btf", "module")]
    assert results
    assert all(result.verdict is Verdict.UNCHECKED and result.reason for result in results)
