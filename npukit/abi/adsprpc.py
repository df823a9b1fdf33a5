# SPDX-License-Identifier: MIT
"""drivers/char/adsprpc_shared.h of Qualcomm's kernels up to 5.15: /dev/adsprpc-smd[-secure].

The predecessor of fastrpc, as 64-bit programs see it: the names are the same in part, the numbers
and structures are not. Taken are the requests and what they carry; the rest of the header belongs
to the driver and to its messages to the DSP. Fields are pointers or sizes of the machine's word in
C; here they are u64.

Kernels up to 4.14 have requests 1 to 15. Those from 17 on came later; 5.15 has lost GETPERF.
"""

from __future__ import annotations

from ctypes import c_int32, c_int64, c_uint8, c_uint32, c_uint64, sizeof

from npukit.ioctl import IOWR, Ioctl, Pointer, Struct, Union

from .fastrpc import REMOTE_SCALARS_LENGTH

# attrs of fastrpc_ioctl_invoke_attrs
FASTRPC_ATTR_NOVA = 0x1
FASTRPC_ATTR_NON_COHERENT = 0x2
FASTRPC_ATTR_COHERENT = 0x4
FASTRPC_ATTR_KEEP_MAP = 0x8
FASTRPC_ATTR_NOMAP = 16
FASTRPC_ATTR_FORCE_NOFLUSH = 32
FASTRPC_ATTR_FORCE_NOINVALIDATE = 64

# the word of SETMODE
FASTRPC_MODE_PARALLEL = 0
FASTRPC_MODE_SERIAL = 1
FASTRPC_MODE_PROFILE = 2
FASTRPC_MODE_SESSION = 4

# the word of GETINFO, domain of fastrpc_ioctl_capability
ADSP_DOMAIN_ID = 0
MDSP_DOMAIN_ID = 1
SDSP_DOMAIN_ID = 2
CDSP_DOMAIN_ID = 3
CDSP1_DOMAIN_ID = 4
GPDSP_DOMAIN_ID = 5
GPDSP1_DOMAIN_ID = 6
MAX_DOMAIN_ID = GPDSP1_DOMAIN_ID

# enum fastrpc_init_flags: flags of fastrpc_ioctl_init
FASTRPC_INIT_NO_CREATE = -1
FASTRPC_INIT_ATTACH = 0
FASTRPC_INIT_CREATE = 1
FASTRPC_INIT_CREATE_STATIC = 2
FASTRPC_INIT_ATTACH_SENSORS = 3

# enum fastrpc_invoke2_type: req of fastrpc_ioctl_invoke2
FASTRPC_INVOKE2_ASYNC = 1
FASTRPC_INVOKE2_ASYNC_RESPONSE = 2
FASTRPC_INVOKE2_KERNEL_OPTIMIZATIONS = 3
FASTRPC_INVOKE2_STATUS_NOTIF = 4
FASTRPC_INVOKE2_PROC_SHAREDBUF_INFO = 5
FASTRPC_INVOKE2_SESS_INFO = 6

# enum fastrpc_map_flags: flags of fastrpc_mem_map
FASTRPC_MAP_STATIC = 0
FASTRPC_MAP_RESERVED = 1
FASTRPC_MAP_FD = 2
FASTRPC_MAP_FD_DELAYED = 3
FASTRPC_MAP_FD_NOMAP = 16
FASTRPC_MAP_MAX = 17

# enum dsp_map_flags: flags of fastrpc_ioctl_mmap
ADSP_MMAP_HEAP_ADDR = 4
ADSP_MMAP_DMA_BUFFER = 6
ADSP_MMAP_REMOTE_HEAP_ADDR = 8
ADSP_MMAP_ADD_PAGES = 0x1000
ADSP_MMAP_ADD_PAGES_LLC = 0x3000
ADSP_MMAP_PERSIST_HDR = 0x4000

# enum fastrpc_control_type: req of fastrpc_ioctl_control
FASTRPC_CONTROL_LATENCY = 1
FASTRPC_CONTROL_SMMU = 2
FASTRPC_CONTROL_KALLOC = 3
FASTRPC_CONTROL_WAKELOCK = 4
FASTRPC_CONTROL_PM = 5
FASTRPC_CONTROL_DSPPROCESS_CLEAN = 6
FASTRPC_CONTROL_RPC_POLL = 7
FASTRPC_CONTROL_ASYNC_WAKE = 8
FASTRPC_CONTROL_NOTIF_WAKE = 9

