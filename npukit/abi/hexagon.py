# SPDX-License-Identifier: MIT
"""What a Hexagon DSP and its host say to each other above the driver: interfaces and methods.

Source: the IDL files of Qualcomm's user library (remotectl, adsp_listener, adsp_current_process1,
apps_std, apps_mem, apps_remotectl, adspmsgd_apps), and sbuf_parser.h for the packing of reverse
calls. A method's number is its place in its interface; interfaces of the "1" family have two more
in front, open and close.
"""

from __future__ import annotations

from ctypes import c_char, c_int32, c_int64, c_uint16, c_uint32, c_uint64

from npukit.ioctl import Struct

# Handles that need no open
HANDLE_REMOTECTL = 0
HANDLE_KERNEL = 1
"""The driver's own; INVOKE refuses it to processes (EPERM)."""
HANDLE_DSP_UTILITIES = 2
HANDLE_LISTENER = 3
HANDLE_PROCESS = 4
HANDLE_MSGD = 5
HANDLE_LISTENER1 = 7
HANDLE_REMOTECTL1 = 8
MAX_STATIC_HANDLE = 20
"""As the driver counts them; the user library says 10."""

# remotectl, and apps_remotectl at handle 0 of the host; remotectl1 has two methods before these
REMOTECTL_OPEN, REMOTECTL_CLOSE, REMOTECTL_GROW_HEAP, REMOTECTL_SET_PARAM = range(4)
# adsp_listener; adsp_listener1 has two methods before these
LISTENER_INIT2, LISTENER_NEXT2, LISTENER_GET_IN_BUFS2 = 3, 4, 5
# adsp_current_process1
PROCESS_EXIT = 2
# adspmsgd_apps, of the host
MSGD_LOG = 0

# Methods of the driver's own handle (drivers/misc/fastrpc.c)
FASTRPC_RMID_INIT_ATTACH = 0
FASTRPC_RMID_INIT_RELEASE = 1
FASTRPC_RMID_INIT_MMAP = 4
FASTRPC_RMID_INIT_MUNMAP = 5
FASTRPC_RMID_INIT_CREATE = 6
FASTRPC_RMID_INIT_CREATE_ATTR = 7
FASTRPC_RMID_INIT_CREATE_STATIC = 8
FASTRPC_RMID_INIT_MEM_MAP = 10
FASTRPC_RMID_INIT_MEM_UNMAP = 11

EXTENDED_METHOD = 31
"""The method field of a method above 30; its number then leads the first in buffer."""

# apps_std, of the host
(
    APPS_STD_FOPEN,
    APPS_STD_FREOPEN,
    APPS_STD_FFLUSH,
    APPS_STD_FCLOSE,
    APPS_STD_FREAD,
    APPS_STD_FWRITE,
    APPS_STD_FGETPOS,
    APPS_STD_FSETPOS,
    APPS_STD_FTELL,
    APPS_STD_FSEEK,
    APPS_STD_FLEN,
    APPS_STD_REWIND,
    APPS_STD_FEOF,
    APPS_STD_FERROR,
    APPS_STD_CLEARERR,
    APPS_STD_PRINT_STRING,
    APPS_STD_GETENV,
    APPS_STD_SETENV,
    APPS_STD_UNSETENV,
    APPS_STD_FOPEN_WITH_ENV,
    APPS_STD_FGETS,
    APPS_STD_GET_SEARCH_PATHS_WITH_ENV,
    APPS_STD_FILE_EXISTS,
    APPS_STD_FSYNC,
    APPS_STD_FREMOVE,
    APPS_STD_FDOPEN_DECRYPT,
    APPS_STD_OPENDIR,
    APPS_STD_CLOSEDIR,
    APPS_STD_READDIR,
    APPS_STD_MKDIR,
    APPS_STD_RMDIR,
    APPS_STD_STAT,
    APPS_STD_FTRUNC,
    APPS_STD_FRENAME,
    APPS_STD_FOPEN_FD,
    APPS_STD_FCLOSE_FD,
    APPS_STD_FOPEN_WITH_ENV_FD,
) = range(37)

# apps_mem, of the host
(
    APPS_MEM_REQUEST_MAP,
    APPS_MEM_REQUEST_UNMAP,
    APPS_MEM_REQUEST_MAP64,
    APPS_MEM_REQUEST_UNMAP64,
    APPS_MEM_SHARE_MAP,
    APPS_MEM_SHARE_UNMAP,
    APPS_MEM_DMA_HANDLE_MAP,
    APPS_MEM_DMA_HANDLE_UNMAP,
) = range(8)


class apps_std_STAT(Struct):
    _size_ = 96
    _fields_ = [
        ("tsz", c_uint64),
        ("dev", c_uint64),
        ("ino", c_uint64),
        ("mode", c_uint32),
        ("nlink", c_uint32),
        ("rdev", c_uint64),
        ("size", c_uint64),
        ("atime", c_int64),
        ("atimensec", c_int64),
        ("mtime", c_int64),
        ("mtimensec", c_int64),
        ("ctime", c_int64),
        ("ctimensec", c_int64),
    ]


class apps_std_DIRENT(Struct):
    _size_ = 260
    _fields_ = [("ino", c_int32), ("name", c_char * 255)]


class adspmsgd_node(Struct):
    """One message of the DSP's log. ``level``: 0 low, 1 medium, 2 high, 3 error, 4 fatal."""

    _pack_ = 1
    _layout_ = "ms"
    _size_ = 256
    _fields_ = [
        ("level", c_uint32),
        ("line", c_uint16),
        ("thread_id", c_uint16),
        ("str", c_char * 218),
        ("file", c_char * 30),
    ]
