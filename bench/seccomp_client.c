/* SPDX-License-Identifier: MIT */
/* usage: seccomp_client [-a] [NODE]: for each line on standard input, many ioctls of one kind.
 * -a: under the least filter that looks at a request, and allows all.
 * e: 24 bytes in and out; a: an rknpu action; u: FIONREAD on a pipe, which no filter traps. */
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <unistd.h>

static int allow_all(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0xffffffff, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof(code) / sizeof(*code), code};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) < 0;
}

int main(int argc, char **argv)
{
    char line[64];
    if (argc > 1 && strcmp(argv[1], "-a") == 0) {
        if (allow_all())
            return 1;
        argc--;
        argv++;
    }
    int pair[2], fd = argc > 1 ? open(argv[1], O_RDWR) : -1;
    uint64_t words[3] = {1, 2, 3};
    uint32_t action[2] = {1, 0};
    if (pipe(pair) < 0 || (argc > 1 && fd < 0))
        return 1;
    while (fgets(line, sizeof(line), stdin)) {
        long count = atol(line + 1);
        for (long i = 0; i < count; i++) {
            int bytes, result = -1;
            if (line[0] == 'e')
                result = ioctl(fd, _IOC(3, 'd', 0x40, 24), words);
            else if (line[0] == 'a')
                result = ioctl(fd, _IOC(3, 'd', 0x40, 8), action);
            else
                result = ioctl(pair[0], FIONREAD, &bytes);
            if (result < 0) {
                perror("ioctl");
                return 1;
            }
        }
        puts("done");
        fflush(stdout);
    }
    return 0;
}
