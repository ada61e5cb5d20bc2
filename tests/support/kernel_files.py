"""Files that tell of kernels, written here: the counter's, and the texts of profilers.

The texts have the forms that the programs' own sources and published exports show.
"""

from __future__ import annotations

import struct

from opscope.readers.kernels import MAGIC

GEMM = "xnn_f32_gemm_minmax_ukernel_7x16__avx512f_broadcast"
ADD = "xnn_f32_vadd_minmax_ukernel__avx512f_u32"
MOPA = "kai_run_matmul_clamp_f32_f32p2vlx1_f32p2vlx1biasf32_sme2_mopa"
ASSEMBLY = MOPA.replace("kai_run", "kai_kernel")


REPORT_SAMPLE = f"""sample:
  event_type: cpu-cycles
  time: 100
  event_count: 4000
  thread_id: 7
  thread_name: runner
  vaddr_in_file: 1f40
  file: /data/local/tmp/libxnn.so
  symbol: {ASSEMBLY}
  callchain:
    vaddr_in_file: 1e00
    file: /data/local/tmp/libxnn.so
    symbol: {MOPA}
sample:
  event_type: cpu-cycles
  time: 101
  event_count: 1000
  thread_id: 8
  thread_name: worker: 1
  vaddr_in_file: 77
  file: /data/local/tmp/libxnn.so
  symbol: unknown
lost_situation:
  sample_count: 2
  lost_count: 0
"""
REPORT = f"""Cmdline: /data/local/tmp/simpleperf record -p 812
Arch: arm64
Event: cpu-cycles (type 0, config 0)
Samples: 40
Event count: 400000

Overhead  Sample  Command    Pid  Tid  Shared Object              Symbol
75.00%    30      my runner  812  812  /data/local/tmp/libxnn.so  {MOPA}
20.00%    8       my runner  812  813  /data/local/tmp/libxnn.so  {ADD}
       |
       -- main
5.00%     2       my runner  812  813  /system/lib64/libc.so      libc.so[+4f0]
"""
REPORT_CSV = f"""Cmdline: simpleperf record
Arch: arm64
Event: cpu-cycles (type 0, config 0)
Samples: 4
Event count: 400

Overhead,Command,Tid,Shared Object,Symbol
75.00%,"a, b",812,/x/libxnn.so,{MOPA}
25.00%,"a, b",813,/x/libxnn.so,"void f(int, int)"
"""


SAMPLE = f"""Sampling process 812 for 3 seconds with 1 millisecond of run time between samples
Analysis of sampling runner (pid 812) every 1 millisecond
Process:         runner [812]
----

Call graph:
    100 Thread_2663   DispatchQueue_1: com.apple.main-thread  (serial)
    + 100 start  (in dyld) + 1  [0x7fff902a75ad]
    +   97 main  (in runner) + 522  [0x106776d9a]
    +   ! 60 {MOPA}  (in libxnn.dylib) + 12  [0x1]
    +   ! : 55 {ASSEMBLY}  (in libxnn.dylib) + 40  [0x2]
    +   ! 30 ???  (in libxnn.dylib)  load address 0x1069de000 + 0x13dea66  [0x3]
    +   3 {ADD}  (in libxnn.dylib) + 4,8,...  [0x4,0x5,...]
    40 Thread_2670
    + 40 __psynch_cvwait  (in libsystem_kernel.dylib) + 10  [0x6]

Total number in stack (recursive counted multiple, when >=5):
        60       {MOPA}  (in libxnn.dylib) + 0  [0x1]

Sort by top of stack, same collapsed (when >= 5):
        {MOPA}  (in libxnn.dylib)        60
"""
XCTRACE = f"""<?xml version="1.0"?>
<trace-query-result>
<node xpath='//trace-toc[1]/run[1]/data[1]/table[1]'>
<schema name="time-profile"><col><mnemonic>time</mnemonic><name>Sample Time</name></col></schema>
<row><sample-time id="1" fmt="00:00.001">1000000</sample-time>
  <thread id="2" fmt="Main Thread 0x3f2 (runner, pid: 812)"><tid id="3" fmt="0x3f2">1010</tid></thread>
  <process id="4" fmt="runner (812)"><pid id="5" fmt="812">812</pid></process>
  <core id="6" fmt="CPU 4">4</core><thread-state id="7" fmt="Running">Running</thread-state>
  <weight id="8" fmt="1.00 ms">1000000</weight>
  <tagged-backtrace id="9" fmt="x"><backtrace id="10">
    <frame id="11" name="{ASSEMBLY}" addr="0x10"><binary id="12" name="libxnn.dylib" path="/x/libxnn.dylib"/></frame>
    <frame id="13" name="{MOPA}" addr="0x20"><binary ref="12"/></frame>
  </backtrace></tagged-backtrace></row>
<row><sample-time id="14" fmt="00:00.002">2000000</sample-time><thread ref="2"/><process ref="4"/><core ref="6"/>
  <thread-state ref="7"/><weight ref="8"/><tagged-backtrace ref="9"/></row>
<row><sample-time id="15" fmt="00:00.003">3000000</sample-time>
  <thread id="16" fmt="Thread 0x3f3 (runner, pid: 812)"/><process ref="4"/><thread-state ref="7"/><weight ref="8"/>
  <backtrace id="17"><frame id="18" name="0x10001f40" addr="0x10001f40"/></backtrace></row>
<row><sample-time id="19" fmt="00:00.004">4000000</sample-time><thread ref="16"/>
  <thread-state id="20" fmt="Blocked">Blocked</thread-state><weight ref="8"/>
  <backtrace id="21"><frame id="22" name="{ADD}" addr="0x30"/></backtrace></row>
</node></trace-query-result>
"""


PERF = f"spin 7 1.5: 10 cpu-clock: 7f1 {GEMM}+0x2 (/x/spin)\n"
TEXTS = [PERF, REPORT_SAMPLE, REPORT, REPORT_CSV, SAMPLE, XCTRACE]


NONE = 0xFFFFFFFF


def encode(
    names: list[str], rows: list[tuple[int, int, int, list[int]]], *, flags: int = 0, spare: int = 2, calls: int = 3
) -> bytes:
    """A file of counts; a row is delegate, operator, runs and one number for each kernel."""
    text = b"".join(name.encode() + b"\0" for name in names) + b"\0"
    count = len(rows) + spare
    out = struct.pack("<8s4I2Q", MAGIC, len(names), count, len(rows), flags, len(text), calls)
    out += text.ljust((len(text) + 7) // 8 * 8, b"\0")
    out += b"".join(struct.pack("<IIQ", *row[:3]) for row in rows) + bytes(16 * spare)
    return out + b"".join(struct.pack(f"<{len(names)}Q", *row[3]) for row in rows) + bytes(8 * len(names) * spare)


ROWS = [
    (NONE, NONE, 0, [4, 0]),
    (0, NONE, 0, [0, 0]),
    (0, 0, 5, [0, 0]),
    (0, 1, 5, [0, 320]),
    (0, 2, 0, [0, 0]),
    (1, 0, 5, [0, 1]),
]
FILE = encode(["kai_run_a", "kai_run_b"], ROWS)
