// Counts the calls of a library's kernels, operator by operator. It is preloaded into the process that runs the model.
//
// The library calls its exported functions through a table of addresses, which the loader fills with the first
// definition it finds: the ones here. Each kernel is a jump that adds one to a number and goes on to the real kernel
// with all arguments untouched. XNNPACK's runtime reads the clock after each operator when it is traced, and that is
// how the operator is known: the n-th reading from within xnn_invoke_runtime ends operator n - 1 of that delegate.
//
// "kernels.h" is made for one library: LIBRARY, INVOKE_SIZE, KERNELS and KERNEL(number, name) for each of them.
// The numbers stand in a file that is mapped, so they survive a crash. OPSCOPE_KERNEL_COUNTS names it. Its layout is
// that of `struct file` and of the tables behind it, all little endian; opscope.read.kernel_counts reads it.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "kernels.h"

enum { ROWS = 4096, RUNTIMES = 1024, OVERLAPPED = 1, FULL = 2 };
static const uint32_t kNotKnown = UINT32_MAX;

struct row {
  uint32_t runtime;   // in the order of their first calls
  uint32_t position;  // of the operator in it; kNotKnown when it is not traced
  uint64_t runs;      // how often the operator ended
};

struct file {
  char magic[8];
  uint32_t kernels, rows, used, flags;
  uint64_t names_size;  // names end with a zero byte each
  uint64_t calls;       // of xnn_invoke_runtime
  char names[(sizeof kNames + 7) / 8 * 8];
  struct row row[ROWS];  // the first is of what runs outside of delegates, such as packing weights
  uint64_t count[ROWS][KERNELS];
};

#define HIDDEN __attribute__((visibility("hidden")))
HIDDEN uint64_t* opscope_row;  // counts of the running operator; null until the file is there
HIDDEN void* opscope_kernel[KERNELS];

static struct file* file;
static void* runtimes[RUNTIMES];
static uint32_t runtime_count, cursor;
static int (*real_invoke)(void*);
static int (*real_clock)(clockid_t, struct timespec*);
static pthread_once_t opened = PTHREAD_ONCE_INIT;
static int running;
static __thread int64_t stamps = -1;  // readings of the clock in this call; below zero outside of one
static __thread uint32_t current;

static void give_up(const char* what) {
  fprintf(stderr, "opscope kernel counter: %s\n", what);
  _exit(71);
}

