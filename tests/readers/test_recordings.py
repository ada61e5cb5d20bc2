"""Recordings of sampling profilers: what fell into which kernel, in which thread.

perf is real where it may record. The texts of the other profilers are written after the forms that their own
sources and published exports show; none of those programs runs on this system.
"""

from __future__ import annotations

import gzip
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kernel_files import ADD, ASSEMBLY, GEMM, MOPA, REPORT, REPORT_CSV, REPORT_SAMPLE, SAMPLE, TEXTS, XCTRACE
from opscope.core.errors import EmptyTraceError, OpscopeError, TraceFormatError
from opscope.program.kernels.recordings import Recording
from opscope.readers.recordings import is_recording, read_recording


def read(directory: Path, text: str) -> Recording:
    """The recording of a text."""
    file = directory / "recording.txt"
    file.write_text(text, encoding="utf-8")
    assert is_recording(file.read_bytes())
    return read_recording(file)


def samples(recording: Recording) -> dict[tuple[str, str | None], int | None]:
    """Samples by thread and kernel."""
    found: dict[tuple[str, str | None], int | None] = {}
    for row in recording.functions:
        key = row.thread, row.kernel
        found[key] = None if row.samples is None else (found.get(key) or 0) + row.samples
    return found


# ---- perf

SPIN = f"""
#include <pthread.h>
volatile double x;
__attribute__((noinline)) void {GEMM}(long n) {{ for (long i = 0; i < n; ++i) x = x * 1.0000001 + 1; }}
__attribute__((noinline)) void {ADD}(long n) {{ for (long i = 0; i < n; ++i) x = x * 0.99 + 1; }}
void* work(void* a) {{ {GEMM}(90000000); {ADD}(15000000); return a; }}
int main() {{
  pthread_t one, other;
  pthread_create(&one, 0, work, 0); pthread_create(&other, 0, work, 0);
  pthread_join(one, 0); pthread_join(other, 0);
}}
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What perf recorded of two threads, each in two kernels."""
    for program in ("perf", "gcc"):
        if shutil.which(program) is None:
            pytest.skip(f"needs {program}")
    work = tmp_path_factory.mktemp("perf")
    (work / "spin.c").write_text(SPIN)
    subprocess.run(["gcc", "-O1", "-o", work / "spin", work / "spin.c", "-lpthread"], check=True)
    command = ["perf", "record", "-q", "-e", "cpu-clock", "-F", "199", "-g", "-o", work / "perf.data", work / "spin"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"perf may not record here: {done.stderr.strip().splitlines()[-1:]}")
    return work / "perf.data"


@pytest.mark.parametrize("options", [[], ["-G"], ["-F", "comm,pid,tid,time,period,event,ip,sym,dso"], ["--header"]])
def test_what_perf_prints_is_read_whatever_is_asked_of_it(recorded: Path, tmp_path: Path, options: list[str]) -> None:
    """With stacks, without them, with process numbers, behind a header: two threads, each in both kernels."""
    printed = subprocess.run(
        ["perf", "script", "-i", recorded, *options], capture_output=True, text=True, check=True
    ).stdout
    found = read(tmp_path, printed)
    threads = {row.thread for row in found.functions if row.kernel == GEMM}
    assert len(threads) == 2
    assert all(thread.startswith("spin/") for thread in threads)
    by_kernel = {name: sum(row.samples or 0 for row in found.functions if row.kernel == name) for name in (GEMM, ADD)}
    assert by_kernel[GEMM] > by_kernel[ADD] > 0
    assert (found.format, found.unit) == ("perf script", "events")
    assert {row.event for row in found.functions} == {"cpu-clock"}


def test_what_perf_records_into_is_no_text(recorded: Path) -> None:
    """The error says how to print it."""
    with pytest.raises(TraceFormatError, match="the profiler's raw recording") as caught:
        read_recording(recorded)
    assert "perf script" in str(caught.value.hint)


def test_a_helper_of_a_kernel_counts_for_the_kernel(tmp_path: Path) -> None:
    """The innermost kernel of the stack; its assembly has the name of the function that calls it."""
    text = f"""
my runner  812/813  [003] 4711.000001:     250000 cycles:u:
\t         7f1 __memcpy_generic+0x4 (/lib/libc.so.6)
\t         7f2 {ASSEMBLY}+0x40 (/x/libexecutorch_backend_xnnpack.so)
\t         7f3 {MOPA}+0x10 (/x/libexecutorch_backend_xnnpack.so)
\t         7f4 [unknown] (/x/runner)

my runner  812/813  [003] 4711.000002:     250000 cycles:u:
\t         7f1 [unknown] ([unknown])
"""
    first, second = read(tmp_path, text).functions
    assert (first.function, first.kernel, first.thread) == ("__memcpy_generic", MOPA, "my runner/813")
    assert (first.weight, first.samples, first.event) == (250000.0, 1, "cycles:u")
    assert (second.function, second.library, second.kernel) == (None, None, None)


def test_names_without_symbols_are_told(tmp_path: Path) -> None:
    """The share of what has no name is known; a kernel may hide there."""
    line = "r 1 1.5: 10 cycles: 7f1 [unknown] (/x/lib.so)\n"
    assert read(tmp_path, line).nameless == 1.0


# ---- simpleperf


def test_samples_of_simpleperf_are_read(tmp_path: Path) -> None:
    """Thread names may hold colons; other records are passed over; assembly counts for its function."""
    found = read(tmp_path, REPORT_SAMPLE)
    assert samples(found) == {("runner/7", MOPA): 1, ("worker: 1/8", None): 1}
    assert [row.weight for row in found.functions] == [4000.0, 1000.0]
    assert found.format == "simpleperf report-sample"


