/* Two processes share a buffer: one writes, the other one doubles each number in place, and nothing is copied between them.
 * On a GPU or, where there is none, on the CPU as a device.
 *
 *   cc sharing.c $(pkg-config --cflags --libs millpond) -o sharing && ./sharing
 */
#define _POSIX_C_SOURCE 200809L
#include <millpond.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { COUNT = 1 << 20 };

/* What a call answers is checked, and the library's message tells what to do. */
static void check(millpond_status status) {
    if (status != MILLPOND_STATUS_OK) {
        fprintf(stderr, "%s\n", millpond_last_error());
        exit(1);
    }
}

static void open_device(millpond_context **device, millpond_stream **stream) {
    if (millpond_context_cuda(0, device) != MILLPOND_STATUS_OK) {
        check(millpond_context_host(device));
    }
    check(millpond_stream_create(*device, stream));
}

/* One byte is enough to tell the other process that its turn has come. */
static void say(int socket) {
    if (write(socket, "", 1) != 1) exit(1);
}

static void hear(int socket) {
    char byte;
    if (read(socket, &byte, 1) != 1) exit(1);
}

/* Opens what the other process shares, and doubles each number. */
static int other_process(int socket) {
    static uint32_t numbers[COUNT];
    millpond_context *device;
    millpond_stream *stream;
    millpond_shared *shared;
    void *block;
    size_t bytes;

    open_device(&device, &stream);
    check(millpond_shared_receive(device, socket, stream, &block, &bytes, &shared));
    if (bytes != sizeof numbers) return 1;
    check(millpond_copy_to_host(device, numbers, block, bytes, stream));
    for (size_t at = 0; at < COUNT; ++at) numbers[at] *= 2;
    check(millpond_copy_from_host(device, block, numbers, bytes, stream));
    check(millpond_shared_record(shared, stream)); /* the host does not wait for the copy */
    say(socket);

    check(millpond_context_free(device, block, stream));
    check(millpond_shared_release(shared));
    hear(socket); /* the other process has waited for the event, which is gone with this one */
    check(millpond_stream_release(stream));
    check(millpond_context_release(device));
    return 0;
}

int main(void) {
    static uint32_t numbers[COUNT];
    int sockets[2], status;
    millpond_context *device;
    millpond_pool *pool;
    millpond_stream *stream;
    millpond_shared *shared;
    void *block;
    size_t wrong = 0;

    /* Before anything else: a GPU cannot be used after a fork. */
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0) return 1;
    pid_t child = fork();
    if (child < 0) return 1;
    if (child == 0) {
        close(sockets[0]);
        return other_process(sockets[1]);
    }
    close(sockets[1]);

    open_device(&device, &stream);
    check(millpond_pool_create(device, NULL, &pool));
    check(millpond_alloc(pool, sizeof numbers, stream, &block));
    for (size_t at = 0; at < COUNT; ++at) numbers[at] = (uint32_t)at;
    check(millpond_copy_from_host(device, block, numbers, sizeof numbers, stream));
    check(millpond_share(pool, block, stream, &shared)); /* after the copy, for which the host does not wait */
    check(millpond_shared_send(shared, sockets[0]));

    hear(sockets[0]);
    check(millpond_shared_wait(shared, stream)); /* for the other process's copy */
    check(millpond_copy_to_host(device, numbers, block, sizeof numbers, stream));
    for (size_t at = 0; at < COUNT; ++at) wrong += numbers[at] != (uint32_t)(2 * at);
    printf("%d numbers, %zu of them wrong\n", COUNT, wrong);
    say(sockets[0]);

    check(millpond_shared_release(shared));
    check(millpond_free(pool, block, stream));
    check(millpond_pool_release(pool));
    check(millpond_stream_release(stream));
    check(millpond_context_release(device));
    if (waitpid(child, &status, 0) != child) return 1;
    return wrong != 0 || status != 0;
}
