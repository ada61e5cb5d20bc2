/* When XNNPACK's operators ran, by a clock of its own: gcc -shared -fPIC -O2 -o clock.so scaling_truth.c -ldl
 *
 * Preload it into a process that runs a .pte with executorch 1.5.1 on Linux and name a directory in OPSCOPE_CLOCK.
 * Every operator computes by calling pthreadpool_parallelize_*, which libexecutorch_backend_xnnpack calls through the
 * PLT, so the functions below are called in their place: begin and end of each call are kept, in ns. Where events are
 * traced XNNPACK asks for the time between its operators; such a question is kept as a pair of equal numbers, which
 * tells how many calls an operator makes. At the end the pairs are written to DIRECTORY/PID, as 64-bit integers.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define BACKEND "libexecutorch_backend_xnnpack"
#define MOST (1 << 22)

static int64_t (*pairs)[2];
static size_t count;
static uintptr_t first, last;

/* The C library's own, which enters no kernel. */
static int ask(clockid_t clock, struct timespec *time) {
  static int (*original)(clockid_t, struct timespec *);
  if (original == NULL) original = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
  return original(clock, time);
}

static int64_t now(void) {
  struct timespec time;
  ask(CLOCK_MONOTONIC, &time);
  return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static void keep(int64_t begin, int64_t end) {
  if (pairs == NULL) pairs = malloc(sizeof(*pairs) * MOST);
  if (pairs == NULL || count == MOST) return;
  pairs[count][0] = begin;
  pairs[count++][1] = end;
}

static int find_backend(struct dl_phdr_info *library, size_t size, void *unused) {
  (void)size;
  (void)unused;
  if (strstr(library->dlpi_name, BACKEND) == NULL) return 0;
  first = library->dlpi_addr;
  for (int i = 0; i < library->dlpi_phnum; i++) {
    uintptr_t end = library->dlpi_addr + library->dlpi_phdr[i].p_vaddr + library->dlpi_phdr[i].p_memsz;
    if (end > last) last = end;
  }
  return 1;
}

/* XNNPACK asks through the PLT, too; everybody else only gets the answer. */
int clock_gettime(clockid_t clock, struct timespec *time) {
  uintptr_t caller = (uintptr_t)__builtin_return_address(0);
  if (caller >= first && caller < last) {
    int64_t moment = now();
    keep(moment, moment);
  }
  return ask(clock, time);
}

typedef void (*function)(long, long, long, long, long, long, long, long, long, long, long, long, long, long);

static void called(function original, const long *a) {
  if (last == 0) dl_iterate_phdr(find_backend, NULL);
  int64_t begin = now();
  original(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11], a[12], a[13]);
  keep(begin, now());
}

/* All take whole numbers and pointers, twelve at most; what lies behind them on the stack is handed on and not read. */
#define WRAP(name)                                                                                             \
  void name(long a, long b, long c, long d, long e, long f, long g, long h, long i, long j, long k, long l,    \
            long m, long n) {                                                                                  \
    static function original;                                                                                  \
    if (original == NULL) original = (function)dlsym(RTLD_NEXT, #name);                                        \
    const long arguments[] = {a, b, c, d, e, f, g, h, i, j, k, l, m, n};                                       \
    called(original, arguments);                                                                               \
  }

WRAP(pthreadpool_parallelize_1d)
WRAP(pthreadpool_parallelize_1d_tile_1d)
WRAP(pthreadpool_parallelize_1d_tile_1d_dynamic)
WRAP(pthreadpool_parallelize_1d_tile_1d_dynamic_with_thread)
WRAP(pthreadpool_parallelize_1d_with_thread)
WRAP(pthreadpool_parallelize_2d)
WRAP(pthreadpool_parallelize_2d_tile_1d)
WRAP(pthreadpool_parallelize_2d_tile_1d_dynamic)
WRAP(pthreadpool_parallelize_2d_tile_1d_dynamic_with_thread)
WRAP(pthreadpool_parallelize_2d_tile_2d)
WRAP(pthreadpool_parallelize_2d_tile_2d_dynamic)
WRAP(pthreadpool_parallelize_2d_tile_2d_dynamic_with_thread)
WRAP(pthreadpool_parallelize_2d_with_thread)
WRAP(pthreadpool_parallelize_3d)
WRAP(pthreadpool_parallelize_3d_tile_1d)
WRAP(pthreadpool_parallelize_3d_tile_1d_dynamic)
WRAP(pthreadpool_parallelize_3d_tile_1d_dynamic_with_thread)
WRAP(pthreadpool_parallelize_3d_tile_1d_with_thread)
WRAP(pthreadpool_parallelize_3d_tile_2d)
WRAP(pthreadpool_parallelize_3d_tile_2d_dynamic)
WRAP(pthreadpool_parallelize_3d_tile_2d_dynamic_with_thread)
WRAP(pthreadpool_parallelize_4d)
WRAP(pthreadpool_parallelize_4d_tile_2d)
WRAP(pthreadpool_parallelize_4d_tile_2d_dynamic)
WRAP(pthreadpool_parallelize_5d)
WRAP(pthreadpool_parallelize_5d_tile_2d)
WRAP(pthreadpool_parallelize_6d_tile_2d)

static void finish(void) {
  const char *directory = getenv("OPSCOPE_CLOCK");
  if (directory == NULL || count == 0) return;
  char path[4096];
  snprintf(path, sizeof(path), "%s/%d", directory, (int)getpid());
  FILE *file = fopen(path, "wb");
  if (file == NULL) return;
  fwrite(pairs, sizeof(*pairs), count, file);
  fclose(file);
}

/* Runners end with this. */
void _exit(int code) {
  finish();
  syscall(SYS_exit_group, code);
  __builtin_unreachable();
}
