# SPDX-License-Identifier: MIT
"""The simulated rknpu 0.9.8 against the rules of the vendor's driver."""

import asyncio
import ctypes
import errno
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from raw import CODE, JOB_BYTES, PRODUCT, Raw, job_image, job_result
from sim.rk3588_streams import Conv
from support import no_leak, wait_until

from npukit.abi import rknpu as abi
from npukit.abi import sync_file
from npukit.devices import RknpuBuffer, RknpuDevice
from npukit.ioctl import Ioctl, NpuError, ProgramError, WaitTimeout
from npukit.programs.rk3588.explain import explain_timeout
from npukit.programs.rk3588.matmul import matmul_program
from npukit.programs.rk3588.program import Program, rknpu_tasks
from npukit.programs.rk3588.registers import CNA
from npukit.sim import KernelOops, SimKernel

CARD, RENDER, MISC = "/dev/dri/card1", "/dev/dri/renderD129", "/dev/rknpu"
PAGE = os.sysconf("SC_PAGESIZE")
NON_CONTIGUOUS, EXACT = abi.RKNPU_MEM_NON_CONTIGUOUS, abi.RKNPU_MEM_IOMMU_LIMIT_IOVA_ALIGNMENT
CACHEABLE, KERNEL = abi.RKNPU_MEM_CACHEABLE, abi.RKNPU_MEM_KERNEL_MAPPING


class Node(Raw):
    """An open rknpu node of either kind."""

    def request(self, name: str) -> Ioctl:
        prefix = "IOCTL_RKNPU_" if self.misc else "DRM_IOCTL_RKNPU_"
        return getattr(abi, prefix + name)  # type: ignore[no-any-return]

    def __init__(self, kernel: SimKernel, path: str) -> None:
        super().__init__(kernel, path)
        self.misc = path == MISC

    def create(self, size: int, flags: int = 0, **more: Any) -> Any:
        if not self.misc:
            flags |= NON_CONTIGUOUS | EXACT
        return self.ok(self.request("MEM_CREATE"), size=size, flags=flags, **more)

    def map(self, bo: Any, size: int) -> Any:
        if self.misc:
            return self.kernel.mmap(bo.handle, size)
        return self.kernel.mmap(
            self.fd, size, self.ok(self.request("MEM_MAP"), handle=bo.handle).offset
        )

    def action(self, number: int, value: int = 0) -> tuple[int, int]:
        code, answer = self.ask(self.request("ACTION"), flags=number, value=value)
        return code, answer.value


@pytest.fixture(params=[CARD, RENDER, MISC])
def node(request: pytest.FixtureRequest) -> Iterator[Node]:
    with no_leak(), Node(SimKernel(["rknpu", "rknpu-misc"]), request.param) as node:
        yield node
        if node.misc:
            close_memory(node)


@pytest.fixture
def card() -> Iterator[Node]:
    with no_leak(), Node(SimKernel(["rknpu"]), CARD) as node:
        yield node


def close_memory(node: Node) -> None:
    """The misc device's handles are descriptors, which the caller closes."""
    from npukit.sim.dma_buf import DmaBufSim

    for fd, file in list(node.kernel.current.files.items()):
        if isinstance(file, DmaBufSim):
            node.kernel.close(fd)


