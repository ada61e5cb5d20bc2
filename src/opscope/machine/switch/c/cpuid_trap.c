/* Answers the cpuid instructions of chosen libraries with fewer features. Loaded by LD_AUDIT (glibc, x86-64).
 *
 * The loader calls la_objopen when a library has been mapped and before any code of it has run, its constructors
 * included, so no thread can be in it. Each cpuid (0F A2) is overwritten in memory by ud2 (0F 0B), which has the same
 * length and raises SIGILL. The handler executes cpuid itself, clears bits, and steps over.
 *
 * OPSCOPE_SWITCH names a file of lines, each of a word and its values:
 *   report PATH
 *   row LEAF SUBLEAF REGISTER BITS     hexadecimal; registers are 0 to 3 for eax, ebx, ecx, edx
 *   library PATH                       or the name of a file, wherever it is loaded from: its code is looked at
 *   site ADDRESS                       of the library before it, relative to where it is loaded; hexadecimal
 * Without it, or when it is damaged, nothing is changed, and the report says nothing: that is no proof.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <ucontext.h>
#include <unistd.h>

#include "report.h"

enum { MOST_SITES = 4096, LINE = PATH_MAX + 32, CANNOT_GO_ON = 126 };

struct row {
  uint32_t leaf, subleaf, reg, bits;
};
struct library {
  char path[PATH_MAX];
  dev_t device;
  ino_t inode;
  int named, known, first, sites;
};

static struct row rows[MOST_ROWS];
static struct library libraries[MOST_LIBRARIES];
static uintptr_t addresses[MOST_SITES]; /* as the file has them */
static char report_path[PATH_MAX];
static int row_count, library_count, address_count, ready, installed;
static struct report *report;
static struct sigaction before;

/* A patched place in memory. Written before the library runs; only `executed` changes, once. */
static struct {
  uintptr_t address;
  int library;
  _Atomic int executed;
} places[MOST_SITES];
static _Atomic int place_count;

