/* SPDX-License-Identifier: MIT */
/* usage: seccomp_client [NODE]: for each line on standard input, many ioctls of one kind.
 * e: 24 bytes in and out; a: an rknpu action; u: FIONREAD on a pipe, which no filter traps. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    char line[64];
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
