/* SPDX-License-Identifier: MIT */
/* usage: seccomp_bare [-f] PROGRAM ARGS...: the least that a supervisor does. It reads the argument
 * of every trapped ioctl and writes it back; it does not look which file the request is for. With -f
 * it does, as a supervisor of more than one file must. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "seccomp.h"

int main(int argc, char **argv)
{
    int listener_number[2], taken[2];
    int finds = argc > 1 && strcmp(argv[1], "-f") == 0;
    argv += finds;
    argc -= finds;
    if (argc < 2 || pipe(listener_number) < 0 || pipe(taken) < 0)
        return 1;
    pid_t pid = fork();
    if (pid == 0) {
        int listener = npukit_seccomp_trap(0, 0);
        if (listener < 0 || write(listener_number[1], &listener, sizeof(listener)) < 0)
            _exit(125);
        if (read(taken[0], argv[0], 1) != 1)
            _exit(125);
        fcntl(listener, F_SETFD, FD_CLOEXEC);
        execvp(argv[1], argv + 1);
        _exit(127);
    }
    int number, listener;
    if (read(listener_number[0], &number, sizeof(number)) != sizeof(number))
        return 125;
    int pidfd = (int)syscall(__NR_pidfd_open, pid, 0);
    listener = npukit_pidfd_take(pidfd, number);
    if (write(taken[1], "!", 1) != 1)
        return 125;
    npukit_seccomp_sync_wake_up(listener);
    while (!npukit_seccomp_over(listener)) {
        struct npukit_call call;
        if (npukit_seccomp_receive(listener, &call) < 0)
            continue;
        if (call.nr != __NR_ioctl) {
            npukit_seccomp_continue(listener, call.id);
            continue;
        }
        char data[24];
        for (;;) {
            if (finds && npukit_pidfd_position(pidfd, (int)call.args[0]) < 0)
                break;
            struct iovec here = {data, sizeof(data)};
            struct iovec there = {(void *)call.args[2], sizeof(data)};
            ssize_t got = process_vm_readv(call.pid, &here, 1, &there, 1, 0);
            if (got == sizeof(data))
                process_vm_writev(call.pid, &here, 1, &there, 1, 0);
            npukit_seccomp_answer(listener, call.id, 0, got == sizeof(data) ? 0 : -EFAULT);
            if (npukit_seccomp_receive(listener, &call) < 0 || call.nr != __NR_ioctl)
                break;
        }
        npukit_seccomp_continue(listener, call.id);
    }
    waitpid(pid, NULL, 0);
    return 0;
}