class Work:
    """A buffer with a job in it and a task table in another."""

    def __init__(self, node: Node, flags: int = KERNEL | CACHEABLE, domain: int = 0) -> None:
        self.node = node
        where = {} if node.misc else {"iommu_domain_id": domain}
        self.bo = node.create(JOB_BYTES, CACHEABLE, **where)
        self.mapping = node.map(self.bo, JOB_BYTES)
        image, program = job_image(self.bo.dma_addr)
        memoryview(self.mapping)[:] = memoryview(image)
        self.table = node.create(PAGE, flags, **where)
        self.table_mapping = node.map(self.table, PAGE)
        self.put(rknpu_tasks(program, self.bo.dma_addr + CODE))
        self.domain = domain

    def put(self, tasks: Any) -> None:
        memoryview(self.table_mapping)[: ctypes.sizeof(tasks)] = memoryview(bytes(tasks))

    def task(self) -> abi.rknpu_task:
        return abi.rknpu_task.from_buffer_copy(self.table_mapping)

    def hang(self) -> None:
        """Take the enable word away, so that no interrupt ever comes."""
        memoryview(self.mapping)[CODE + 8 * 107 : CODE + 8 * 108] = bytes(8)

    def arguments(self, **changes: Any) -> abi.rknpu_submit:
        fields: dict[str, Any] = {
            "flags": abi.RKNPU_JOB_PC | abi.RKNPU_JOB_PINGPONG,
            "timeout": 2000,
            "task_number": 1,
            "task_obj_addr": self.table.obj_addr,
            "iommu_domain_id": self.domain,
            "fence_fd": -1,
        }
        windows = changes.pop("windows", [(0, 1)] * 5)
        submit = abi.rknpu_submit(**{**fields, **changes})
        for entry, window in zip(submit.subcore_task, windows, strict=False):
            entry.task_start, entry.task_number = window
        return submit

    def submit(self, **changes: Any) -> tuple[int, abi.rknpu_submit]:
        return self.node.ask(self.node.request("SUBMIT"), self.arguments(**changes))

    def ran(self) -> bool:
        found = np.array_equal(job_result(memoryview(self.mapping)), PRODUCT)
        if found:
            memoryview(self.mapping)[0x2000:0x3000] = bytes(0x1000)
        return found

    def close(self) -> None:
        for mapping in (self.mapping, self.table_mapping):
            self.node.kernel.munmap(mapping)


def test_actions(node: Node) -> None:
    assert node.action(abi.RKNPU_GET_HW_VERSION) == (0, 0x46495245)
    assert node.action(abi.RKNPU_GET_DRV_VERSION) == (0, 908)
    # The misc build cannot give out what needs an IOMMU: librknnrt has to hear that there is none.
    assert node.action(abi.RKNPU_GET_IOMMU_EN) == (0, int(not node.misc))
    assert node.action(abi.RKNPU_GET_TOTAL_SRAM_SIZE) == (0, 0)
    assert node.action(abi.RKNPU_GET_IOMMU_DOMAIN_ID) == (0, 0)
    assert node.action(abi.RKNPU_SET_PROC_NICE, -19 & 0xFFFFFFFF)[0] == 0
    # The amount counters are not there: success, and what was sent comes back.
    for number in range(abi.RKNPU_ACT_CLR_TOTAL_RW_AMOUNT, abi.RKNPU_GET_IOMMU_EN):
        assert node.action(number, 77) == (0, 77)
    refused = [abi.RKNPU_SET_FREQ, abi.RKNPU_SET_VOLT, *range(7, 13), 20, 21, 26, 0x100]
    for number in refused:
        assert node.action(number, 77) == (errno.EINVAL, 77)
    other = errno.EINVAL if node.misc else 0
    for domain, code in ((15, other), (16, errno.EINVAL), (0xFFFFFFFF, errno.EINVAL), (0, 0)):
        assert node.action(abi.RKNPU_SET_IOMMU_DOMAIN_ID, domain)[0] == code


def test_mem_create(card: Node) -> None:
    create = card.request("MEM_CREATE")
    assert card.ask(create, size=0)[0] == errno.EINVAL
    one = card.create(100)
    assert (one.handle, one.size, one.dma_addr) == (1, PAGE, (1 << 32) - PAGE)
    assert one.obj_addr >> 63
    two = card.create(PAGE)
    assert two.dma_addr == one.dma_addr - PAGE
    # A handle that exists is looked up, whatever else is asked; one that does not is no error.
    again = card.ok(create, handle=one.handle, size=0, flags=0xFFFFFFFF)
    assert (again.handle, again.size, again.dma_addr) == (1, PAGE, one.dma_addr)
    third = card.ok(create, handle=77, size=PAGE, flags=NON_CONTIGUOUS | EXACT)
    assert third.handle == 3
    with Node(card.kernel, RENDER) as other:
        # Handles are per file, addresses per domain.
        theirs = other.create(PAGE)
        assert (theirs.handle, theirs.dma_addr) == (1, third.dma_addr - PAGE)


