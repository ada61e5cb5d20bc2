"""A small library that asks the CPU for features, and programs that load it: compiled for a test."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

LIBRARY = r"""
typedef unsigned u;
u first[4]; /* what the constructor saw of leaf 7 */
static void ask(u leaf, u subleaf, u *o) {
  __asm__ volatile("cpuid" : "=a"(o[0]), "=b"(o[1]), "=c"(o[2]), "=d"(o[3]) : "a"(leaf), "c"(subleaf));
}
__attribute__((constructor)) static void begin(void) { ask(7, 0, first); }
void asks(u leaf, u subleaf, u *o) { ask(leaf, subleaf, o); }
const u *seen_first(void) { return first; }
/* The same two bytes in an immediate, and in a distance: no cpuid. */
u immediate(void) { u v; __asm__ volatile("mov $0x1234a20f, %0" : "=r"(v)); return v; }
u in_a_distance(const char *p) { u v; __asm__ volatile("mov 0xa20f00(%1), %0" : "=r"(v) : "r"(p)); return v; }
"""
PROGRAM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
static int others;
static void other(int n, siginfo_t *i, void *c) {
  (void)n, (void)i;
  others++;
  ((ucontext_t *)c)->uc_mcontext.gregs[REG_RIP] += 2;
}
static void handle(void) {
  struct sigaction a = {0};
  a.sa_sigaction = other;
  a.sa_flags = SA_SIGINFO;
  sigaction(SIGILL, &a, NULL);
}
static void *load(const char *path) {
  void *l = dlopen(path, RTLD_NOW);
  if (!l) { puts(dlerror()); exit(3); }
  return l;
}
/* words: handle, load PATH, ask, ud2, maps, spawn COMMAND */
int main(int n, char **w) {
  void *library = NULL;
  for (int k = 1; k < n; k++) {
    if (!strcmp(w[k], "handle")) handle();
    if (!strcmp(w[k], "load")) library = load(w[++k]);
    if (!strcmp(w[k], "ud2")) { __asm__ volatile("ud2"); printf("others %d\n", others); }
    if (!strcmp(w[k], "spawn")) { fflush(stdout); if (system(w[++k])) return 4; }
    if (!strcmp(w[k], "ask")) {
      unsigned o[4];
      void (*asks)(unsigned, unsigned, unsigned *);
      const unsigned *(*first)(void);
      *(void **)&asks = dlsym(library, "asks");
      *(void **)&first = dlsym(library, "seen_first");
      printf("first %x\n", first()[1]);
      asks(7, 0, o); printf("7.0 %x %x %x\n", o[1], o[2], o[3]);
      asks(1, 0x77, o); printf("1 %x %x\n", o[2], o[3]);
    }
    if (!strcmp(w[k], "maps")) {
      char line[4096];
      FILE *f = fopen("/proc/self/maps", "r");
      while (fgets(line, sizeof line, f)) if (strstr(line, "libasks")) fputs(line, stdout);
      fclose(f);
    }
  }
  return 0;
}
"""


def compiled(text: str, place: Path, *flags: str) -> Path:
    """A program or library of C; the test is skipped where there is no compiler for x86-64 Linux."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or sys.platform != "linux" or platform.machine() != "x86_64":
        pytest.skip("needs a C compiler on x86-64 Linux")
    source = place.with_suffix(".c")
    source.write_text(text, encoding="utf-8")
    subprocess.run([compiler, "-O1", str(source), "-o", str(place), *flags, "-ldl"], check=True)
    return place


def asking_library(place: Path, name: str = "libasks.so", extra: str = "") -> Path:
    """The library; with more C behind it where that is given."""
    return compiled(LIBRARY + extra, place / name, "-shared", "-fPIC")


def asking_program(place: Path, *flags: str) -> Path:
    """The program."""
    return compiled(PROGRAM, place / "program", *flags)
