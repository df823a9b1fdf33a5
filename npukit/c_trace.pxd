# SPDX-License-Identifier: MIT
"""csrc/trace.h"""

from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

cdef extern from "trace.h" nogil:
    enum:
        NPUKIT_TRACE_CALL
        NPUKIT_TRACE_ENTRY
        NPUKIT_TRACE_EXIT
        NPUKIT_TRACE_MMAP
        NPUKIT_TRACE_FORK
        NPUKIT_TRACE_EXEC
        NPUKIT_TRACE_DEATH
        NPUKIT_TRACE_LOST
        NPUKIT_TRACE_VALUE
        NPUKIT_TRACE_ERROR

    struct npukit_trace:
        pass

    struct npukit_trace_event:
        npukit_trace_event *next
        int32_t kind, end
        int32_t pid, tid
        uint64_t args[6]
        int64_t value
        uint64_t start_ns, end_ns
        uint64_t dev, ino, rdev
        uint32_t mode
        int32_t access, before, after
        uint32_t room
        char path[256]
        unsigned char data[]

    npukit_trace *npukit_trace_new(const uint64_t *flat, size_t count)
    void npukit_trace_free(npukit_trace *trace)
    int npukit_trace_launch(npukit_trace *trace, char **argv)
    int npukit_trace_attach(npukit_trace *trace, int pid)
    int npukit_trace_status(const npukit_trace *trace)
    int npukit_trace_exec_error(const npukit_trace *trace)
    int npukit_trace_pid(const npukit_trace *trace)
    int npukit_trace_ready(const npukit_trace *trace)
    npukit_trace_event *npukit_trace_take(npukit_trace *trace)
    void npukit_trace_serves(npukit_trace *trace, uint64_t rdev, uint32_t driver)
    void npukit_trace_go_on(npukit_trace *trace)
    void npukit_trace_ignore(npukit_trace *trace)
    void npukit_trace_let_go(npukit_trace *trace)
