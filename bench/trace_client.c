/* SPDX-License-Identifier: MIT */
/* For each line on standard input, many system calls of one kind on /dev/null. i: a DRM driver's
 * request of 24 bytes in and out, answered ENOTTY; p: getppid, in which no tracer of ioctls is
 * interested. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(void)
{
    char line[64];
    uint64_t words[3] = {1, 2, 3};
    int fd = open("/dev/null", O_RDWR);
    while (fgets(line, sizeof(line), stdin)) {
        long count = atol(line + 1);
        for (long i = 0; i < count; i++)
            if (line[0] == 'i')
                ioctl(fd, _IOC(3, 'd', 0x40, 24), words);
            else
                syscall(SYS_getppid);
        puts("done");
        fflush(stdout);
    }
    return 0;
}