static void open_file(void) {
  const char* path = getenv("OPSCOPE_KERNEL_COUNTS");
  if (path == NULL) return;
  const int descriptor = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (descriptor < 0 || ftruncate(descriptor, sizeof *file) != 0) give_up("cannot create the file for the counts");
  file = mmap(NULL, sizeof *file, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (file == MAP_FAILED) give_up("cannot map the file for the counts");
  close(descriptor);
  file->kernels = KERNELS;
  file->rows = ROWS;
  file->used = 1;
  file->row[0] = (struct row){kNotKnown, kNotKnown, 0};
  file->names_size = sizeof kNames;
  memcpy(file->names, kNames, sizeof kNames);
  memcpy(file->magic, "OPKCNT01", sizeof file->magic);
  __atomic_store_n(&opscope_row, file->count[0], __ATOMIC_RELEASE);
}

static int is_library(struct dl_phdr_info* info, size_t size, void* found) {
  (void)size;
  const char* slash = strrchr(info->dlpi_name, '/');
  if (strcmp(slash == NULL ? info->dlpi_name : slash + 1, LIBRARY) != 0) return 0;
  *(const char**)found = info->dlpi_name;
  return 1;
}

static void* resolve(const char* name) {
  pthread_once(&opened, open_file);
  const char* path = LIBRARY;
  dl_iterate_phdr(is_library, &path);
  void* library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
  void* found = library == NULL ? NULL : dlsym(library, name);
  if (found == NULL) give_up("a function of the library cannot be found; it was loaded under another name");
  return found;
}

// Called by the jumps when a kernel is called for the first time.
HIDDEN void* opscope_resolve(uint64_t number) {
  const char* name = kNames;
  for (uint64_t i = 0; i < number; ++i) name += strlen(name) + 1;
  void* found = resolve(name);
  __atomic_store_n(&opscope_kernel[number], found, __ATOMIC_RELEASE);
  return found;
}

static uint32_t row_of(uint32_t runtime, uint32_t position) {
  for (uint32_t i = 0; i < file->used; ++i) {
    const uint32_t at = (cursor + 1 + i) % file->used;
    if (file->row[at].runtime == runtime && file->row[at].position == position) return cursor = at;
  }
  if (file->used == ROWS) {
    file->flags |= FULL;
    return 0;
  }
  file->row[file->used] = (struct row){runtime, position, 0};
  return cursor = file->used++;
}

static uint32_t runtime_of(void* runtime) {
  for (uint32_t i = 0; i < runtime_count; ++i) {
    if (runtimes[i] == runtime) return i;
  }
  if (runtime_count == RUNTIMES) {
    file->flags |= FULL;
    return kNotKnown;
  }
  runtimes[runtime_count] = runtime;
  return runtime_count++;
}

static void enter(uint32_t row) {
  cursor = row;
  __atomic_store_n(&opscope_row, file->count[row], __ATOMIC_RELEASE);
}

int xnn_invoke_runtime(void* runtime) {
  if (real_invoke == NULL) *(void**)&real_invoke = resolve("xnn_invoke_runtime");
  if (file == NULL) return real_invoke(runtime);
  if (__atomic_exchange_n(&running, 1, __ATOMIC_ACQ_REL)) {
    __atomic_or_fetch(&file->flags, OVERLAPPED, __ATOMIC_RELAXED);
    return real_invoke(runtime);
  }
  ++file->calls;
  current = runtime_of(runtime);
  stamps = 0;
  enter(row_of(current, kNotKnown));
  const int status = real_invoke(runtime);
  stamps = -1;
  enter(0);
  __atomic_store_n(&running, 0, __ATOMIC_RELEASE);
  return status;
}

int clock_gettime(clockid_t clock, struct timespec* now) {
  const int result = real_clock != NULL ? real_clock(clock, now) : (int)syscall(SYS_clock_gettime, clock, now);
  const uintptr_t caller = (uintptr_t)__builtin_return_address(0);
  if (stamps < 0 || caller - (uintptr_t)real_invoke >= INVOKE_SIZE) return result;
  if (stamps > 0) ++file->row[cursor].runs;
  enter(row_of(current, (uint32_t)stamps++));
  return result;
}

__attribute__((constructor)) static void find_clock(void) {
  *(void**)&real_clock = dlsym(RTLD_NEXT, "clock_gettime");
}

// The jumps use registers that no argument is passed in: x9 to x11, x16 and x17, which a call may change.
#if defined(__aarch64__)
__asm__(
    ".text\n"
    ".hidden opscope_row, opscope_kernel\n"
    "opscope_count:\n"
    "  adrp x9, opscope_kernel\n"
    "  add x9, x9, :lo12:opscope_kernel\n"
    "  ldr x16, [x9, x17, lsl #3]\n"
    "  cbz x16, 3f\n"
    "1: adrp x9, opscope_row\n"
    "  add x9, x9, :lo12:opscope_row\n"
    "  ldr x9, [x9]\n"
    "  cbz x9, 4f\n"
    "  add x9, x9, x17, lsl #3\n"
    "2: ldxr x10, [x9]\n"
    "  add x10, x10, #1\n"
    "  stxr w11, x10, [x9]\n"
    "  cbnz w11, 2b\n"
    "4: br x16\n"
    "3: stp x29, x30, [sp, #-224]!\n"
    "  mov x29, sp\n"
    "  stp x0, x1, [sp, #16]\n"
    "  stp x2, x3, [sp, #32]\n"
    "  stp x4, x5, [sp, #48]\n"
    "  stp x6, x7, [sp, #64]\n"
    "  stp x8, x17, [sp, #80]\n"
    "  stp q0, q1, [sp, #96]\n"
    "  stp q2, q3, [sp, #128]\n"
    "  stp q4, q5, [sp, #160]\n"
    "  stp q6, q7, [sp, #192]\n"
    "  mov x0, x17\n"
    "  bl opscope_resolve\n"
    "  mov x16, x0\n"
    "  ldp q6, q7, [sp, #192]\n"
    "  ldp q4, q5, [sp, #160]\n"
    "  ldp q2, q3, [sp, #128]\n"
    "  ldp q0, q1, [sp, #96]\n"
    "  ldp x8, x17, [sp, #80]\n"
    "  ldp x6, x7, [sp, #64]\n"
    "  ldp x4, x5, [sp, #48]\n"
    "  ldp x2, x3, [sp, #32]\n"
    "  ldp x0, x1, [sp, #16]\n"
    "  ldp x29, x30, [sp], #224\n"
    "  b 1b\n");
#define KERNEL(number, name)                    \
  __asm__(".text\n.balign 16\n"                 \
          ".global " #name "\n"                 \
          ".type " #name ", %function\n" #name  \
          ":\n  hint 34\n"                      \
          "  movz x17, #" #number "\n"          \
          "  b opscope_count\n"                 \
          ".size " #name ", . - " #name "\n");
ALL_KERNELS
#else
#error "kernels are counted on 64-bit Arm only"
#endif
