/* SPDX-License-Identifier: MIT
 *
 * A FastRPC program that knows nothing of npukit: the kernel's header and nothing else.
 *
 * usage: fastrpc_client          try every request, print "ok"
 *        fastrpc_client loop     for each number read, make so many calls of three buffers
 */

#include <errno.h>
#include <fcntl.h>
#include <misc/fastrpc.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#define CHECK(condition)                                                                          \
    do {                                                                                          \
        if (!(condition)) {                                                                       \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, #condition, strerror(errno));          \
            exit(1);                                                                              \
        }                                                                                         \
    } while (0)

enum { ECHO = 2, TRANSFORM = 3, TRANSFORM_MAPPED = 4, FAIL = 10, HANG = 12 };

static int fd;
static size_t page;

static int invoke(uint32_t handle, uint32_t method, int ins, int outs,
                  struct fastrpc_invoke_args *args)
{
    struct fastrpc_invoke call = {
        .handle = handle,
        .sc = method << 24 | (uint32_t)ins << 16 | (uint32_t)outs << 8,
        .args = (uintptr_t)args,
    };
    return ioctl(fd, FASTRPC_IOCTL_INVOKE, &call);
}

static struct fastrpc_invoke_args copied(void *data, size_t length)
{
    return (struct fastrpc_invoke_args){.ptr = (uintptr_t)data, .length = length, .fd = -1};
}

static uint32_t open_module(const char *uri)
{
    uint32_t lengths[2] = {(uint32_t)strlen(uri) + 1, 255}, answer[2] = {0, 0};
    char text[255];
    struct fastrpc_invoke_args args[] = {
        copied(lengths, sizeof lengths),
        copied((void *)uri, lengths[0]),
        copied(answer, sizeof answer),
        copied(text, sizeof text),
    };
    CHECK(invoke(0, 0, 2, 2, args) == 0);
    CHECK(answer[1] == 0);
    return answer[0];
}

static int echo(uint32_t module, char *data, char *copy, uint32_t length)
{
    uint32_t lengths[2] = {length, length};
    struct fastrpc_invoke_args args[] = {
        copied(lengths, sizeof lengths),
        copied(data, length),
        copied(copy, length),
    };
    return invoke(module, ECHO, 2, 1, args);
}

static void start(void)
{
    struct fastrpc_ioctl_capability capability = {.attribute_id = 6};
    CHECK(ioctl(fd, FASTRPC_IOCTL_GET_DSP_INFO, &capability) == 0);
    CHECK((capability.capability & 0xff) == 0x73);

    struct fastrpc_alloc_dma_buf buffer = {.size = page};
    CHECK(ioctl(fd, FASTRPC_IOCTL_ALLOC_DMA_BUFF, &buffer) == 0);
    unsigned char *shell = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_SHARED, buffer.fd, 0);
    CHECK(shell != MAP_FAILED);
    memcpy(shell, "\177ELF", 4);
    shell[18] = 164;
    struct fastrpc_init_create create = {
        .filelen = 100,
        .filefd = buffer.fd,
        .attrs = 1 << 3,
        .file = (uintptr_t)shell,
    };
    CHECK(ioctl(fd, FASTRPC_IOCTL_INIT_CREATE, &create) == 0);
    munmap(shell, page);
    close(buffer.fd);
}

