# SPDX-License-Identifier: MIT
"""AEEStdErr.h of Qualcomm's user library: result codes of a Hexagon DSP, which are no errno.

The DSP adds DSP_AEE_EOFFSET to a code of its own; a host-side library returns the bare number. Six
codes are bare on both sides.
"""

from __future__ import annotations

from typing import NamedTuple

DSP_AEE_EOFFSET = 0x80000400
_LAST = 0x201


class AeeCode(NamedTuple):
    """A result code: its C name, the layer of software that gives it, what it says."""

    name: str
    layer: str
    text: str


AEE = "AEE"
"""Layer of the general codes: an interface refused a call."""
RPC = "RPC"
"""The FastRPC implementation of the DSP, its processes, maps and transport."""
SHELL = "shell"
"""The process image and the operating system below it (QuRT)."""
SIGNATURE = "signature"
"""The check of what a process loads."""
FILE = "file"
"""A file that the DSP asked the host for."""
POWER = "power"
"""Clocks and power votes."""

_GENERAL = (
    "EFAILED general failure|ENOMEMORY out of memory|ECLASSNOTSUPPORT class not supported|"
    "EVERSIONNOTSUPPORT version not supported|EALREADYLOADED already loaded|"
    "EUNABLETOLOAD a module, or a library that it needs, cannot be loaded|"
    "EUNABLETOUNLOAD cannot be unloaded|EALARMPENDING an alarm is pending|EINVALIDTIME bad time|"
    "EBADCLASS no class object|EBADMETRIC bad metric|EEXPIRED expired|"
    "EBADSTATE process or thread is not in the state that this needs|EBADPARM bad parameter|"
    "ESCHEMENOTSUPPORTED bad URI scheme|EBADITEM value out of range|EINVALIDFORMAT bad format|"
    "EINCOMPLETEITEM incomplete item|ENOPERSISTMEMORY out of flash|"
    "EUNSUPPORTED not implemented by this DSP|EPRIVLEVEL privileges are insufficient|"
    "ERESOURCENOTFOUND no such resource|EREENTERED re-entered|EBADTASK wrong task|"
    "EALLOCATED memory was left behind|EALREADY already in progress|EADSAUTHBAD bad authorization|"
    "ENEEDSERVICEPROG needs service programming|EMEMPTR bad memory pointer|EHEAP heap is corrupt|"
    "EIDLE idle|EITEMBUSY busy|EBADSID bad subscriber|ENOTYPE no type|ENEEDMORE more is needed|"
    "EADSCAPS capabilities do not match|EBADSHUTDOWN was not closed properly|"
    "EBUFFERTOOSMALL the destination is too small|ENOSUCH no such name, port or service|"
    "EACKPENDING acknowledgement is pending|ENOTOWNER not the owner|EINVALIDITEM bad item|"
    "ENOTALLOWED not allowed|EINVHANDLE no such handle|EOUTOFHANDLES out of handles|"
    "EINTERRUPTED interrupted; the call may be repeated|ENOMORE no more items|"
    "ECPUEXCEPTION a processor exception|EREADONLY read-only"
)
_PROCESS = (
    "EINVALIDMSG bad message from the host|EINVALIDTHREAD bad thread|EINVALIDPROCESS bad process|"
    "EINVALIDFILENAME bad file name|EINVALIDDIGESTSIZE bad size of a digest|"
    "EINVALIDSEGS bad segments|EINVALIDSIGNATURE bad signature|EINVALIDDOMAIN bad domain|"
    "EINVALIDFD bad file descriptor|EINVALIDDEVICE bad device|EINVALIDMODE bad mode|"
    "EINVALIDPROCNAME bad process name|ENOSUCHMOD no such module|ENOSUCHINSTANCE no such instance|"
    "ENOSUCHTHREAD no such thread|ENOSUCHPROCESS no such process|ENOSUCHSYMBOL no such symbol|"
    "ENOSUCHDEVICE no such device|ENOSUCHPROP no such property|ENOSUCHFILE no such file|"
    "ENOSUCHHANDLE no such handle|ENOSUCHSTREAM no such stream|"
    "ENOSUCHMAP nothing is mapped at this address|ENOSUCHREGISTER no such register|"
    "ENOSUCHCLIENT no such client|EBADDOMAIN domain is not initialized|EBADOFFSET bad offset|"
    "EBADSIZE bad size|EBADPERMS bad permissions|EBADFD bad file descriptor|EBADPID bad process|"
    "EBADTID bad thread|EBADELF bad ELF file|EBADASID bad address space|EBADCONTEXT bad context|"
    "EBADMEMALIGN bad alignment|EIOCTL an ioctl failed|EFOPEN a file cannot be opened|"
    "EFGETS reading a line failed|EFFLUSH flushing failed|EFCLOSE closing failed|EEOF end of file|"
    "EFREAD reading failed|EFWRITE writing failed|EFGETPOS no file position|"
    "EFSETPOS file position refused|EFTELL no file position|EFSEEK seeking failed|"
    "EFLEN a file is longer than expected|EGETENV no such variable|ESETENV variable refused|"
    "EMMAP mapping failed|EIONMAP mapping failed|EIONALLOC allocation failed|"
    "ENORPCMEMORY no memory to share|ENOROOTOFTRUST no root of trust|ENOTLOCKED not locked|"
    "ENOTINITIALIZED not initialized|EUNSUPPORTEDAPI unsupported request|EUNPACK unpacking failed|"
    "EPOLL polling failed|EEVENTREAD reading an event failed|EMAXBUFS too many buffers|"
    "EINVARGS bad arguments|ECONNREFUSED connection refused"
)
_MAPS = (
    "EUNSIGNEDMOD the object is not signed, and no test signature allows it|"
    "EINVALIDHASH bad hash of an object|EBADVA bad address|ENOSUCHJOB no such job or group|"
    "EBADMAPREFCNT bad reference count of a map|EBADPAGECNT bad page count|"
    "EMAPALREADYPRESENT already mapped|ENOFREESECTION no free section|"
    "U2GCLIENT_OPEN guest client cannot be opened|ENOSESSION no session is free"
)
_QURT = (
    "REGIONCREATE region not created|CACHECLEAN cache not cleaned|REGIONGETATTR no such region|"
    "BADREGIONPERMS bad permissions of a region|MEMPOOLADD pool not extended|"
    "REGISTERDEV device not registered|MEMPOOLCREATE pool not created|GETVA no such address|"
    "REGIONDELETE region not deleted|MEMPOOLATTACH pool not attached|"
    "THREADCREATE thread not created|COPYTOUSER copy to a process failed|"
    "MEMMAPCREATE map not created|INVHANDLE bad client handle|"
    "BADASID the process has no address space|OPENFAILED driver not opened|"
    "COPYFROMUSER copy from a process failed|LINELOCK cache lines not locked|"
    "QDIDEFMETHOD method refused|CREATEHANDLE handle not created|WRITABLEMEM memory is writable|"
    "THREADCREATEDEF thread not created|LOOKUPVA no such address|LOOKUPPA no such address|"
    "MIGRATESECURE migration failed"
)
_POWER = (
    "EMMPMREQUEST request failed|EMMPMRELEASE release failed|EMMPMSETPARAM parameter refused|"
    "EMMPMREGISTER registration failed|EMMPMGETINFO no information|"
    "EMAX_MMPM_CLIENTS too many clients|EDCVSREGISTER registration failed|"
    "PDRREGFAIL registration failed"
)
_SIGNATURE_CODES = frozenset({0x36, 0x37, 0x38, 0x69, 0x81, 0x82})
_SHELL_CODES = frozenset({0x06, 0x34, 0x3E, 0x41, 0x42, 0x52, 0x53})
_FILE_CODES = frozenset({0x35, 0x45, *range(0x57, 0x63)})