# enum fastrpc_dsp_capability
ASYNC_FASTRPC_CAP = 9
DMA_HANDLE_REVERSE_RPC_CAP = 129
FASTRPC_MAX_DSP_ATTRIBUTES = 256
FASTRPC_MAX_ATTRIBUTES = 260

# enum fastrpc_status_flags: status of fastrpc_ioctl_notif_rsp
FASTRPC_USERPD_UP = 0
FASTRPC_USERPD_EXIT = 1
FASTRPC_USERPD_FORCE_KILL = 2
FASTRPC_USERPD_EXCEPTION = 3
FASTRPC_DSP_SSR = 4

MAP_RESERVED_NUM = 14
UNMAP_RESERVED_NUM = 10
DSPSIGNAL_TIMEOUT_NONE = 0xFFFFFFFF
DSPSIGNAL_NUM_SIGNALS = 1024


class remote_buf(Struct):
    """``len`` bytes at ``pv``."""

    _size_ = 16
    _fields_ = [("pv", c_uint64), ("len", c_uint64)]
    _pointers_ = {"pv": Pointer(c_uint8, count="len", direction="inout")}


class remote_dma_handle(Struct):
    _size_ = 8
    _fields_ = [("fd", c_int32), ("offset", c_uint32)]


class remote_arg(Union):
    """A buffer or a handle, told by its place among the arguments (fastrpc.py)."""

    _size_ = 16
    _fields_ = [("buf", remote_buf), ("dma", remote_dma_handle), ("h", c_uint32)]


class fastrpc_ioctl_invoke(Struct):
    """``handle`` of a module, ``sc`` a scalars word, which counts ``pra``."""

    _size_ = 16
    _fields_ = [("handle", c_uint32), ("sc", c_uint32), ("pra", c_uint64)]
    _pointers_ = {"pra": Pointer(remote_arg, count="nscalars")}

    @property
    def nscalars(self) -> int:
        """How many arguments the scalars word announces."""
        return REMOTE_SCALARS_LENGTH(int(self.sc))


class _Invocation(Struct):
    """What the longer calls share: ``inv`` counts the lists that go with its arguments."""

    @property
    def nscalars(self) -> int:
        """How many arguments the scalars word of ``inv`` announces."""
        return int(self.inv.nscalars)


_FDS = Pointer(c_int32, count="nscalars")
_ATTRS = Pointer(c_uint32, count="nscalars")
# How long these are is fixed by the kernel; the structures do not say it.
_CRC = Pointer(c_uint32, direction="out")
_PERF = Pointer(c_uint64, direction="out")


class fastrpc_ioctl_invoke_fd(_Invocation):
    """``fds``: the dma-buf of each argument."""

    _size_ = 24
    _fields_ = [("inv", fastrpc_ioctl_invoke), ("fds", c_uint64)]
    _pointers_ = {"fds": _FDS}


class fastrpc_ioctl_invoke_attrs(_Invocation):
    """``attrs``: the attributes of each argument."""

    _size_ = 32
    _fields_ = [("inv", fastrpc_ioctl_invoke), ("fds", c_uint64), ("attrs", c_uint64)]
    _pointers_ = {"fds": _FDS, "attrs": _ATTRS}


class fastrpc_ioctl_invoke_crc(_Invocation):
    _size_ = 40
    _fields_ = [
        ("inv", fastrpc_ioctl_invoke),
        ("fds", c_uint64),
        ("attrs", c_uint64),
        ("crc", c_uint64),
    ]
    _pointers_ = {"fds": _FDS, "attrs": _ATTRS, "crc": _CRC}


class fastrpc_ioctl_invoke_perf(_Invocation):
    _size_ = 56
    _fields_ = [
        ("inv", fastrpc_ioctl_invoke),
        ("fds", c_uint64),
        ("attrs", c_uint64),
        ("crc", c_uint64),
        ("perf_kernel", c_uint64),
        ("perf_dsp", c_uint64),
    ]
    _pointers_ = {
        "fds": _FDS,
        "attrs": _ATTRS,
        "crc": _CRC,
        "perf_kernel": _PERF,
        "perf_dsp": _PERF,
    }


class fastrpc_async_job(Struct):
    _size_ = 24
    _fields_ = [("isasyncjob", c_uint32), ("jobid", c_uint64), ("reserved", c_uint32)]