def test_a_full_domain_is_efault_or_einval_and_another_domain_is_empty(card: Node) -> None:
    create = card.request("MEM_CREATE")
    for _ in range(3):
        card.create(1 << 30)
    scattered, contiguous = NON_CONTIGUOUS | EXACT, EXACT
    assert card.ask(create, size=1 << 30, flags=scattered)[0] == errno.EFAULT
    assert card.ask(create, size=1 << 30, flags=contiguous)[0] == errno.EINVAL
    assert card.create(1 << 30, iommu_domain_id=15).dma_addr == 3 << 30
    assert card.ask(create, size=PAGE, flags=scattered, iommu_domain_id=16)[0] == errno.EINVAL
    assert card.ask(create, size=PAGE, flags=scattered, iommu_domain_id=-1)[0] == errno.EINVAL


def test_mem_map_destroy_and_sync(card: Node) -> None:
    assert card.ask(card.request("MEM_MAP"), handle=5)[0] == errno.ENOENT
    assert card.ask(card.request("MEM_DESTROY"), handle=5)[0] == errno.EINVAL
    plain, cached = card.create(PAGE), card.create(PAGE, CACHEABLE)
    # The offset is made by the first MEM_MAP, not by MEM_CREATE.
    assert card.ok(card.request("MEM_MAP"), handle=cached.handle).offset == 1 << 32
    assert card.ok(card.request("MEM_MAP"), handle=plain.handle).offset == (1 << 32) + PAGE
    assert card.ok(card.request("MEM_MAP"), handle=cached.handle).offset == 1 << 32
    sync = card.request("MEM_SYNC")
    assert card.ask(sync, flags=1)[0] == errno.EINVAL
    assert card.ask(sync, flags=1, obj_addr=plain.obj_addr, size=PAGE)[0] == errno.EINVAL
    for fields in ({}, {"flags": 3, "size": PAGE}, {"flags": 0xFF, "offset": 1 << 40}):
        assert card.ask(sync, obj_addr=cached.obj_addr, **fields)[0] == 0
    with pytest.raises(KernelOops, match="dereferences 0x1234"):
        card.ask(sync, flags=1, obj_addr=0x1234)
    card.ok(card.request("MEM_DESTROY"), handle=cached.handle, obj_addr=12345)
    with pytest.raises(KernelOops):
        card.ask(sync, flags=1, obj_addr=cached.obj_addr)


def test_a_blocking_job(node: Node) -> None:
    work = Work(node)
    code, answer = work.submit()
    assert code == 0
    assert work.ran()
    assert (answer.task_counter, answer.core_mask) == (1, 1)
    assert answer.hw_elapse_time > 0
    assert work.task().int_status in (0x100, 0x200)
    work.close()


@pytest.mark.parametrize("mask", [1, 2, 4, 3, 7])
def test_windows_stand_where_the_driver_looks(card: Node, mask: int) -> None:
    cores = mask.bit_count()
    used = range(2, 5) if cores == 3 else [core for core in range(3) if mask >> core & 1]
    work = Work(card)
    windows = [(0, 1) if entry in used else (99, 5000) for entry in range(5)]
    code, answer = work.submit(core_mask=mask, windows=windows)
    assert (code, answer.task_counter) == (0, 1)
    assert work.ran()
    work.close()


def test_the_driver_chooses_the_core_with_the_fewest_tasks(card: Node) -> None:
    hung = Work(card)
    hung.hang()
    nonblock = abi.RKNPU_JOB_PC | abi.RKNPU_JOB_NONBLOCK
    assert hung.submit(flags=nonblock)[0] == 0
    work = Work(card)
    for _ in range(2):
        code, answer = work.submit()
        assert (code, answer.core_mask) == (0, 2)
        assert work.ran()
    # Naming the stuck core in a nonblocking submission gives its job up, once that is older than
    # its timeout taken for microseconds.
    time.sleep(0.005)
    assert work.submit(flags=nonblock, core_mask=1)[0] == 0
    wait_until(work.ran)
    work.close()
    hung.close()


