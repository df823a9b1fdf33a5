/* SPDX-License-Identifier: MIT */
/* usage: opens NODE [plain]: all the ways to open a node by its path, "plain" where no other path than
 * its own is known; and what is refused. */
#include "uapi.h"

#include <libgen.h>
#include <sys/syscall.h>

/* A file of its own: its first buffer has handle 1. */
static void is_device(int fd)
{
    struct rocket_create_bo create = {.size = 4096};
    CHECK(fd >= 0 && request(fd, ROCKET_CREATE_BO, &create) == 0 && create.handle == 1);
    close(fd);
}

static void is_stream(FILE *stream)
{
    CHECK(stream);
    is_device(dup(fileno(stream)));
    fclose(stream);
}

static int fails(const char *path, int flags)
{
    int fd = open(path, flags, 0600);
    CHECK(fd < 0);
    return errno;
}

/* What may be mapped is the open file's to say. */
static int maps(const char *node, int access, int prot)
{
    int fd = open(node, access);
    struct rocket_create_bo create = {.size = 4096};
    CHECK(fd >= 0 && request(fd, ROCKET_CREATE_BO, &create) == 0);
    void *memory = mmap(NULL, 4096, prot, MAP_SHARED, fd, (off_t)create.offset);
    int code = memory == MAP_FAILED ? errno : 0;
    close(fd);
    return code;
}

int main(int argc, char **argv)
{
    CHECK(argc >= 2);
    const char *node = argv[1];
    char copy[256], odd[256];
    strcpy(copy, node);
    const char *base = basename(copy), *folder = dirname(copy);

    is_device(open(node, O_RDWR));
    is_device(open64(node, O_RDWR));
    is_device(openat(AT_FDCWD, node, O_RDWR));
    is_device(openat64(AT_FDCWD, node, O_RDWR));
    is_device(creat(node, 0600));
    is_device(creat64(node, 0600));
    is_device(open(node, O_RDWR | O_CREAT | O_TRUNC, 0600));
    is_stream(fopen(node, "r+"));
    is_stream(fopen64(node, "rb+e"));
    is_device((int)syscall(SYS_openat, AT_FDCWD, node, O_RDWR));
#ifdef SYS_open
    is_device((int)syscall(SYS_open, node, O_RDWR));
#endif
    CHECK(maps(node, O_RDWR, PROT_READ | PROT_WRITE) == 0);
    CHECK(maps(node, O_RDONLY, PROT_READ) == 0);
    CHECK(maps(node, O_RDONLY, PROT_READ | PROT_WRITE) == EACCES);
    CHECK(maps(node, O_WRONLY, PROT_WRITE) == EACCES);
    CHECK(fails(node, O_RDWR | O_CREAT | O_EXCL) == EEXIST);
    CHECK(fails(node, O_RDWR | O_DIRECTORY) == ENOTDIR);
    CHECK(!fopen(node, "w+x") && errno == EEXIST);
    CHECK(!fopen("/dev/accel/none", "r") && errno == ENOENT);
    snprintf(odd, sizeof(odd), "%s/none/../nothing", folder);
    CHECK(fails(odd, O_RDWR) == ENOENT);

    if (argc == 2) {
        snprintf(odd, sizeof(odd), "%s//./%s", folder, base);
        is_device(open(odd, O_RDWR));
        snprintf(odd, sizeof(odd), "%s/../%s/%s", folder, strrchr(folder, '/') + 1, base);
        is_device(open(odd, O_RDWR));
        CHECK(chdir("/dev") == 0);
        is_device(open(node + strlen("/dev/"), O_RDWR));
        snprintf(odd, sizeof(odd), "./%s", node + strlen("/dev/"));
        is_device(open(odd, O_RDWR));
        snprintf(odd, sizeof(odd), "../dev//%s", node + strlen("/dev/"));
        is_device(open(odd, O_RDWR));
    }
    puts("equal");
    return 0;
}
