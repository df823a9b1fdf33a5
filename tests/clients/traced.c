/* SPDX-License-Identifier: MIT */
/* usage: traced HOW [ARGUMENT]: requests on /dev/null, numbered by their size field from 1 on, made
 * in ways that are hard to follow. Prints "done" and exits with 7. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

struct create {
    uint32_t size, handle;
    uint64_t address, offset;
};

static int fd;

static void ask(int on, uint32_t size)
{
    struct create create = {.size = size};
    if (ioctl(on, _IOWR('d', 0x40, struct create), &create) != -1 || errno != ENOTTY) {
        perror("ioctl");
        _exit(1);
    }
}

static void *in_thread(void *number)
{
    ask(fd, (uint32_t)(uintptr_t)number);
    return NULL;
}

static void *in_loop(void *number)
{
    for (;;)
        ask(fd, (uint32_t)(uintptr_t)number);
    return NULL;
}

static char **arguments;

static void *executes(void *unused)
{
    (void)unused;
    execl(arguments[0], arguments[0], "second", NULL);
    _exit(1);
}

static void wait_for(pid_t child)
{
    int status;
    if (waitpid(child, &status, __WALL) != child || status != 0)
        exit(1);
}

static atomic_int ticks;

static void on_tick(int number)
{
    (void)number;
    ticks++;
}

static int killed(int count)
{
    srand(1);
    for (int i = 0; i < count; i++) {
        pid_t child = fork();
        if (child == 0) {
            pthread_t thread;
            for (uintptr_t n = 1; n < 4; n++)
                pthread_create(&thread, NULL, in_loop, (void *)n);
            in_loop((void *)9);
        }
        usleep((useconds_t)(rand() % 4000));
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        ask(fd, 1000 + (uint32_t)i);
    }
    return 0;
}

static int signals(void)
{
    struct itimerval timer = {{0, 1000}, {0, 1000}};
    struct sigaction action = {.sa_handler = on_tick};
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &timer, NULL);
    uint32_t number = 0;
    while (number < 200 || ticks < 20) {
        if (number < 200)
            ask(fd, ++number);
    }
    memset(&timer, 0, sizeof(timer));
    setitimer(ITIMER_REAL, &timer, NULL);
    /* Job control: a child that is stopped stays so, and is seen to. */
    pid_t child = fork();
    if (child == 0) {
        for (;;)
            usleep(1000);
    }
    int status;
    kill(child, SIGSTOP);
    if (waitpid(child, &status, WUNTRACED) != child || !WIFSTOPPED(status))
        return 1;
    while (number < 300)
        ask(fd, ++number);
    kill(child, SIGCONT);
    if (waitpid(child, &status, WCONTINUED) != child || !WIFCONTINUED(status))
        return 1;
    kill(child, SIGKILL);
    return waitpid(child, &status, 0) != child || !WIFSIGNALED(status);
}

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "";
    pthread_t threads[200];
    pid_t child;
    fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    arguments = argv;
    if (!strcmp(how, "second")) {
        ask(fd, 2);
        puts("done");
        return 7;
    }
    if (!strcmp(how, "steps")) {
        char line[64];
        while (fgets(line, sizeof(line), stdin)) {
            ask(fd, (uint32_t)atoi(line));
            puts("done");
            fflush(stdout);
        }
        return 7;
    }
    if (!strcmp(how, "killed")) {
        if (killed(atoi(argv[2])))
            return 1;
        puts("done");
        return 7;
    }
    if (!strcmp(how, "signals")) {
        if (signals())
            return 1;
        puts("done");
        return 7;
    }
    ask(fd, 1);
    if (!strcmp(how, "fork")) {
        child = fork();
        if (child == 0) {
            ask(fd, 2);
            _exit(0);
        }
        wait_for(child);
    } else if (!strcmp(how, "vfork")) {
        child = vfork();
        if (child == 0) {
            ask(fd, 2);
            _exit(0);
        }
        wait_for(child);
    } else if (!strcmp(how, "exec")) {
        executes(NULL);
    } else if (!strcmp(how, "exec-thread")) {
        pthread_create(threads, NULL, executes, NULL);
        for (;;)
            pause();
    } else if (!strcmp(how, "threads")) {
        for (uintptr_t i = 0; i < 200; i++)
            if (pthread_create(&threads[i], NULL, in_thread, (void *)(i + 2)))
                return 1;
        for (int i = 0; i < 200; i++)
            pthread_join(threads[i], NULL);
    } else if (!strcmp(how, "dup")) {
        ask(dup(fd), 2);
    } else if (!strcmp(how, "close")) {
        close(fd);
        fd = open("/dev/null", O_RDWR);
        ask(fd, 2);
    } else if (!strcmp(how, "untraced")) {
        child = (pid_t)syscall(SYS_clone, CLONE_UNTRACED | SIGCHLD, 0, 0, 0, 0);
        if (child == 0) {
            ask(fd, 2);
            _exit(0);
        }
        wait_for(child);
    } else if (!strcmp(how, "untraced3")) {
        /* Where no one may write. */
        static const struct clone_args args = {.flags = CLONE_UNTRACED, .exit_signal = SIGCHLD};
        child = (pid_t)syscall(SYS_clone3, &args, sizeof(args));
        if (child == 0) {
            ask(fd, 2);
            _exit(0);
        }
        wait_for(child);
    } else if (!strcmp(how, "anonymous")) {
        /* The descriptor of such a mapping means nothing. */
        mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, fd, (off_t)1 << 32);
        ask(fd, 2);
    } else {
        return 2;
    }
    puts("done");
    return 7;
}