def test_submit_checks(node: Node) -> None:
    work = Work(node)
    assert work.submit(task_number=0)[0] == errno.EINVAL
    assert work.submit(core_mask=8)[0] == errno.EINVAL
    for flags in (abi.RKNPU_JOB_FENCE_IN | abi.RKNPU_JOB_PC,):
        code, answer = work.submit(flags=flags, fence_fd=node.fd)
        assert (code, answer.fence_fd) == (errno.EINVAL, -1)
    start = time.monotonic()
    assert work.submit(flags=0)[0] == errno.EINVAL  # no PC flag: known only when it starts
    assert time.monotonic() - start >= 0.1
    assert work.submit(task_obj_addr=0, timeout=50)[0] == errno.EINVAL
    assert work.submit()[0] == 0
    assert work.ran()
    work.close()


@pytest.mark.parametrize("mask", [5, 6])
def test_two_masks_are_taken_and_never_started(card: Node, mask: int) -> None:
    work = Work(card)
    code, answer = work.submit(core_mask=mask, timeout=20)
    assert (code, answer.task_counter) == (errno.EINVAL, 0)
    assert any("unknown core mask" in line for line in card.kernel.log)
    assert not work.ran()
    assert work.submit()[0] == 0
    assert work.ran()
    work.close()


def test_what_would_crash_the_kernel_is_an_oops(card: Node) -> None:
    work = Work(card, flags=CACHEABLE)
    with pytest.raises(KernelOops, match="no kernel mapping"):
        work.submit()
    work.close()
    work = Work(card)
    with pytest.raises(KernelOops, match="dereferences"):
        work.submit(task_obj_addr=0x10)
    with pytest.raises(KernelOops, match="past the end"):
        work.submit(windows=[(5000, 1)] * 5)
    work.close()


def test_a_silent_npu_times_out_and_is_reset(node: Node) -> None:
    work = Work(node)
    work.hang()
    start = time.monotonic()
    code, answer = work.submit(timeout=60)
    assert 0.25 < time.monotonic() - start < 5
    assert (code, answer.task_counter) == (errno.ETIMEDOUT, 0)
    assert [line.split(":")[1].strip() for line in node.kernel.log][1:] == [
        "job timeout, mask",
        "soft reset",
    ]
    image, _ = job_image(work.bo.dma_addr)
    memoryview(work.mapping)[:] = memoryview(image)
    assert work.submit()[0] == 0
    assert work.ran()
    work.close()


def test_a_reset_fails_the_running_jobs_of_others(card: Node) -> None:
    work = Work(card)
    work.hang()
    codes: list[int] = []
    waiter = threading.Thread(target=lambda: codes.append(work.submit(timeout=10000)[0]))
    waiter.start()
    time.sleep(0.05)
    with Node(card.kernel, RENDER) as other:
        assert other.action(abi.RKNPU_ACT_RESET)[0] == 0
    waiter.join(5)
    assert codes == [errno.EINVAL]
    work.close()


def test_a_job_behind_a_stuck_one_never_starts(card: Node) -> None:
    stuck, work = Work(card), Work(card)
    stuck.hang()
    assert stuck.submit(flags=abi.RKNPU_JOB_PC | abi.RKNPU_JOB_NONBLOCK, core_mask=1)[0] == 0
    start = time.monotonic()
    code, answer = work.submit(core_mask=1, timeout=50)
    assert (code, answer.task_counter) == (errno.EINVAL, 0)
    assert time.monotonic() - start >= 0.15  # three rounds of patience
    # A later nonblocking submission that names the core clears it (here after 150 ms at least).
    image, _ = job_image(work.bo.dma_addr)
    memoryview(work.mapping)[:] = memoryview(image)
    flags = abi.RKNPU_JOB_PC | abi.RKNPU_JOB_NONBLOCK
    assert work.submit(flags=flags, core_mask=1)[0] == 0
    wait_until(work.ran)
    stuck.close()
    work.close()


MIDDLE, RESULT, STREAMS, SHARED = 1 << 20, 2 << 20, 3 << 20, 4 << 20
"""Where the memory of two cores' job holds what the first layer writes, what the second does, and
the command streams; and its size."""