def _table() -> dict[int, AeeCode]:
    table: dict[int, AeeCode] = {}

    def add(first: int, entries: str, layer: str, prefix: str = "AEE_") -> None:
        for number, entry in enumerate(entries.split("|"), first):
            name, _, text = entry.partition(" ")
            own = layer
            if number in _SIGNATURE_CODES:
                own = SIGNATURE
            elif number in _SHELL_CODES:
                own = SHELL
            elif number in _FILE_CODES:
                own = FILE
            table[number] = AeeCode(prefix + name, own, text)

    add(0x01, _GENERAL, AEE)
    add(0x32, _PROCESS, RPC)
    add(0x81, _MAPS, RPC)
    add(0x101, "BADPACKET bad packet|ALREADYOPEN port is open|OPENFAILED port not opened|"
        "WRITE writing failed|REGISTER registration failed", RPC, "AEE_EGLINK")  # fmt: skip
    add(0x121, "EDALDEVATTACH device not attached|EDALINTREGISTER interrupt not registered|"
        "EDALINTUNREGISTER interrupt not given back|EDALGETPROP no such property|"
        "EDALGETVAL no such value|EDCVSREQUEST request refused", POWER)  # fmt: skip
    add(0x141, _QURT, SHELL, "AEE_EQURT")
    add(0x160, "QDIOPEN driver not opened|MAPREMOVE map not removed|QDICLOSE driver not closed|"
        "WAIT waiting failed", SHELL, "AEE_EQURT")  # fmt: skip
    add(0x171, _POWER, POWER)
    add(0x180, "AEE_DEFAULT_PROCESS no default process|AEE_ENULLCONTEXT no context|", SHELL, "")
    del table[0x182]
    add(0x190, "E_APPS_BUSY_RETRY_LATER the host is busy|"
        "E_HLOS_CAP_REACHED no more memory of the host|"
        "E_DPOOL_CAP_REACHED no more physical memory|"
        "E_NO_MORE_FREE_SECTIONS the heap cannot grow", RPC, "")  # fmt: skip
    add(0x194, "ESTUBSKELVERMISMATCH the stub is newer than the skel", RPC)
    add(0x200, "ERPC the FastRPC implementation failed|EFILE a file cannot be used", RPC)
    return table