def test_the_table_of_simpleperf_is_read_by_its_columns(tmp_path: Path) -> None:
    """Commands may hold blanks; call graphs are passed over; an offset in a library is not a name."""
    found = read(tmp_path, REPORT)
    assert samples(found) == {("my runner/812", MOPA): 30, ("my runner/813", ADD): 8, ("my runner/813", None): 2}
    assert (found.unit, found.weight) == ("percent", 100.0)
    assert found.functions[2].function is None


def test_the_csv_of_simpleperf_is_read(tmp_path: Path) -> None:
    """Without a column of samples their number is not known."""
    found = read(tmp_path, REPORT_CSV)
    assert samples(found) == {("a, b/812", MOPA): None, ("a, b/813", None): None}
    assert found.functions[1].function == "void f(int, int)"


def test_zero_bytes_in_the_csv_of_simpleperf_are_shown(tmp_path: Path) -> None:
    """In a damaged file: the csv module of Python 3.10 refuses them, newer ones do not."""
    found = read(tmp_path, REPORT_CSV.replace("a, b", "a\0b"))
    assert {row.thread for row in found.functions} == {"a\ufffdb/812", "a\ufffdb/813"}


# ---- macOS


def test_the_tree_of_sample_gives_each_function_its_own_samples(tmp_path: Path) -> None:
    """What is in no call below a line fell into its function; a helper counts for the kernel that called it."""
    found = read(tmp_path, SAMPLE)
    own = {(row.thread, row.function): row.samples for row in found.functions}
    assert own["Thread_2663", ASSEMBLY] == 55
    assert own["Thread_2663", MOPA] == 5
    assert own["Thread_2663", "main"] == 7
    assert own["Thread_2663", None] == 30
    assert own["Thread_2670", "__psynch_cvwait"] == 40
    assert samples(found)["Thread_2663", MOPA] == 60
    assert sum(row.samples or 0 for row in found.functions) == 140


def test_the_export_of_xctrace_follows_references(tmp_path: Path) -> None:
    """Values that occur again are references; a thread that is blocked runs nothing; an address is not a name."""
    found = read(tmp_path, XCTRACE)
    assert samples(found) == {
        ("Main Thread 0x3f2 (runner, pid: 812)", MOPA): 2,
        ("Thread 0x3f3 (runner, pid: 812)", None): 1,
    }
    assert (found.unit, found.weight) == ("ns", 3e6)
    assert found.functions[0].library == "libxnn.dylib"


def test_an_export_with_a_document_type_is_refused(tmp_path: Path) -> None:
    """Entities could be made to grow without end."""
    bomb = '<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]>'
    with pytest.raises(TraceFormatError, match="document type"):
        read(tmp_path, XCTRACE.replace('<?xml version="1.0"?>', f'<?xml version="1.0"?>{bomb}'))


def test_an_export_that_is_cut_off_is_said_to_be(tmp_path: Path) -> None:
    """With the place where it ends."""
    with pytest.raises(TraceFormatError, match="XML is damaged") as caught:
        read(tmp_path, XCTRACE[:1500])
    assert caught.value.offset is not None


def test_tables_of_different_units_are_not_added(tmp_path: Path) -> None:
    """Nanoseconds and cycles in one file."""
    with pytest.raises(TraceFormatError, match="different units"):
        read(tmp_path, XCTRACE.replace('<weight ref="8"/>', "<cycle-weight>5</cycle-weight>", 1))


# ---- all


def test_a_compressed_recording_is_read(tmp_path: Path) -> None:
    """Like every other file."""
    file = tmp_path / "r.gz"
    file.write_bytes(gzip.compress(REPORT.encode()))
    assert len(read_recording(file).functions) == 3


def test_a_recording_without_samples_says_what_to_do(tmp_path: Path) -> None:
    """Never an empty table."""
    with pytest.raises(EmptyTraceError, match="no samples") as caught:
        read(tmp_path, REPORT.partition("75.00%")[0])
    assert "record" in str(caught.value.hint)


def test_a_file_of_another_kind_is_no_recording(tmp_path: Path) -> None:
    """The forms that are read are listed."""
    file = tmp_path / "x.txt"
    file.write_text("hello\n")
    with pytest.raises(TraceFormatError, match="not a profiler recording") as caught:
        read_recording(file)
    assert "xctrace" in str(caught.value.hint)


@settings(max_examples=150, deadline=None)
@given(text=st.sampled_from(TEXTS), cuts=st.lists(st.tuples(st.floats(0, 1), st.binary(max_size=6)), max_size=4))
@example(text=SAMPLE, cuts=[(0.5, b"\n 99999999999 x"[:6])])
def test_damage_ends_in_a_recording_or_in_an_error(
    tmp_path_factory: pytest.TempPathFactory, text: str, cuts: list[tuple[float, bytes]]
) -> None:
    """Whatever bytes stand in it, weights are not negative and nothing else is raised."""
    data = text.encode()
    for place, junk in cuts:
        at = int(place * len(data))
        data = data[:at] + junk + data[at + len(junk) + 3 :]
    file = tmp_path_factory.mktemp("damaged", numbered=True) / "r"
    file.write_bytes(data)
    try:
        found = read_recording(file)
    except OpscopeError:
        return
    assert found.functions
    assert all(row.weight >= 0 for row in found.functions)