def two_cores(card: Node, waits: int = 1) -> tuple[Any, Any, abi.rknpu_submit]:
    """Two layers of two tasks each, linked as Rockchip's compiler links them: of the first layer
    core 0 has by far the longer task, of the second core 1 reads the end of what that writes."""
    bo = card.create(SHARED)
    mapping = card.map(bo, SHARED)
    memory = np.frombuffer(mapping, np.uint8)
    memory[:MIDDLE] = np.random.default_rng(0).integers(0, 256, MIDDLE, np.uint8)
    base = bo.dma_addr
    inputs = {"features": base, "weights": base + (3 << 18)}
    long = Conv(height=64, width=64, channels=128, kernels=64, kernel=(5, 5), out=(60, 60),
                output=base + MIDDLE, **inputs)  # fmt: skip
    short = [Conv(output=base + RESULT - 0x2000 * i, **inputs) for i in (1, 2)]
    reads = Conv(
        features=base + MIDDLE + long.spans()["output"][1] - 0x200,
        weights=inputs["weights"],
        output=base + RESULT,
    )
    tasks = (abi.rknpu_task * 4)()
    for i, conv in enumerate((long, short[0], short[1], reads)):
        place = STREAMS + 0x1000 * i
        words = conv.words() if i % 2 else conv.words(base + place + 0x1000, len(conv.words()))
        words[-3] |= (0 if i % 2 else waits) << 32
        image = np.array(words, np.uint64).view(np.uint8)
        memory[place : place + len(image)] = image
        tasks[i] = abi.rknpu_task(
            int_mask=0x300, regcfg_amount=len(words) - 4, regcmd_addr=base + place
        )
    table = card.create(PAGE, KERNEL)
    table_mapping = card.map(table, PAGE)
    memoryview(table_mapping)[: ctypes.sizeof(tasks)] = memoryview(bytes(tasks))
    card.kernel.munmap(table_mapping)
    submit = abi.rknpu_submit(
        flags=abi.RKNPU_JOB_PC | abi.RKNPU_JOB_PINGPONG, timeout=2000, task_number=4,
        task_obj_addr=table.obj_addr, fence_fd=-1,
    )  # fmt: skip
    return mapping, memory, submit


def test_cores_of_a_job_wait_for_each_other_where_its_streams_say_so(card: Node) -> None:
    mapping, memory, submit = two_cores(card)
    results = []
    # One core after the other, which waits for nobody; then both at once, some times.
    for windows in ([(0, 2)], [(2, 2)], *[[(0, 2), (2, 2)]] * 3):
        submit.core_mask = (1 << len(windows)) - 1
        for entry, window in zip(submit.subcore_task, windows, strict=False):
            entry.task_start, entry.task_number = window
        memory[RESULT : RESULT + 0x2000] = 0
        if len(windows) == 2:
            memory[MIDDLE:RESULT] = 0
        assert card.ask(card.request("SUBMIT"), submit)[0] == 0
        results.append(memory[RESULT : RESULT + 0x2000].copy())
    assert results[1].any()
    for result in results[2:]:
        np.testing.assert_array_equal(result, results[1])
    del memory
    card.kernel.munmap(mapping)


def test_a_core_that_waits_for_one_that_failed_is_given_up_with_it(card: Node) -> None:
    mapping, memory, submit = two_cores(card)
    for entry, window in zip(submit.subcore_task, [(0, 2), (2, 2)], strict=False):
        entry.task_start, entry.task_number = window
    submit.core_mask, submit.timeout = 3, 300
    memory[STREAMS + 0x2000 : STREAMS + 0x2008] = 0xFF
    threads = threading.active_count()
    assert card.ask(card.request("SUBMIT"), submit)[0] == errno.ETIMEDOUT
    assert "core 1: " in " ".join(card.kernel.log)
    wait_until(lambda: threading.active_count() <= threads)
    del memory
    card.kernel.munmap(mapping)


def test_domains_are_apart_and_a_running_job_holds_its_own(card: Node) -> None:
    one, two = Work(card, domain=1), Work(card, domain=2)
    assert one.bo.dma_addr == two.bo.dma_addr
    assert one.submit()[0] == 0
    assert two.submit()[0] == 0
    assert one.ran()
    assert two.ran()
    # The wrong domain: what is at those addresses there is nothing.
    code, _ = one.submit(iommu_domain_id=3, timeout=20)
    assert code == errno.ETIMEDOUT
    assert "access" in " ".join(card.kernel.log)
    one.close()
    two.close()


