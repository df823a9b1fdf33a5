/* SPDX-License-Identifier: MIT */
/* The NPU requests of other processes, watched with ptrace(2).
 *
 * One thread is the tracer: it starts or seizes the program, and copies at each stop what the program
 * may change later. Another takes the events and makes sense of them while the program goes on; only
 * for requests that lead to more memory (all but those in `flat`) does the program wait for it. */
#ifndef NPUKIT_TRACE_H
#define NPUKIT_TRACE_H

#include <stddef.h>
#include <stdint.h>

enum npukit_trace_kind {
    NPUKIT_TRACE_CALL,  /* an ioctl that is over */
    NPUKIT_TRACE_ENTRY, /* one that begins; the program waits for npukit_trace_go_on */
    NPUKIT_TRACE_EXIT,  /* the same at its end; the program waits again */
    NPUKIT_TRACE_MMAP,  /* of a file from 4 GiB on (DRM has its buffers there) or shared */
    NPUKIT_TRACE_FORK,  /* `value` is the thread that was born */
    NPUKIT_TRACE_EXEC,  /* the program waits */
    NPUKIT_TRACE_DEATH, /* of a thread */
};

/* How a call ended. */
enum npukit_trace_end {
    NPUKIT_TRACE_LOST, /* the thread died in it */
    NPUKIT_TRACE_VALUE,
    NPUKIT_TRACE_ERROR, /* `value` is a negative errno, or one of the kernel's own from 512 on */
};

struct npukit_trace_event {
    struct npukit_trace_event *next;
    int32_t kind, end;
    int32_t pid, tid;
    uint64_t args[6];
    int64_t value;
    uint64_t start_ns, end_ns; /* CLOCK_MONOTONIC */
    uint64_t dev, ino, rdev;   /* the file of the descriptor; all 0 when there is none */
    uint32_t mode;
    int32_t access; /* O_RDONLY, O_WRONLY, O_RDWR */
    int32_t before, after; /* bytes of the argument then; -1: none could be read */
    uint32_t room;
    char path[256];       /* what the descriptor is; "" where an earlier event has told */
    unsigned char data[]; /* `before`, and from `room` on `after` */
};

struct npukit_trace;

/* `flat` are the `count` requests whose argument leads nowhere, in order: a driver's number in the high
 * half (0: whatever the driver), the request in the low half. NULL without memory. */
struct npukit_trace *npukit_trace_new(const uint64_t *flat, size_t count);
void npukit_trace_free(struct npukit_trace *trace);

/* Trace until no process is left; to be called by the thread that is to be the tracer, once.
 * 0 or -errno: what kept it from beginning.
 *
 * launch: run a program. It is killed if the tracer dies: without one, the filter that picks its
 * requests out would have them all answered ENOSYS. attach: all threads of a running process, and
 * what they start; it goes on untouched when the tracer ends or dies. */
int npukit_trace_launch(struct npukit_trace *trace, char *const *argv);
int npukit_trace_attach(struct npukit_trace *trace, int pid);

/* The wait status of the program that was launched. */
int npukit_trace_status(const struct npukit_trace *trace);
/* Why the program could not be run: errno, 0: it was. */
int npukit_trace_exec_error(const struct npukit_trace *trace);
/* The program's process; 0 before it is there, and when it has ended. */
int npukit_trace_pid(const struct npukit_trace *trace);

/* For the thread that takes events. */
/* A descriptor that becomes readable when there are some, and at the end. */
int npukit_trace_ready(const struct npukit_trace *trace);
/* All events that are there, to be freed with free(); NULL: none now. */
struct npukit_trace_event *npukit_trace_take(struct npukit_trace *trace);
/* Which driver serves a device; the driver is 0 until this is told. */
void npukit_trace_serves(struct npukit_trace *trace, uint64_t rdev, uint32_t driver);
/* The event that the program waits for was seen. */
void npukit_trace_go_on(struct npukit_trace *trace);
/* From now on nobody takes events: none are made. */
void npukit_trace_ignore(struct npukit_trace *trace);
/* Have the tracer let go of all that it traces, and interrupt its thread (a signal) until it has. What
 * was launched, and what that has started, is killed: it cannot go on without a tracer. */
void npukit_trace_let_go(struct npukit_trace *trace);

#endif