static void shared_memory(uint32_t module)
{
    struct fastrpc_alloc_dma_buf buffer = {.size = 2 * page};
    CHECK(ioctl(fd, FASTRPC_IOCTL_ALLOC_DMA_BUFF, &buffer) == 0);
    char *memory = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_SHARED, buffer.fd, 0);
    CHECK(memory != MAP_FAILED);
    memset(memory, 5, 2 * page);

    /* The primitives in IDL order: length, key, capacity. */
    unsigned char primitives[12] = {100, 0, 0, 0, 3, 0, 0, 0, 100};
    struct fastrpc_invoke_args args[] = {
        copied(primitives, sizeof primitives),
        {.ptr = (uintptr_t)memory + 50, .length = 100, .fd = buffer.fd},
        {.ptr = (uintptr_t)memory + page, .length = 100, .fd = buffer.fd},
    };
    CHECK(invoke(module, TRANSFORM, 2, 1, args) == 0);
    CHECK(memory[page] == 6 && memory[page + 99] == 6 && memory[page + 100] == 5);

    struct fastrpc_mem_map map = {.fd = buffer.fd, .flags = FASTRPC_MAP_FD, .length = 2 * page};
    CHECK(ioctl(fd, FASTRPC_IOCTL_MEM_MAP, &map) == 0);
    CHECK(map.vaddrout != 0);
    struct {
        uint64_t address;
        uint32_t length;
        uint8_t key;
    } where = {map.vaddrout + page, 100, 6};
    struct fastrpc_invoke_args one = copied(&where, 13);
    CHECK(invoke(module, TRANSFORM_MAPPED, 1, 0, &one) == 0);
    CHECK(memory[page] == 0 && memory[page + 99] == 0 && memory[page + 100] == 5);
    struct fastrpc_mem_unmap unmap = {.fd = buffer.fd, .vaddr = map.vaddrout};
    CHECK(ioctl(fd, FASTRPC_IOCTL_MEM_UNMAP, &unmap) == 0);
    CHECK(ioctl(fd, FASTRPC_IOCTL_MEM_UNMAP, &unmap) == -1 && errno == EINVAL);

    CHECK(ioctl(fd, FASTRPC_IOCTL_FREE_DMA_BUFF, &buffer.fd) == -1 && errno == ENOTTY);
    munmap(memory, 2 * page);
    close(buffer.fd);
}

static void on_alarm(int number)
{
    (void)number;
}

static void results(uint32_t module)
{
    int32_t code = 0x27;
    struct fastrpc_invoke_args one = copied(&code, sizeof code);
    CHECK(invoke(module, FAIL, 1, 0, &one) == 0x27);
    code = (int32_t)0x80000406;
    CHECK(invoke(module, FAIL, 1, 0, &one) == (int32_t)0x80000406);
    code = -1;
    CHECK(invoke(module, FAIL, 1, 0, &one) == -1 && errno == EPERM);
    CHECK(invoke(1, 0, 0, 0, NULL) == -1 && errno == EPERM);
    CHECK(ioctl(fd, FASTRPC_IOCTL_INVOKE, (void *)8) == -1 && errno == EFAULT);
    one.ptr = 8;
    CHECK(invoke(module, FAIL, 1, 0, &one) == -1 && errno == EFAULT);
}

static void interrupted(uint32_t module)
{
    struct sigaction action = {.sa_handler = on_alarm};
    sigaction(SIGALRM, &action, NULL);
    alarm(1);
    CHECK(invoke(module, HANG, 0, 0, NULL) == -1 && errno == EINTR);
}

int main(int argc, char **argv)
{
    page = (size_t)sysconf(_SC_PAGESIZE);
    fd = open("/dev/fastrpc-cdsp-secure", O_RDWR | O_CLOEXEC);
    CHECK(fd >= 0);
    start();
    uint32_t module = open_module("file:///libecho_skel.so?echo_skel_handle_invoke&_modver=1.0");
    char data[16] = "0123456789abcde", copy[16];
    CHECK(echo(module, data, copy, 16) == 0 && memcmp(data, copy, 16) == 0);
    if (argc > 1 && strcmp(argv[1], "loop") == 0) {
        int count;
        puts("ready");
        fflush(stdout);
        while (scanf("%d", &count) == 1) {
            while (count-- > 0)
                CHECK(echo(module, data, copy, 16) == 0);
            puts("done");
            fflush(stdout);
        }
        return 0;
    }
    shared_memory(module);
    results(module);
    interrupted(module);
    CHECK(close(fd) == 0);
    puts("ok");
    return 0;
}