def test_fences(card: Node) -> None:
    work = Work(card)
    flags = abi.RKNPU_JOB_PC | abi.RKNPU_JOB_NONBLOCK | abi.RKNPU_JOB_FENCE_OUT
    code, answer = work.submit(flags=flags)
    assert code == 0
    assert answer.fence_fd >= 0
    assert answer.task_counter == 0  # a nonblocking job works on a copy
    assert card.kernel.poll([(answer.fence_fd, 1)], 5) == [(answer.fence_fd, 1)]
    assert work.ran()
    info = sync_file.SYNC_IOC_FILE_INFO(card.kernel, answer.fence_fd)
    assert (info.status, info.num_fences) == (1, 1)
    card.kernel.close(answer.fence_fd)
    work.close()


def test_strict_mode_raises_what_the_npu_refused() -> None:
    with no_leak(), Node(SimKernel(["rknpu"], strict=True), CARD) as node:
        work = Work(node)
        work.hang()
        start = time.monotonic()
        with pytest.raises(ProgramError, match="core 0: "):
            work.submit(timeout=5000)
        assert time.monotonic() - start < 1
        work.close()


BANKS = {
    "too many": (0x9B, "WEIGHT_BANK = 9: exceeds 12 banks together with DATA_BANK"),
    "none for data": (0xB0, "DATA_BANK = 0: has to be at least 1"),
    "weights that nobody brought": (0x20B1, "WEIGHT_REUSE = 1: the CBUF holds no weights"),
    "features that nobody brought": (0x10B1, "DATA_REUSE = 1: the CBUF holds no features"),
}


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", BANKS)
def test_data_that_cannot_be_in_the_banks_it_says(name: str, strict: bool) -> None:
    """Strict mode says why; as on hardware the job hangs, and the log has the reason."""
    value, reason = BANKS[name]
    with no_leak(), Node(SimKernel(["rknpu"], strict=strict), CARD) as node:
        work = Work(node)
        words = np.frombuffer(work.mapping, np.uint64, 108, CODE)
        index = int(np.flatnonzero(words & 0xFFFF == CNA.CBUF_CON0.offset)[0])
        del words
        word = CNA.target << 48 | value << 16 | CNA.CBUF_CON0.offset
        start = CODE + 8 * index
        memoryview(work.mapping)[start : start + 8] = word.to_bytes(8, "little")
        if strict:
            with pytest.raises(ProgramError, match=reason):
                work.submit()
        else:
            assert work.submit(timeout=20)[0] == errno.ETIMEDOUT
            assert reason in " ".join(node.kernel.log)
        assert not work.ran()
        work.close()


def test_closing_while_an_async_job_runs(card: Node) -> None:
    """The job goes on: it holds its task table, and nobody cancels it."""
    work = Work(card)
    with Node(card.kernel, RENDER) as other:
        arguments = work.arguments(flags=abi.RKNPU_JOB_PC | abi.RKNPU_JOB_NONBLOCK)
        assert other.ask(other.request("SUBMIT"), arguments)[0] == 0
    card.ok(card.request("MEM_DESTROY"), handle=work.table.handle)
    wait_until(work.ran)
    work.close()
    wait_until(lambda: all(core.current is None for core in card.kernel.devices[0].engine.cores))  # type: ignore[attr-defined]


@pytest.mark.parametrize("size", [1 << 63, 1 << 62, 1 << 45, (1 << 32) + 4096])
def test_the_misc_device_has_less_memory_than_that(size: int) -> None:
    with no_leak(), Node(SimKernel(["rknpu-misc"]), MISC) as node:
        node.action(abi.RKNPU_GET_IOMMU_EN)
        before = len(os.listdir("/proc/self/fd"))
        create = abi.IOCTL_RKNPU_MEM_CREATE
        value = abi.rknpu_mem_create(size=size)
        assert create.call(node.kernel, node.fd, value) == (-1, errno.ENOMEM)
        assert len(os.listdir("/proc/self/fd")) == before