class fastrpc_ioctl_invoke_async(_Invocation):
    _size_ = 64
    _fields_ = [
        ("inv", fastrpc_ioctl_invoke),
        ("fds", c_uint64),
        ("attrs", c_uint64),
        ("crc", c_uint64),
        ("perf_kernel", c_uint64),
        ("perf_dsp", c_uint64),
        ("job", c_uint64),
    ]
    _pointers_ = {
        "fds": _FDS,
        "attrs": _ATTRS,
        "crc": _CRC,
        "perf_kernel": _PERF,
        "perf_dsp": _PERF,
        "job": Pointer(fastrpc_async_job),
    }


class fastrpc_ioctl_invoke_async_no_perf(_Invocation):
    _size_ = 48
    _fields_ = [
        ("inv", fastrpc_ioctl_invoke),
        ("fds", c_uint64),
        ("attrs", c_uint64),
        ("crc", c_uint64),
        ("job", c_uint64),
    ]
    _pointers_ = {
        "fds": _FDS,
        "attrs": _ATTRS,
        "crc": _CRC,
        "job": Pointer(fastrpc_async_job),
    }


class fastrpc_ioctl_async_response(Struct):
    """``result`` is the DSP's."""

    _size_ = 40
    _fields_ = [
        ("jobid", c_uint64),
        ("result", c_int32),
        ("perf_kernel", c_uint64),
        ("perf_dsp", c_uint64),
        ("handle", c_uint32),
        ("sc", c_uint32),
    ]
    _pointers_ = {"perf_kernel": _PERF, "perf_dsp": _PERF}


class fastrpc_ioctl_notif_rsp(Struct):
    _size_ = 12
    _fields_ = [("domain", c_int32), ("session", c_int32), ("status", c_uint32)]


class fastrpc_proc_sharedbuf_info(Struct):
    _size_ = 8
    _fields_ = [("buf_fd", c_int32), ("buf_size", c_int32)]


class fastrpc_proc_sess_info(Struct):
    _size_ = 16
    _fields_ = [
        ("domain_id", c_uint32),
        ("session_id", c_uint32),
        ("pd_type", c_uint32),
        ("sharedcb", c_uint32),
    ]


class fastrpc_ioctl_invoke2(Struct):
    """``req`` says which structure ``invparam`` points to; ``size`` bytes."""

    _size_ = 24
    _fields_ = [("req", c_uint32), ("invparam", c_uint64), ("size", c_uint32), ("err", c_int32)]
    _pointers_ = {"invparam": Pointer(c_uint8, count="size", direction="inout")}


class fastrpc_ioctl_init(Struct):
    """``flags`` are a FASTRPC_INIT_*; the shell, and the memory that its process gets."""

    _size_ = 40
    _fields_ = [
        ("flags", c_uint32),
        ("file", c_uint64),
        ("filelen", c_uint32),
        ("filefd", c_int32),
        ("mem", c_uint64),
        ("memlen", c_uint32),
        ("memfd", c_int32),
    ]
    _pointers_ = {
        "file": Pointer(c_uint8, count="filelen"),
        "mem": Pointer(c_uint8, count="memlen", direction="inout"),
    }


class fastrpc_ioctl_init_attrs(Struct):
    _size_ = 48
    _fields_ = [("init", fastrpc_ioctl_init), ("attrs", c_int32), ("siglen", c_uint32)]


class fastrpc_ioctl_mmap(Struct):
    """``vaddrout``, an address of the DSP, comes back."""

    _size_ = 32
    _fields_ = [
        ("fd", c_int32),
        ("flags", c_uint32),
        ("vaddrin", c_uint64),
        ("size", c_uint64),
        ("vaddrout", c_uint64),
    ]


class fastrpc_ioctl_mmap_64(Struct):
    """The same for 64-bit programs; of use to 32-bit ones."""

    _size_ = 32
    _fields_ = [
        ("fd", c_int32),
        ("flags", c_uint32),
        ("vaddrin", c_uint64),
        ("size", c_uint64),
        ("vaddrout", c_uint64),
    ]


class fastrpc_ioctl_munmap(Struct):
    _size_ = 16
    _fields_ = [("vaddrout", c_uint64), ("size", c_uint64)]


class fastrpc_ioctl_munmap_64(Struct):
    _size_ = 16
    _fields_ = [("vaddrout", c_uint64), ("size", c_uint64)]


class fastrpc_ioctl_munmap_fd(Struct):
    _size_ = 24
    _fields_ = [("fd", c_int32), ("flags", c_uint32), ("va", c_uint64), ("len", c_int64)]


