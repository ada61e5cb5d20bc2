/* Answers getauxval(AT_HWCAP) and getauxval(AT_HWCAP2) of chosen libraries with fewer features. Loaded by LD_PRELOAD
 * (glibc, 64-bit Arm Linux).
 *
 * OPSCOPE_SWITCH names a file of lines, each of a word and its values:
 *   report PATH
 *   row 0 0 REGISTER BITS      hexadecimal; register 0 is AT_HWCAP, 1 AT_HWCAP2, and the bits are 64 wide
 *   library NAME               name of a file, without directories
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "report.h"

extern unsigned long __getauxval(unsigned long);

enum { LINE = PATH_MAX + 32 };

static struct {
  unsigned long kind, bits;
} rows[MOST_ROWS];
static char libraries[MOST_LIBRARIES][NAME_MAX + 1], report_path[PATH_MAX];
static int row_count, library_count;
static struct report *report;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;

static int read_line(char *line) {
  char path[PATH_MAX];
  unsigned which;
  unsigned long bits;
  line[strcspn(line, "\n")] = 0;
  if (sscanf(line, "row 0 0 %x %lx", &which, &bits) == 2) {
    if (which > 1 || row_count == MOST_ROWS) return 0;
    rows[row_count].kind = which ? AT_HWCAP2 : AT_HWCAP;
    rows[row_count++].bits = bits;
    return 1;
  }
  if (sscanf(line, "report %4095[^\n]", path) == 1) {
    strcpy(report_path, path);
    return 1;
  }
  if (sscanf(line, "library %255[^\n]", path) == 1) {
    if (library_count == MOST_LIBRARIES) return 0;
    strcpy(libraries[library_count++], path);
    return 1;
  }
  return 0;
}

static void read_request(void) {
  static char line[LINE];
  const char *path = getenv("OPSCOPE_SWITCH");
  FILE *file = path ? fopen(path, "re") : NULL;
  int whole = file != NULL;
  while (whole && fgets(line, sizeof line, file)) whole = read_line(line);
  if (file) fclose(file);
  if (!whole || !*report_path) library_count = 0;
}

/* The report is made by the first process in which one of the libraries asks. */
static void open_report(void) {
  int file = open(report_path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600), first = file >= 0;
  if (!first) file = open(report_path, O_RDWR | O_CLOEXEC);
  if (file < 0 || (first && ftruncate(file, sizeof *report))) return;
  struct report *mapped = mmap(NULL, sizeof *report, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (mapped == MAP_FAILED) return;
  if (first) {
    mapped->size = sizeof *mapped;
    mapped->process = (uint32_t)getpid();
    mapped->libraries = (uint32_t)library_count;
    mapped->rows = (uint32_t)row_count;
    memcpy(mapped->magic, REPORT_MAGIC, sizeof mapped->magic);
  }
  report = mapped;
}

static int library_at(const void *address) {
  Dl_info found;
  if (!library_count || !dladdr(address, &found) || !found.dli_fname) return -1;
  const char *name = strrchr(found.dli_fname, '/');
  name = name ? name + 1 : found.dli_fname;
  for (int number = 0; number < library_count; number++)
    if (!strcmp(name, libraries[number])) return number;
  return -1;
}

unsigned long getauxval(unsigned long kind) {
  unsigned long found = __getauxval(kind);
  if (kind != AT_HWCAP && kind != AT_HWCAP2) return found;
  const void *caller = __builtin_return_address(0);
  pthread_once(&once, read_request);
  int number = library_at(caller), masked = 0;
  if (number < 0) return found;
  pthread_mutex_lock(&opening);
  if (!report) open_report();
  pthread_mutex_unlock(&opening);
  if (!report) return found; /* no report is no proof */
  struct library_report *told = &report->library[number];
  if (report->process != (uint32_t)getpid()) {
    told->problem = PROBLEM_OTHER_PROCESS;
    return found;
  }
  for (int row = 0; row < row_count; row++) {
    unsigned long cleared = rows[row].kind == kind ? found & rows[row].bits : 0;
    if (!cleared) continue;
    found &= ~cleared;
    __atomic_fetch_add(&told->row[row].count, 1, __ATOMIC_RELAXED);
    masked = 1;
  }
  told->loaded = told->sites = 1;
  __atomic_fetch_add(&told->executions, 1, __ATOMIC_RELAXED);
  if (masked) __atomic_fetch_add(&told->masked, 1, __ATOMIC_RELAXED);
  return found;
}
