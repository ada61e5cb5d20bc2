/* A library to preload: one call of one kind fails, as on a full disk, a bad disk or without memory.

   FAILING_KIND     write, fsync, rename or mmap
   FAILING_NUMBER   which of the calls that count, from 1
   FAILING_BELOW    directory: calls on files elsewhere do not count; those of mmap count wherever the file lies
   FAILING_TOLD     file that is made when the call has failed

   Only the process that is started with it is concerned: its children are not. Calls are made by their numbers, so
   nothing is looked up while a program is loaded; the loader's own calls do not come here. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum kind { NONE, WRITE, FSYNC, RENAME, MMAP };

static enum kind chosen = NONE;
static long number, seen;
static pid_t self;
static char below[PATH_MAX], told[PATH_MAX];

__attribute__((constructor)) static void choose(void) {
  const char *kind = getenv("FAILING_KIND"), *at = getenv("FAILING_NUMBER");
  const char *directory = getenv("FAILING_BELOW"), *file = getenv("FAILING_TOLD");
  unsetenv("LD_PRELOAD");
  if (!kind || !at || !directory || !file) return;
  snprintf(below, sizeof below, "%s/", directory);
  snprintf(told, sizeof told, "%s", file);
  number = atol(at);
  self = getpid();
  chosen = !strcmp(kind, "write") ? WRITE : !strcmp(kind, "fsync") ? FSYNC : !strcmp(kind, "rename") ? RENAME : MMAP;
}

static int tell(const char *path) {
  int file = (int)syscall(SYS_openat, AT_FDCWD, told, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (file >= 0) {
    syscall(SYS_write, file, path, strlen(path));
    syscall(SYS_close, file);
  }
  errno = chosen == MMAP ? ENOMEM : chosen == FSYNC ? EIO : ENOSPC;
  return 1;
}

static int fails_at(enum kind kind, const char *path) {
  if (kind != MMAP && path[0] == '/' && strncmp(path, below, strlen(below))) return 0;
  return __sync_add_and_fetch(&seen, 1) == number && tell(path);
}

static int fails(enum kind kind, int descriptor) {
  char link[64], path[PATH_MAX];
  if (kind != chosen || getpid() != self) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length <= 0 || path[0] != '/') return 0; /* a pipe or a socket */
  path[length] = 0;
  return fails_at(kind, path);
}

static int fails_to(const char *path) { return chosen == RENAME && getpid() == self && fails_at(RENAME, path); }

#define UNLESS(failed, call) ((failed) ? -1 : (call))

ssize_t write(int file, const void *data, size_t size) {
  return UNLESS(fails(WRITE, file), syscall(SYS_write, file, data, size));
}
ssize_t pwrite(int file, const void *data, size_t size, off_t at) {
  return UNLESS(fails(WRITE, file), syscall(SYS_pwrite64, file, data, size, at));
}
ssize_t pwrite64(int file, const void *data, size_t size, off64_t at) { return pwrite(file, data, size, at); }
ssize_t writev(int file, const struct iovec *parts, int count) {
  return UNLESS(fails(WRITE, file), syscall(SYS_writev, file, parts, count));
}
ssize_t sendfile(int to, int from, off_t *at, size_t size) {
  return UNLESS(fails(WRITE, to), syscall(SYS_sendfile, to, from, at, size));
}
ssize_t sendfile64(int to, int from, off64_t *at, size_t size) { return sendfile(to, from, (off_t *)at, size); }
ssize_t copy_file_range(int from, off64_t *at, int to, off64_t *there, size_t size, unsigned flags) {
  return UNLESS(fails(WRITE, to), syscall(SYS_copy_file_range, from, at, to, there, size, flags));
}

int fsync(int file) { return UNLESS(fails(FSYNC, file), syscall(SYS_fsync, file)); }
int fdatasync(int file) { return UNLESS(fails(FSYNC, file), syscall(SYS_fdatasync, file)); }

/* A link under a new name is how a file comes to its place where it must not be there before. */
int renameat2(int from, const char *old, int to, const char *new, unsigned flags) {
  return UNLESS(fails_to(new), syscall(SYS_renameat2, from, old, to, new, flags));
}
int renameat(int from, const char *old, int to, const char *new) { return renameat2(from, old, to, new, 0); }
int rename(const char *old, const char *new) { return renameat2(AT_FDCWD, old, AT_FDCWD, new, 0); }
int linkat(int from, const char *old, int to, const char *new, int flags) {
  return UNLESS(fails_to(new), syscall(SYS_linkat, from, old, to, new, flags));
}
int link(const char *old, const char *new) { return linkat(AT_FDCWD, old, AT_FDCWD, new, 0); }

void *mmap(void *at, size_t size, int protection, int flags, int file, off_t offset) {
  if (!(flags & MAP_ANONYMOUS) && fails(MMAP, file)) return MAP_FAILED;
  return (void *)syscall(SYS_mmap, at, size, protection, flags, file, offset);
}
void *mmap64(void *at, size_t size, int protection, int flags, int file, off64_t offset) {
  return mmap(at, size, protection, flags, file, offset);
}