def test_the_misc_device_looks_at_the_number_only() -> None:
    with no_leak(), Node(SimKernel(["rknpu-misc"]), MISC) as node:
        # As long as the wildest of these numbers states.
        action = bytearray(abi.rknpu_action(flags=abi.RKNPU_GET_DRV_VERSION)).ljust(1 << 14, b"\0")
        for number in (0x64001400, 0x0000AB00, 0xC0087200):
            assert node.kernel.ioctl(node.fd, number, action) == (0, 0)
            assert abi.rknpu_action.from_buffer(action).value == 908
        assert node.kernel.ioctl(node.fd, 0xC0107203, bytearray(16)) == (-1, errno.EINVAL)
        assert node.kernel.ioctl(node.fd, 0xC0107206, bytearray(16)) == (-1, errno.EINVAL)
        create = node.request("MEM_CREATE")
        assert node.ask(create, size=PAGE, flags=NON_CONTIGUOUS)[0] == errno.EINVAL
        assert node.ask(create, size=0)[0] == errno.EINVAL
        assert node.ask(create, size=PAGE, handle=9999)[0] == errno.EBADF
        assert node.ask(create, size=PAGE, handle=node.fd)[0] == errno.EINVAL
        made = node.ok(create, size=100)
        assert made.size == PAGE
        mapping = node.kernel.mmap(made.handle, PAGE)
        node.ok(node.request("MEM_DESTROY"), obj_addr=made.obj_addr)
        memoryview(mapping)[0] = 1  # the memory is the descriptor's
        node.kernel.munmap(mapping)
        node.kernel.close(made.handle)
        assert node.ask(node.request("MEM_DESTROY"), obj_addr=5)[0] == errno.EINVAL


# The class above the driver.


@pytest.fixture
def device() -> Iterator[RknpuDevice]:
    with no_leak():
        with RknpuDevice(CARD, SimKernel(["rknpu"])) as device:
            device.explainer = explain_timeout
            yield device
        HELD.clear()
        del device


HELD: list[RknpuBuffer] = []
"""Buffers of the test's device, which closes them."""


def load(device: RknpuDevice) -> tuple[RknpuBuffer, list[abi.rknpu_task]]:
    buffer = device.alloc(JOB_BYTES)
    HELD.append(buffer)
    image, program = job_image(buffer.dma_address)
    with buffer.access("w") as memory:
        memory[:] = image
    return buffer, list(rknpu_tasks(program, buffer.dma_address + CODE))


def spoil(buffer: RknpuBuffer) -> None:
    """Take the enable word away: the job never ends."""
    with buffer.access("w") as memory:
        memory[CODE + 8 * 107 : CODE + 8 * 108] = 0


def give_up(device: RknpuDevice, core: int) -> None:
    """Clear a core that hangs: a later asynchronous job that names it does that."""
    buffer, tasks = load(device)
    time.sleep(0.01)
    with device.submit_async(tasks, core_mask=1 << core) as fence:
        fence.wait(5)
    assert np.array_equal(result(buffer), PRODUCT)


def result(buffer: RknpuBuffer) -> Any:
    with buffer.access("r") as memory:
        return job_result(memory)


def test_the_class_runs_jobs_on_one_and_on_three_cores(device: RknpuDevice) -> None:
    buffer, tasks = load(device)
    done = device.submit(tasks)
    assert (done.task_counter, done.core_mask) == (1, 1)
    assert done.elapsed_ns > 0
    assert np.array_equal(result(buffer), PRODUCT)
    others = [load(device) for _ in range(3)]
    table = [task for _, (task,) in others]
    device.submit(table, [(0, 1), (1, 1), (2, 1)], core_mask=7)
    for buffer, _ in others:
        assert np.array_equal(result(buffer), PRODUCT)


def test_a_fence_can_be_waited_for_awaited_and_merged(device: RknpuDevice) -> None:
    buffer, tasks = load(device)

    async def both() -> None:
        fences = [device.submit_async(tasks) for _ in range(2)]
        await asyncio.gather(*(asyncio.wait_for(_await(fence), 5) for fence in fences))
        merged = fences[0].merge(fences[1])
        merged.wait(5)
        assert merged.status() == 1
        for fence in (*fences, merged):
            fence.close()

    async def _await(fence: Any) -> None:
        await fence

    asyncio.run(both())
    assert np.array_equal(result(buffer), PRODUCT)
    spoil(buffer)
    with device.submit_async(tasks, core_mask=1) as fence:
        with pytest.raises(WaitTimeout, match="did not signal"):
            fence.wait(0.02)
        assert fence.status() == 0
    give_up(device, 0)


