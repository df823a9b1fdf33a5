/* SPDX-License-Identifier: MIT */
/* usage: signals NODE JOB RKNPU_NODE RKNPU_JOB: requests under a 1 ms interval timer, with and
 * without SA_RESTART; signals to a thread that another one is to take; and SIGSTOP. */
#include "uapi.h"

#include <pthread.h>
#include <sys/time.h>

static volatile sig_atomic_t alarms;

static void on_alarm(int number)
{
    (void)number;
    alarms++;
}

static void handle(int number, int flags)
{
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = flags};
    CHECK(sigaction(number, &action, NULL) == 0);
}

static void tick(long microseconds)
{
    struct itimerval timer = {
        .it_interval = {.tv_usec = microseconds}, .it_value = {.tv_usec = microseconds}};
    CHECK(setitimer(ITIMER_REAL, &timer, NULL) == 0);
}

/* The address of each new buffer shows how often the request was carried out. */
static void requests_run_once(const char *node)
{
    int fd = open_node(node);
    for (uint64_t i = 0; i < 300; i++) {
        struct rocket_create_bo create = {.size = 4096};
        CHECK(request(fd, ROCKET_CREATE_BO, &create) == 0);
        CHECK(create.handle == i + 1 && create.dma_address == i * 4096);
    }
    struct buffer buffer = rocket_buffer(fd, 4096);
    for (int i = 0; i < 100; i++)
        map_export(fd, &buffer);
    close(fd);
}

/* A job whose last command is missing hangs until the driver gives it up, after 500 ms. */
static struct buffer hang(int fd, const struct job *job)
{
    struct buffer buffer = rocket_buffer(fd, JOB_BYTES);
    memcpy(buffer.memory, job->image, JOB_BYTES);
    memset(buffer.memory + job->regcmd + 8 * 107, 0, 8);
    CHECK(rocket_start(fd, job, &buffer) == 0);
    return buffer;
}

static void waits_restart(const char *node, const struct job *job)
{
    int fd = open_node(node);
    struct buffer buffer = hang(fd, job);
    sig_atomic_t before = alarms;
    CHECK(rocket_wait(fd, &buffer, 20) == 0);
    CHECK(alarms > before + 10);
    close(fd);
}

static void waits_end(const char *node, const struct job *job)
{
    int fd = open_node(node), interrupted = 0;
    struct buffer buffer = hang(fd, job);
    while (rocket_wait(fd, &buffer, 20) < 0) {
        CHECK(errno == EINTR);
        interrupted++;
    }
    CHECK(interrupted > 10);
    close(fd);
}

static void submits_do_not_end(const char *node, const struct job *job)
{
    int fd = open_node(node);
    struct buffer buffer = rknpu_buffer(fd, JOB_BYTES, 0);
    struct buffer table = rknpu_buffer(fd, 4096, RKNPU_KERNEL_MAPPING);
    memcpy(buffer.memory, job->image, JOB_BYTES);
    for (int i = 0; i < 10; i++) {
        struct rknpu_submit submit = rknpu_request(job, &buffer, &table);
        CHECK(request(fd, RKNPU_SUBMIT, &submit) == 0);
    }
    memset(buffer.memory + job->regcmd + 8 * 107, 0, 8);
    struct rknpu_submit submit = rknpu_request(job, &buffer, &table);
    submit.timeout = 50;
    sig_atomic_t before = alarms;
    CHECK(request(fd, RKNPU_SUBMIT, &submit) == -1 && errno == ETIMEDOUT);
    CHECK(alarms > before);
    close(fd);
}

struct waiter {
    int fd, result, error;
    struct buffer buffer;
};

static void *wait_in_thread(void *argument)
{
    struct waiter *waiter = argument;
    waiter->result = rocket_wait(waiter->fd, &waiter->buffer, 20);
    waiter->error = errno;
    return NULL;
}

/* The kernel gives a signal of the process to the main thread, and the wait goes on. */
static void others_take_it(const char *node, const struct job *job)
{
    struct waiter waiter = {.fd = open_node(node)};
    pthread_t thread;
    waiter.buffer = hang(waiter.fd, job);
    CHECK(pthread_create(&thread, NULL, wait_in_thread, &waiter) == 0);
    for (int i = 0; i < 20; i++) {
        usleep(2000);
        CHECK(kill(getpid(), SIGUSR1) == 0);
    }
    CHECK(pthread_join(thread, NULL) == 0 && waiter.result == 0);
    close(waiter.fd);
}

/* One for the thread itself ends it. */
static void its_own_ends_it(const char *node, const struct job *job)
{
    struct waiter waiter = {.fd = open_node(node)};
    pthread_t thread;
    waiter.buffer = hang(waiter.fd, job);
    CHECK(pthread_create(&thread, NULL, wait_in_thread, &waiter) == 0);
    usleep(50000);
    CHECK(pthread_kill(thread, SIGUSR1) == 0);
    CHECK(pthread_join(thread, NULL) == 0 && waiter.result == -1 && waiter.error == EINTR);
    CHECK(rocket_wait(waiter.fd, &waiter.buffer, 20) == 0);
    close(waiter.fd);
}

static void *map_exports(void *node)
{
    int fd = open_node(node);
    struct buffer buffer = rocket_buffer(fd, 4096);
    for (int i = 0; i < 100; i++)
        map_export(fd, &buffer);
    close(fd);
    return NULL;
}

/* Whatever a process is in when it is stopped, it goes on with that when it is let go. */
static void stops(char *node)
{
    int status;
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        pthread_t threads[2];
        for (int i = 0; i < 2; i++)
            CHECK(pthread_create(&threads[i], NULL, map_exports, node) == 0);
        for (int i = 0; i < 2; i++)
            CHECK(pthread_join(threads[i], NULL) == 0);
        _exit(0);
    }
    do {
        usleep((useconds_t)(rand() % 2000));
        kill(pid, SIGSTOP);
        usleep((useconds_t)(rand() % 1000));
        kill(pid, SIGCONT);
    } while (waitpid(pid, &status, WNOHANG) == 0);
    CHECK(status == 0);
}

int main(int argc, char **argv)
{
    static struct job job, rknpu_job;
    CHECK(argc == 5);
    load(&job, argv[2]);
    load(&rknpu_job, argv[4]);
    handle(SIGALRM, SA_RESTART);
    tick(1000);
    requests_run_once(argv[1]);
    waits_restart(argv[1], &job);
    handle(SIGALRM, 0);
    requests_run_once(argv[1]);
    waits_end(argv[1], &job);
    submits_do_not_end(argv[3], &rknpu_job);
    tick(0);
    handle(SIGUSR1, 0);
    others_take_it(argv[1], &job);
    its_own_ends_it(argv[1], &job);
    stops(argv[1]);
    puts("equal");
    return 0;
}
