# SPDX-License-Identifier: MIT
"""usage: nested.py NODE: requests whose structures lead to others, on the node.
or:    nested.py NODE jobs: the structures of jobs, and what they are made of in a mapping of the
file NODE, 4 GiB on, laid out as the drivers give it; prints their addresses as JSON and waits."""

import ctypes
import json
import mmap
import os
import sys

from npukit.abi import amdxdna, drm, fastrpc, rknpu, rocket

libc = ctypes.CDLL(None, use_errno=True)
libc.ioctl.argtypes = (ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p)
fd = os.open(sys.argv[1], os.O_RDWR)
keep = []


def at(value) -> int:
    keep.append(value)
    return ctypes.addressof(value)


def numbers(kind, *values: int) -> int:
    return at((kind * len(values))(*values))


def octets(data: bytes) -> int:
    return at(ctypes.create_string_buffer(data, len(data)))


def ask(request: int, value) -> None:
    assert libc.ioctl(fd, int(request), at(value)) == -1


BAD = 8


def flat() -> None:
    task = rocket.drm_rocket_task
    job = rocket.drm_rocket_job
    jobs = (job * 3)(
        job(
            tasks=at((task * 2)(task(0x1000, 16), task(0x2000, 24))),
            in_bo_handles=numbers(ctypes.c_uint32, 5, 6, 7),
            out_bo_handles=numbers(ctypes.c_uint32, 9),
            task_count=2,
            task_struct_size=ctypes.sizeof(rocket.drm_rocket_task),
            in_bo_handle_count=3,
            out_bo_handle_count=1,
        ),
        job(tasks=BAD, task_count=1, task_struct_size=ctypes.sizeof(rocket.drm_rocket_task)),
        job(in_bo_handles=numbers(ctypes.c_uint32, 11), in_bo_handle_count=1),
    )
    size = ctypes.sizeof(job)
    submit = rocket.drm_rocket_submit(jobs=at(jobs), job_count=3, job_struct_size=size)
    ask(rocket.DRM_IOCTL_ROCKET_SUBMIT, submit)
    argument = fastrpc.fastrpc_invoke_args
    arguments = (argument * 3)(
        argument(ptr=octets(b"\x10\0\0\0"), length=4, fd=-1),
        argument(ptr=BAD, length=100, fd=-1),
        argument(ptr=octets(b"result"), length=6, fd=-1),
    )
    invoke = fastrpc.fastrpc_invoke(handle=3, sc=0x02020100, args=at(arguments))
    ask(fastrpc.FASTRPC_IOCTL_INVOKE, invoke)
    command = amdxdna.amdxdna_drm_exec_cmd(
        hwctx=1, cmd_handles=4, cmd_count=1, args=numbers(ctypes.c_uint32, 4, 8, 15), arg_count=3
    )
    ask(amdxdna.DRM_IOCTL_AMDXDNA_EXEC_CMD, command)
    wait = drm.drm_syncobj_timeline_wait(
        handles=numbers(ctypes.c_uint32, 1, 2), points=numbers(ctypes.c_uint64, 3, 1 << 40),
        count_handles=2,
    )  # fmt: skip
    ask(drm.DRM_IOCTL_SYNCOBJ_TIMELINE_WAIT, wait)


def jobs() -> None:
    start, page = 1 << 32, 4096
    os.ftruncate(fd, start + 2 * page)
    shared = mmap.mmap(fd, 2 * page, offset=start)
    command = 0x0201_0000_0000_0000
    words = (ctypes.c_uint64 * 40)(*(command | n << 16 | 0x1010 for n in range(40)))
    shared[page : page + 320] = bytes(words)
    found = {}
    # rocket: one buffer of two pages at 0x10000.
    found["rocket create"] = at(
        rocket.drm_rocket_create_bo(size=2 * page, handle=1, dma_address=0x10000, offset=start)
    )
    task = at(rocket.drm_rocket_task(0x10000 + page + 16, 6))
    job = rocket.drm_rocket_job(
        tasks=task, task_count=1, task_struct_size=ctypes.sizeof(rocket.drm_rocket_task)
    )
    size = ctypes.sizeof(job)
    found["rocket submit"] = at(
        rocket.drm_rocket_submit(jobs=at(job), job_count=1, job_struct_size=size)
    )
    # rknpu: the task table in the first page, register commands in the second.
    row = rknpu.rknpu_task(enable_mask=13, regcfg_amount=8, regcmd_addr=0x20000)
    shared[:40] = bytes(row)
    for handle, place, address in ((1, start, 0x10000), (2, start + page, 0x20000)):
        found[f"rknpu create {handle}"] = at(
            rknpu.rknpu_mem_create(
                handle=handle, size=page, obj_addr=0xFF00 + handle, dma_addr=address
            )
        )
        found[f"rknpu map {handle}"] = at(rknpu.rknpu_mem_map(handle=handle, offset=place))
    found["rknpu submit"] = at(rknpu.rknpu_submit(task_number=1, task_obj_addr=0xFF01))
    # amdxdna: a packet of two words behind the header, in the second page.
    packet = (3 | 2 << 12 | 3 << 28).to_bytes(4, "little") + b"\x02\0\0\0\x11\x22\x33\x44"
    shared[page + 1024 : page + 1024 + 12] = packet
    found["amdxdna create"] = at(amdxdna.amdxdna_drm_create_bo(size=1024, type=4, handle=6))
    found["amdxdna info"] = at(
        amdxdna.amdxdna_drm_get_bo_info(
            handle=6, map_offset=start + page + 1024, xdna_addr=0x7F0000000000
        )
    )
    found["amdxdna submit"] = at(amdxdna.amdxdna_drm_exec_cmd(hwctx=1, cmd_handles=6, cmd_count=1))
    print(json.dumps(found), flush=True)
    sys.stdin.read()


jobs() if sys.argv[2:] == ["jobs"] else flat()