def test_a_job_can_wait_for_a_fence(device: RknpuDevice) -> None:
    buffer, tasks = load(device)
    with device.submit_async(tasks) as fence:
        device.submit(tasks, fence_in=fence)
    assert np.array_equal(result(buffer), PRODUCT)


@pytest.mark.parametrize(
    ("windows", "mask", "rule"),
    [
        (None, 5, "only 0, 1, 2, 3, 4 and 7"),
        (None, 8, "only 0, 1, 2, 3, 4 and 7"),
        (None, 3, "uses 2 cores, 0 windows"),
        ([(0, 1)], 7, "uses 3 cores, 1 windows"),
        ([(0, 2)], 0, "there are 1"),
        ([(1, 1)], 0, "there are 1"),
        ([(-1, 1)], 0, "there are 1"),
        ([(0, 0)], 0, "there are 1"),
    ],
)
def test_the_class_refuses_what_would_never_finish(
    device: RknpuDevice, windows: Any, mask: int, rule: str
) -> None:
    _, tasks = load(device)
    with pytest.raises(ProgramError, match=rule):
        device.submit(tasks, windows, mask)


def test_the_class_refuses_code_outside_its_buffers(device: RknpuDevice) -> None:
    buffer, tasks = load(device)
    for address in (0, buffer.dma_address + CODE + 8, buffer.dma_address + JOB_BYTES):
        tasks[0].regcmd_addr = address
        with pytest.raises(ProgramError, match="task 0: 864 bytes"):
            device.submit(tasks)
    with pytest.raises(ProgramError, match="without tasks"):
        device.submit([])
    for timeout in (0, -1, 5000):
        with pytest.raises(ValueError, match="timeout"):
            device.submit(load(device)[1], timeout=timeout)


@pytest.mark.parametrize("options", [{"flags": 1 << 11}, {"domain": 16}, {"domain": -1}])
def test_allocation_options_are_checked(device: RknpuDevice, options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"flags|domain"):
        device.alloc(4096, **options)


def test_ranges_of_a_sync_are_checked(device: RknpuDevice) -> None:
    buffer = device.alloc(8192)
    buffer.sync(1, 4096)
    for offset, size in ((8193, None), (0, 8193), (-1, 4), (0, -1)):
        with pytest.raises(ValueError, match="not within"):
            buffer.sync(1, offset, size)
    buffer.close()
    with device.alloc(4096, flags=NON_CONTIGUOUS) as uncached:
        uncached.sync(3)  # nothing to do, and the driver would say EINVAL


def chain(device: RknpuDevice, count: int) -> tuple[RknpuBuffer, Program, list[abi.rknpu_task]]:
    buffer, _ = load(device)
    base = buffer.dma_address
    one = matmul_program(4, 32, 32, np.int8, np.int32, base, base + 0x1000, base + 0x2000)
    program = Program.join([one] * count).chained(base + CODE)
    words = program.words.view(np.uint8)
    with buffer.access("w") as memory:
        memory[CODE : CODE + len(words)] = words
    return buffer, program, list(rknpu_tasks(program, base + CODE))


def test_a_timeout_is_explained(device: RknpuDevice) -> None:
    buffer, program, tasks = chain(device, 3)
    assert device.submit(tasks).task_counter == 3
    with buffer.access("w") as memory:
        trailer = CODE + 8 * (program.tasks[1].offset + program.tasks[1].count - 4)
        memory[trailer : trailer + 8] = 0
    del memory
    with pytest.raises(WaitTimeout) as caught:
        device.submit(tasks, timeout=0.03)
    text = str(caught.value)
    assert "the hardware counted 2 of 3 tasks" in text
    assert "awaited 0x300" in text
    assert "it ends after 2 of 3 tasks" in text
    assert "DRM_IOCTL_RKNPU_SUBMIT" in text
    assert caught.value.filename == CARD


def test_a_stuck_queue_is_told_from_a_silent_npu(device: RknpuDevice) -> None:
    _, tasks = load(device)
    buffer, hung = load(device)
    spoil(buffer)
    with device.submit_async(hung, core_mask=2):
        with pytest.raises(NpuError, match="never reached the hardware") as caught:
            device.submit(tasks, core_mask=2, timeout=0.02)
        assert caught.value.errno == errno.EINVAL
    give_up(device, 1)