class fastrpc_ioctl_perf(Struct):
    """``numkeys`` comes back."""

    _size_ = 24
    _fields_ = [("data", c_uint64), ("numkeys", c_uint32), ("keys", c_uint64)]


class fastrpc_ioctl_dspsignal_create(Struct):
    _size_ = 8
    _fields_ = [("signal_id", c_uint32), ("flags", c_uint32)]


class fastrpc_ioctl_dspsignal_destroy(Struct):
    _size_ = 4
    _fields_ = [("signal_id", c_uint32)]


class fastrpc_ioctl_dspsignal_signal(Struct):
    _size_ = 4
    _fields_ = [("signal_id", c_uint32)]


class fastrpc_ioctl_dspsignal_wait(Struct):
    """``timeout_usec`` from now on, or DSPSIGNAL_TIMEOUT_NONE."""

    _size_ = 8
    _fields_ = [("signal_id", c_uint32), ("timeout_usec", c_uint32)]


class fastrpc_ioctl_dspsignal_cancel_wait(Struct):
    _size_ = 4
    _fields_ = [("signal_id", c_uint32)]


class fastrpc_mem_map(Struct):
    """``vaddrout``, an address of the DSP, comes back."""

    _size_ = 40
    _fields_ = [
        ("fd", c_int32),
        ("offset", c_int32),
        ("flags", c_uint32),
        ("attrs", c_int32),
        ("vaddrin", c_uint64),
        ("length", c_uint64),
        ("vaddrout", c_uint64),
    ]


class _fastrpc_map(Union):
    _size_ = 56
    _fields_ = [("m", fastrpc_mem_map), ("reserved", c_int32 * MAP_RESERVED_NUM)]


class fastrpc_ioctl_mem_map(Struct):
    _size_ = 64
    _anonymous_ = ("_map",)
    _fields_ = [("version", c_int32), ("_map", _fastrpc_map)]


class fastrpc_mem_unmap(Struct):
    _size_ = 24
    _fields_ = [("fd", c_int32), ("vaddr", c_uint64), ("length", c_uint64)]


class _fastrpc_unmap(Union):
    _size_ = 40
    _fields_ = [("um", fastrpc_mem_unmap), ("reserved", c_int32 * UNMAP_RESERVED_NUM)]


class fastrpc_ioctl_mem_unmap(Struct):
    _size_ = 48
    _anonymous_ = ("_unmap",)
    _fields_ = [("version", c_int32), ("_unmap", _fastrpc_unmap)]


class fastrpc_ctrl_latency(Struct):
    """``latency`` in microseconds; kernel 4.14 has a ``level`` there."""

    _size_ = 8
    _fields_ = [("enable", c_uint32), ("latency", c_uint32)]


class fastrpc_ctrl_kalloc(Struct):
    _size_ = 4
    _fields_ = [("kalloc_support", c_uint32)]


class fastrpc_ctrl_wakelock(Struct):
    _size_ = 4
    _fields_ = [("enable", c_uint32)]


class fastrpc_ctrl_pm(Struct):
    """``timeout`` in ms."""

    _size_ = 4
    _fields_ = [("timeout", c_uint32)]


class fastrpc_ctrl_smmu(Struct):
    _size_ = 4
    _fields_ = [("sharedcb", c_uint32)]


class _fastrpc_control(Union):
    _size_ = 8
    _fields_ = [
        ("lp", fastrpc_ctrl_latency),
        ("kalloc", fastrpc_ctrl_kalloc),
        ("wp", fastrpc_ctrl_wakelock),
        ("pm", fastrpc_ctrl_pm),
        ("smmu", fastrpc_ctrl_smmu),
    ]


class fastrpc_ioctl_control(Struct):
    """``req`` is a FASTRPC_CONTROL_*; some have a member of the union."""

    _size_ = 12
    _anonymous_ = ("_control",)
    _fields_ = [("req", c_uint32), ("_control", _fastrpc_control)]


class fastrpc_ioctl_capability(Struct):
    """``capability`` comes back."""

    _size_ = 12
    _fields_ = [("domain", c_uint32), ("attribute_ID", c_uint32), ("capability", c_uint32)]


def _request(name: str, nr: int, struct: type[Struct] | type[c_uint32]) -> Ioctl:
    return Ioctl(name, IOWR("R", nr, sizeof(struct)), struct)


def _call(name: str, nr: int, struct: type[Struct]) -> Ioctl:
    """One that answers with the DSP's result."""
    return Ioctl(name, IOWR("R", nr, struct), struct, returns="value")