static int read_line(char *line) {
  struct row *row = &rows[row_count];
  char path[PATH_MAX];
  unsigned long address;
  line[strcspn(line, "\n")] = 0;
  if (sscanf(line, "row %x %x %x %x", &row->leaf, &row->subleaf, &row->reg, &row->bits) == 4)
    return row->reg < 4 && ++row_count < MOST_ROWS;
  if (sscanf(line, "site %lx", &address) == 1) {
    if (!library_count || address_count == MOST_SITES) return 0;
    addresses[address_count++] = address;
    libraries[library_count - 1].sites++;
    return 1;
  }
  if (sscanf(line, "report %4095[^\n]", path) == 1) {
    strcpy(report_path, path);
    return 1;
  }
  if (sscanf(line, "library %4095[^\n]", path) == 1) {
    if (library_count == MOST_LIBRARIES) return 0;
    struct library *library = &libraries[library_count++];
    struct stat found;
    strcpy(library->path, path);
    library->first = address_count;
    library->named = !strchr(path, '/');
    library->known = !library->named && stat(path, &found) == 0;
    if (library->known) {
      library->device = found.st_dev;
      library->inode = found.st_ino;
    }
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

/* The report is made by the first process that loads one of the libraries: what else the run starts leaves it alone. */
static int open_report(void) {
  if (report) return report->process == (uint32_t)getpid();
  int file = open(report_path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600), first = file >= 0;
  if (!first) file = open(report_path, O_RDWR | O_CLOEXEC);
  if (file < 0 || (first && ftruncate(file, sizeof *report))) return 0;
  void *mapped = mmap(NULL, sizeof *report, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (mapped == MAP_FAILED) return 0;
  report = mapped;
  if (first) {
    report->size = sizeof *report;
    report->process = (uint32_t)getpid();
    report->libraries = (uint32_t)library_count;
    report->rows = (uint32_t)row_count;
    memcpy(report->magic, REPORT_MAGIC, sizeof report->magic);
  }
  return report->process == (uint32_t)getpid();
}

static void answer(greg_t *registers, struct library_report *told) {
  uint32_t leaf = (uint32_t)registers[REG_RAX], subleaf = (uint32_t)registers[REG_RCX], found[4];
  int masked = 0;
  __asm__ volatile("cpuid"
                   : "=a"(found[0]), "=b"(found[1]), "=c"(found[2]), "=d"(found[3])
                   : "a"(leaf), "c"(subleaf));
  for (int number = 0; number < row_count; number++) {
    const struct row *row = &rows[number];
    /* Leaf 1 and those of 0x80000000 and above have no subleaves: what stands in ecx is not looked at. */
    int flat = leaf == 1 || leaf >= 0x80000000u;
    if (row->leaf != leaf || (row->subleaf != subleaf && !flat)) continue;
    uint32_t cleared = found[row->reg] & row->bits;
    if (!cleared) continue;
    found[row->reg] &= ~cleared;
    __atomic_fetch_or(&told->row[number].cleared, cleared, __ATOMIC_RELAXED);
    __atomic_fetch_add(&told->row[number].count, 1, __ATOMIC_RELAXED);
    masked = 1;
  }
  __atomic_fetch_add(&told->executions, 1, __ATOMIC_RELAXED);
  if (masked) __atomic_fetch_add(&told->masked, 1, __ATOMIC_RELAXED);
  registers[REG_RAX] = found[0];
  registers[REG_RBX] = found[1];
  registers[REG_RCX] = found[2];
  registers[REG_RDX] = found[3];
}

/* An illegal instruction that is not ours goes where it would have gone. */
static void pass_on(int number, siginfo_t *info, void *context) {
  if (before.sa_flags & SA_SIGINFO) {
    before.sa_sigaction(number, info, context);
  } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
    before.sa_handler(number);
  } else {
    signal(number, SIG_DFL); /* it is executed again, and ends the process */
  }
}

static void illegal(int number, siginfo_t *info, void *context) {
  greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
  uintptr_t at = (uintptr_t)registers[REG_RIP];
  int count = atomic_load(&place_count), kept = errno;
  for (int place = 0; place < count; place++) {
    if (places[place].address == at) {
      struct library_report *told = &report->library[places[place].library];
      answer(registers, told);
      if (!atomic_exchange(&places[place].executed, 1)) __atomic_fetch_add(&told->executed, 1, __ATOMIC_RELAXED);
      registers[REG_RIP] = (greg_t)(at + 2);
      errno = kept;
      return;
    }
  }
  pass_on(number, info, context);
}

/* Whether SIGILL comes to us; the handler is set before the first library is patched, and found again for the others. */
static uint32_t handling(int32_t *detail) {
  struct sigaction now, ours = {0};
  if (!installed) {
    ours.sa_sigaction = illegal;
    ours.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
    if (sigaction(SIGILL, &ours, &before)) {
      *detail = errno;
      return PROBLEM_HANDLER_REFUSED;
    }
    installed = 1;
  }
  if (sigaction(SIGILL, NULL, &now)) {
    *detail = errno;
    return PROBLEM_HANDLER_REFUSED;
  }
  return now.sa_sigaction == illegal ? PROBLEM_NONE : PROBLEM_OTHER_HANDLER;
}

/* The protection of the memory at an address, as the system has it; -1 when it is not mapped. */
static int protection_of(uintptr_t address) {
  char line[LINE], flags[5];
  unsigned long start, end;
  int found = -1;
  FILE *maps = fopen("/proc/self/maps", "re");
  while (maps && found < 0 && fgets(line, sizeof line, maps))
    if (sscanf(line, "%lx-%lx %4s", &start, &end, flags) == 3 && start <= address && address < end)
      found = (flags[0] == 'r' ? PROT_READ : 0) | (flags[1] == 'w' ? PROT_WRITE : 0) | (flags[2] == 'x' ? PROT_EXEC : 0);
  if (maps) fclose(maps);
  return found;
}

/* Change one byte of code. Nothing executes the page meanwhile: it is never writable and executable at once. */
static uint32_t write_byte(uint8_t *place, uint8_t value, int32_t *detail) {
  uintptr_t size = (uintptr_t)sysconf(_SC_PAGESIZE);
  void *page = (void *)((uintptr_t)place & ~(size - 1));
  int protection = protection_of((uintptr_t)place);
  if (protection < 0 || mprotect(page, size, PROT_READ | PROT_WRITE)) {
    *detail = protection < 0 ? EFAULT : errno;
    return PROBLEM_NOT_WRITABLE;
  }
  uint8_t had = *place;
  *place = value;
  if (!mprotect(page, size, protection)) return PROBLEM_NONE;
  *detail = errno;
  *place = had;
  mprotect(page, size, protection);
  return PROBLEM_NOT_RESTORED;
}

/* Whether code of this library may be changed and executed again, tried on a page of its file that nobody executes:
 * where that is forbidden, it is seen before anything is changed. */
static uint32_t rehearsed(const char *path, int32_t *detail) {
  size_t size = (size_t)sysconf(_SC_PAGESIZE);
  int file = open(path, O_RDONLY | O_CLOEXEC);
  uint8_t *page = file < 0 ? MAP_FAILED : mmap(NULL, size, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, 0);
  uint32_t problem = PROBLEM_NONE;
  if (page == MAP_FAILED || mprotect(page, size, PROT_READ | PROT_WRITE)) problem = PROBLEM_NOT_WRITABLE;
  if (problem == PROBLEM_NONE) {
    *(volatile uint8_t *)page = *page; /* makes the page our own copy */
    if (mprotect(page, size, PROT_READ | PROT_EXEC)) problem = PROBLEM_NOT_WRITABLE;
  }
  if (problem != PROBLEM_NONE) *detail = errno;
  if (page != MAP_FAILED) munmap(page, size);
  if (file >= 0) close(file);
  return problem;
}

static uint32_t patch(int number, uintptr_t base, int32_t *detail) {
  const struct library *library = &libraries[number];
  for (int site = 0; site < library->sites; site++) {
    const uint8_t *at = (const uint8_t *)(base + addresses[library->first + site]);
    /* Readable, since it is code that the loader has mapped; the file may be another one than was decoded. */
    if (protection_of((uintptr_t)at) < 0 || at[0] != 0x0f || at[1] != 0xa2) return PROBLEM_OTHER_BYTES;
  }
  for (int site = 0; site < library->sites; site++) {
    uintptr_t at = base + addresses[library->first + site];
    int count = atomic_load(&place_count);
    if (count == MOST_SITES) return PROBLEM_OTHER_BYTES;
    places[count].address = at;
    places[count].library = number;
    atomic_store(&place_count, count + 1);
    uint32_t problem = write_byte((uint8_t *)at + 1, 0x0b, detail);
    if (problem != PROBLEM_NONE) return problem;
    report->library[number].sites++;
  }
  return PROBLEM_NONE;
}

static int library_at(const char *path) {
  struct stat found;
  if (!path || !*path || stat(path, &found)) return -1;
  const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
  for (int number = 0; number < library_count; number++) {
    if (libraries[number].named && !strcmp(libraries[number].path, name)) return number;
    if (libraries[number].known && libraries[number].device == found.st_dev && libraries[number].inode == found.st_ino)
      return number;
  }
  return -1;
}

unsigned int la_version(unsigned int version) {
  return version < LAV_CURRENT ? version : LAV_CURRENT;
}

unsigned int la_objopen(struct link_map *map, Lmid_t space, uintptr_t *cookie) {
  (void)space, (void)cookie;
  if (!ready) {
    ready = 1;
    read_request();
  }
  int number = library_count ? library_at(map->l_name) : -1;
  if (number < 0) return 0;
  int own = open_report();
  if (!report) return 0;
  struct library_report *told = &report->library[number];
  told->loaded++;
  if (!own) {
    told->problem = PROBLEM_OTHER_PROCESS;
    return 0;
  }
  if (told->problem == PROBLEM_NONE) told->problem = rehearsed(map->l_name, &told->detail);
  if (told->problem == PROBLEM_NONE) told->problem = handling(&told->detail);
  if (told->problem == PROBLEM_NONE) told->problem = patch(number, map->l_addr, &told->detail);
  if (told->problem == PROBLEM_NOT_RESTORED) {
    static const char words[] = "opscope: the protection of a library's code could not be restored\n";
    if (write(2, words, sizeof words - 1)) _exit(CANNOT_GO_ON);
    _exit(CANNOT_GO_ON);
  }
  return 0;
}