_CODES = _table()
BARE: dict[int, AeeCode] = {
    39: AeeCode("AEE_ENOSUCH", AEE, "no such name, port or service"),
    46: AeeCode("AEE_EINTERRUPTED", AEE, "interrupted; the call may be repeated"),
    104: AeeCode("AEE_ECONNRESET", RPC, "the connection was reset"),
    516: AeeCode("AEE_EWOULDBLOCK", AEE, "would block"),
}
"""Codes that the DSP gives without the offset."""

_UNKNOWN = AeeCode("AEE_EUNKNOWN", AEE, "failed, for a reason that it does not tell")
"""What -1 means. The driver hands it on, and then it looks like EPERM."""


def code_of(name: str) -> int:
    """The code with the DSP's offset, as an unsigned 32-bit number: code_of("EBADPARM")."""
    for number, code in _CODES.items():
        if name in (code.name, code.name.removeprefix("AEE_")):
            return DSP_AEE_EOFFSET + number
    raise KeyError(name)


def decode(code: int) -> AeeCode:
    """What a result says. ``code`` may be the signed or the unsigned 32-bit number."""
    code &= 0xFFFFFFFF
    if code == 0xFFFFFFFF:
        return _UNKNOWN
    if code in BARE:
        return BARE[code]
    number = code - DSP_AEE_EOFFSET if code > DSP_AEE_EOFFSET else code
    known = _CODES.get(number)
    if known is not None:
        return known
    layer = RPC if 0 < number <= _LAST else "module"
    return AeeCode(f"{code:#x}", layer, "no code that AEEStdErr.h has")
