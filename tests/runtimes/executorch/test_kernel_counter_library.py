"""The counter on a library made for it: arguments, crashes, threads, and more operators than it has room for.

The library calls its own functions by name, as XNNPACK does, and reads the clock around operators as a traced runtime
does. It is built by the same compiler and runs under QEMU.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from arm import arm_target
from opscope.program.kernels.kernel_calls import KernelCalls, OperatorCalls
from opscope.readers.kernels import read_kernel_counts
from opscope.runtimes.counting.kernel_counter import build_counter, counter_environment, find_compiler

LIBRARY = r"""
#include <stdlib.h>
#include <time.h>
struct big { double v[6]; };
double kai_run_sum(int a, long b, double c, float d, struct big e, int f, int g, int h, int i, int j, int k, double l) {
  return a + b + c + d + e.v[0] + e.v[5] + f + g + h + i + j + k + l;
}
struct big kai_run_big(double x) { struct big r = {{x, x, x, x, x, x + 1}}; return r; }
#define tick() clock_gettime(CLOCK_MONOTONIC, &now)
struct runtime { int operators; struct runtime* inner; void (*wait)(void); };
int xnn_invoke_runtime(struct runtime* r) {
  struct timespec now;
  tick();
  for (int i = 0; i < r->operators; ++i) {
    for (int n = 0; n <= i % 3; ++n) {
      struct big b = kai_run_big(n);
      if (kai_run_sum(1, 2, 3.5, 4.25f, b, 5, 6, 7, 8, 9, 10, 11.5) != 67.25 + 2 * n + 1) abort();
    }
    tick();
  }
  if (r->wait) r->wait();
  return r->inner ? xnn_invoke_runtime(r->inner) : 0;
}
int run(struct runtime* r) { return xnn_invoke_runtime(r); }
void load(void) { kai_run_big(1); }
"""
MAIN = r"""
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
struct runtime { int operators; struct runtime* inner; void (*wait)(void); };
static int (*run)(struct runtime*);
static pthread_barrier_t both;
static void meet(void) { pthread_barrier_wait(&both); }
static void* other(void* r) { return run(r) ? r : 0; }
int main(int count, char** words) {
  void* library = dlopen(words[1], RTLD_NOW | RTLD_GLOBAL);
  run = (int (*)(struct runtime*))dlsym(library, "run");
  ((void (*)(void))dlsym(library, "load"))();
  struct runtime a = {3, 0, 0}, b = {1, 0, 0};
  if (!strcmp(words[2], "two")) return run(&a) || run(&b) || run(&a);
  if (!strcmp(words[2], "crash")) { run(&a); abort(); }
  if (!strcmp(words[2], "many")) { a.operators = 5000; return run(&a); }
  if (!strcmp(words[2], "threads")) {
    pthread_t thread;
    pthread_barrier_init(&both, 0, 2);
    a.wait = b.wait = meet;
    pthread_create(&thread, 0, other, &b);
    run(&a);
    return pthread_join(thread, 0);
  }
  return count;
}
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The program, and the counter for its library."""
    arm_target()
    work = tmp_path_factory.mktemp("library")
    (work / "library.c").write_text(LIBRARY)
    (work / "main.c").write_text(MAIN)
    compiler = [*find_compiler(), "-O1", "-fno-inline"]
    subprocess.run([*compiler, "-fPIC", "-shared", "-o", work / "libown.so", work / "library.c"], check=True)
    subprocess.run([*compiler, "-o", work / "main", work / "main.c", "-ldl", "-lpthread"], check=True)
    return work / "main", build_counter(work / "libown.so", work).path


def ran(built: tuple[Path, Path], what: str, counts: Path) -> tuple[int, KernelCalls]:
    """Exit code of the program, and what was counted."""
    target, _ = arm_target()
    program, counter = built
    loader, _, place, _ = target.program.brought.command()
    environment = counter_environment(str(counter), str(counts))
    command = [*target._host._emulator.command, "-cpu", "max", loader, "--library-path", place, program]
    done = subprocess.run([*command, program.parent / "libown.so", what], env=environment, check=False)
    return done.returncode, read_kernel_counts(counts)


def _both_kernels(count: int) -> dict[str, int]:
    return {"kai_run_big": count, "kai_run_sum": count}


def test_arguments_and_results_pass_through_untouched(built: tuple[Path, Path], tmp_path: Path) -> None:
    """In registers, on the stack and behind a pointer, at the first call and later: else the program would abort."""
    code, calls = ran(built, "two", tmp_path / "counts")
    assert code == 0
    assert calls.kernels == ("kai_run_big", "kai_run_sum")
    assert calls.outside == {"kai_run_big": 1}
    assert calls.operators == (
        OperatorCalls(0, 0, 2, _both_kernels(2)),
        OperatorCalls(0, 1, 2, _both_kernels(4)),
        OperatorCalls(0, 2, 2, _both_kernels(6)),
        OperatorCalls(1, 0, 1, _both_kernels(1)),
    )
    assert (calls.delegate_calls, calls.problem) == (3, None)


@pytest.mark.parametrize(
    ("what", "succeeds", "products", "problem"),
    [
        ("crash", False, 6, "None"),
        ("threads", True, 7, "concurrently"),
        ("many", True, sum(1 + number % 3 for number in range(5000)), "too many operators"),
    ],
)
def test_totals_are_right_whatever_happens(
    what: str, succeeds: bool, products: int, problem: str, built: tuple[Path, Path], tmp_path: Path
) -> None:
    """After a crash, as the numbers stand in the file at once.

    Two threads that meet inside of their delegates are not told apart, and there is room for so many operators: the
    file says so.
    """
    code, calls = ran(built, what, tmp_path / "counts")
    assert (code == 0) is succeeds
    assert calls.totals() == {"kai_run_big": products + 1, "kai_run_sum": products}
    assert problem in str(calls.problem)