FASTRPC_IOCTL_INVOKE = _call("FASTRPC_IOCTL_INVOKE", 1, fastrpc_ioctl_invoke)
FASTRPC_IOCTL_MMAP = _request("FASTRPC_IOCTL_MMAP", 2, fastrpc_ioctl_mmap)
FASTRPC_IOCTL_MUNMAP = _request("FASTRPC_IOCTL_MUNMAP", 3, fastrpc_ioctl_munmap)
FASTRPC_IOCTL_INVOKE_FD = _call("FASTRPC_IOCTL_INVOKE_FD", 4, fastrpc_ioctl_invoke_fd)
FASTRPC_IOCTL_SETMODE = _request("FASTRPC_IOCTL_SETMODE", 5, c_uint32)
FASTRPC_IOCTL_INIT = _request("FASTRPC_IOCTL_INIT", 6, fastrpc_ioctl_init)
FASTRPC_IOCTL_INVOKE_ATTRS = _call("FASTRPC_IOCTL_INVOKE_ATTRS", 7, fastrpc_ioctl_invoke_attrs)
FASTRPC_IOCTL_GETINFO = _request("FASTRPC_IOCTL_GETINFO", 8, c_uint32)
FASTRPC_IOCTL_GETPERF = _request("FASTRPC_IOCTL_GETPERF", 9, fastrpc_ioctl_perf)
FASTRPC_IOCTL_INIT_ATTRS = _request("FASTRPC_IOCTL_INIT_ATTRS", 10, fastrpc_ioctl_init_attrs)
FASTRPC_IOCTL_INVOKE_CRC = _call("FASTRPC_IOCTL_INVOKE_CRC", 11, fastrpc_ioctl_invoke_crc)
FASTRPC_IOCTL_CONTROL = _request("FASTRPC_IOCTL_CONTROL", 12, fastrpc_ioctl_control)
FASTRPC_IOCTL_MUNMAP_FD = _request("FASTRPC_IOCTL_MUNMAP_FD", 13, fastrpc_ioctl_munmap_fd)
FASTRPC_IOCTL_MMAP_64 = _request("FASTRPC_IOCTL_MMAP_64", 14, fastrpc_ioctl_mmap_64)
FASTRPC_IOCTL_MUNMAP_64 = _request("FASTRPC_IOCTL_MUNMAP_64", 15, fastrpc_ioctl_munmap_64)
FASTRPC_IOCTL_GET_DSP_INFO = _request("FASTRPC_IOCTL_GET_DSP_INFO", 17, fastrpc_ioctl_capability)
FASTRPC_IOCTL_INVOKE2 = _call("FASTRPC_IOCTL_INVOKE2", 18, fastrpc_ioctl_invoke2)
FASTRPC_IOCTL_MEM_MAP = _request("FASTRPC_IOCTL_MEM_MAP", 19, fastrpc_ioctl_mem_map)
FASTRPC_IOCTL_MEM_UNMAP = _request("FASTRPC_IOCTL_MEM_UNMAP", 20, fastrpc_ioctl_mem_unmap)
FASTRPC_IOCTL_INVOKE_PERF = _call("FASTRPC_IOCTL_INVOKE_PERF", 21, fastrpc_ioctl_invoke_perf)
FASTRPC_IOCTL_NOTIF_RSP = _request("FASTRPC_IOCTL_NOTIF_RSP", 22, fastrpc_ioctl_notif_rsp)
FASTRPC_IOCTL_DSPSIGNAL_CREATE = _request(
    "FASTRPC_IOCTL_DSPSIGNAL_CREATE", 23, fastrpc_ioctl_dspsignal_create
)
FASTRPC_IOCTL_DSPSIGNAL_DESTROY = _request(
    "FASTRPC_IOCTL_DSPSIGNAL_DESTROY", 24, fastrpc_ioctl_dspsignal_destroy
)
FASTRPC_IOCTL_DSPSIGNAL_SIGNAL = _request(
    "FASTRPC_IOCTL_DSPSIGNAL_SIGNAL", 25, fastrpc_ioctl_dspsignal_signal
)
FASTRPC_IOCTL_DSPSIGNAL_WAIT = _request(
    "FASTRPC_IOCTL_DSPSIGNAL_WAIT", 26, fastrpc_ioctl_dspsignal_wait
)
FASTRPC_IOCTL_DSPSIGNAL_CANCEL_WAIT = _request(
    "FASTRPC_IOCTL_DSPSIGNAL_CANCEL_WAIT", 27, fastrpc_ioctl_dspsignal_cancel_wait
)
