// Stops threads at two calls, for tests of what other threads do meanwhile. `test_offers.py` preloads it.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <unistd.h>

// Whether the next socket that gets a name is followed by a fork on another thread.
atomic_int forks_at_bind;
// Whether threads stop before they send a single 0, and whether one has.
atomic_int holds_sends;
atomic_int is_held;

static pthread_t forking;
static atomic_int child;

static void* fork_once(void* unused) {
  (void)unused;
  int pid = fork();
  if (pid == 0) {
    for (;;) {
      pause();
    }
  }
  child = pid;
  return NULL;
}

// The process that was forked, once it is there.
int forked(void) {
  pthread_join(forking, NULL);
  return child;
}

int bind(int socket, const struct sockaddr* address, socklen_t length) {
  int (*real)(int, const struct sockaddr*, socklen_t) = dlsym(RTLD_NEXT, "bind");
  int result = real(socket, address, length);
  if (atomic_exchange(&forks_at_bind, 0)) {
    pthread_create(&forking, NULL, fork_once, NULL);
    // Half a second: where forks wait for this call, none comes.
    for (int wait = 0; wait < 50 && child == 0; ++wait) {
      usleep(10000);
    }
  }
  return result;
}

static void hold(const void* bytes, size_t length) {
  if (length == 1 && *(const char*)bytes == 0) {
    while (holds_sends) {
      is_held = 1;
      usleep(1000);
    }
  }
}

ssize_t write(int file, const void* bytes, size_t length) {
  ssize_t (*real)(int, const void*, size_t) = dlsym(RTLD_NEXT, "write");
  hold(bytes, length);
  return real(file, bytes, length);
}

ssize_t send(int socket, const void* bytes, size_t length, int flags) {
  ssize_t (*real)(int, const void*, size_t, int) = dlsym(RTLD_NEXT, "send");
  hold(bytes, length);
  return real(socket, bytes, length, flags);
}
