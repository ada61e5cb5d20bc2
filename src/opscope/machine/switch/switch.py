"""Switching features off for libraries that nobody built for it: what a process needs for that, and the proof.

``prepared`` gives the variables of the process that is started; once its libraries have asked for the features,
``proof`` reads what was counted, in that process or after it. Neither knows which runtime it is. How it works:
``c/cpuid_trap.c`` and ``c/hwcap_mask.c``.

What a switch library counted, from the file that it shares with us: ``c/report.h`` says how it is laid out.

For which libraries a bundle has shown that a mechanism itself changes nothing: kept by hash, in the user's cache.

Building the small libraries that a process loads to see fewer features: one call of the compiler at hand, once.
"""

from __future__ import annotations

import os
import platform
import stat
import struct
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from opscope.bundle.manifest import MaskProof, Mechanism
from opscope.core.errors import FeatureError, StorageError
from opscope.core.files import storage_errors, text_of
from opscope.core.json import from_json
from opscope.core.system.c_library import other_c_library
from opscope.core.system.cache import VARIABLE, cache_directory
from opscope.core.system.compiler import build_once, compiler_for, run_compiler
from opscope.core.system.elf import read_symbols
from opscope.core.units import counted_text
from opscope.core.writing import write_atomically
from opscope.machine import isa
from opscope.machine.cpu_reading import CPUID_BITS, expected_fields, hwcap_bits
from opscope.machine.isa import WITHOUT_SWITCH
from opscope.machine.processor import read_processor
from opscope.machine.switch.sites import cpuid_sites

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from opscope.machine.cpu_reading import CpuReading


# Version in leaf 0x24; nothing asks for it where leaf 7 does not state AVX10.
_FOLLOWS = {"avx10_2"}
# Features that need one of these, and that cpuinfo has no field for. Leaf, subleaf, register and bit; source: Intel's
# Software Developer's Manual, volume 2, CPUID: AVX-IFMA, AMX-COMPLEX.
_SEPARATORS = ": "  # of paths in a variable of the loader
_ALONG = {"avx2": (7, 1, 0, 23), "amx_tile": (7, 1, 3, 8)}
_HEAD = struct.Struct("<8sIIII")
_LIBRARY_RECORD = struct.Struct("<IIIiIIQQ")
_ROW = struct.Struct("<IIQ")
_MAGIC = b"opswtch2"
# As in c/report.h and c/cpuid_trap.c.
_MOST_LIBRARIES, MOST_ROWS, _MOST_SITES, _LONGEST_PATH = 64, 64, 4096, 4000
_ONE = _LIBRARY_RECORD.size + MOST_ROWS * _ROW.size
_SIZE = _HEAD.size + _MOST_LIBRARIES * _ONE
_DIRECTORY = "switch-shown"
_FOLDER = Path(__file__).with_name("c")
_SOURCES = {Mechanism.TRAP: "cpuid_trap.c", Mechanism.HWCAP: "hwcap_mask.c"}
ARCHITECTURES = {Mechanism.TRAP: "x86_64", Mechanism.HWCAP: "aarch64"}
"""On which each mechanism works, as in ``opscope.machine.isa``."""
# The sources are C, whichever language the compiler is made for.
_FLAGS = ("-x", "c", "-std=gnu11", "-O2", "-fPIC", "-shared")
_HINT = "install a C++ compiler (Debian: apt install g++), or use --switch cpuinfo if available"
_CONSEQUENCE = "cannot build the library that switches features off"


class Mask(NamedTuple):
    """Bits that are cleared in an answer."""

    leaf: int  # of CPUID; 0 for hardware capabilities
    subleaf: int
    register: int  # 0 to 3 for eax, ebx, ecx, edx; 0 and 1 for AT_HWCAP and AT_HWCAP2
    bits: int  # in it


def masks(mechanism: Mechanism, fields: Iterable[str]) -> list[Mask]:
    """Return the bits to clear for fields of ``cpuinfo_isa`` to be off, in order; none for no fields."""
    bits_by_register: dict[tuple[int, int, int], int] = defaultdict(int)
    for field in fields:
        positions = _cpuid_bits(field) if mechanism is Mechanism.TRAP else _capability_bits(field)
        if not positions and field not in _FOLLOWS:
            raise FeatureError(f"the mechanism {mechanism.value} does not support the field {field}")
        for leaf, subleaf, register, bits in positions:
            bits_by_register[leaf, subleaf, register] |= bits
    return [Mask(*register_key, bits) for register_key, bits in sorted(bits_by_register.items())]


def _cpuid_bits(field: str) -> Sequence[tuple[int, int, int, int]]:
    """Return the bits of CPUID that state a field."""
    known = CPUID_BITS.get(field)
    stating = [(known.leaf, known.subleaf, known.register, 1 << known.bit)] if known else []
    along = _ALONG.get(field)
    return stating + ([(*along[:3], 1 << along[3])] if along else [])


def _capability_bits(field: str) -> Sequence[tuple[int, int, int, int]]:
    """Return the bits of the hardware capabilities that state a field."""
    return [(0, 0, register, bits) for register, bits in enumerate(hwcap_bits(field)) if bits]


RECORD = "switch.json"
"""File in the directory of a run that says what was prepared; ``proof`` takes its path."""
_REQUEST, _REPORT, _LIBRARY = "switch.request", "switch.report", "libopscope_switch.so"
_VARIABLE = "OPSCOPE_SWITCH"
_LOADED_BY = {Mechanism.TRAP: "LD_AUDIT", Mechanism.HWCAP: "LD_PRELOAD"}
_FUNCTION = "getauxval"


class PreparedSwitch(NamedTuple):
    """Needs of a process so that its libraries see fewer features."""

    variables: dict[str, str]  # of its environment
    record: Path  # path of the file that `proof` takes
    report: Path  # where the file has to be then that the process writes; elsewhere it is written into its directory


class _Library(msgspec.Struct, frozen=True):
    """A library that is to be switched."""

    path: str
    sites: int  # places that are switched
    outside: int  # places that look like one in no function that it names; they are left as they are


class _Record(msgspec.Struct, frozen=True):
    """Record of a preparation."""

    mechanism: Mechanism  # that switches
    cleared: list[str]  # fields that are off
    masks: list[Mask]  # bits that are cleared for them
    libraries: list[_Library]  # that are switched
    report: str  # path of the file that the switch library writes


def obstacle(mechanism: Mechanism, program: Path | None = None) -> str | None:
    """Return why a mechanism of this module cannot be used for a program here, as one sentence.

    None if it can be tried.
    """
    required, here = ARCHITECTURES[mechanism], platform.machine()
    if sys.platform != "linux" or isa.architecture(here) != required:
        return f"{mechanism.value} needs Linux on {required}, this is {platform.system()} on {here}"
    reason = other_c_library(program)
    if reason:
        return f"{mechanism.value} needs the glibc loader, but {program or 'this Python'} {reason}"
    mode = (program or Path(sys.executable)).stat().st_mode
    if mode & (stat.S_ISUID | stat.S_ISGID):
        return f"the loader ignores {_LOADED_BY[mechanism]} for {program or sys.executable}, a setuid program"
    return None


def fields_here() -> tuple[str, list[str]]:
    """Return the architecture and the fields that the processor itself states, which need no library of a runtime."""
    arch = isa.architecture(platform.machine())
    return arch, fields_stated(arch, read_processor())


def fields_stated(arch: str, reading: CpuReading) -> list[str]:
    """Return the fields that a processor itself states."""
    expected = expected_fields(reading)
    if not isa.switchable(arch) <= expected.keys():
        raise FeatureError("cannot query the processor's features", hint=WITHOUT_SWITCH)
    return sorted(field for field, values in expected.items() if True in values)


def prepared(
    mechanism: Mechanism,
    libraries: Sequence[Path],
    clear: Sequence[str],
    directory: Path,
    program: Path | None = None,
) -> PreparedSwitch:
    """Return the needs of a process so that these libraries see a CPU without some features."""
    refusal = obstacle(mechanism, program)
    if refusal:
        raise FeatureError(refusal, hint=WITHOUT_SWITCH)
    return prepared_for(mechanism, libraries, clear, directory)


def prepared_for(
    mechanism: Mechanism,
    libraries: Sequence[Path],
    clear: Sequence[str],
    directory: Path,
    provide: Callable[[Mapping[str, Path]], Mapping[str, str]] | None = None,
) -> PreparedSwitch:
    """Prepare as :func:`prepared` does, for a process behind an emulator, or on another machine."""
    rows, lines, switched, unproven = masks(mechanism, clear), [], [], 0
    for library in dict.fromkeys(path.resolve() for path in libraries):
        sites, outside = _find_sites(mechanism, library)
        unproven += outside
        if sites:
            switched.append(_Library(str(library), len(sites), outside))
            lines += [f"library {library if mechanism is Mechanism.TRAP and provide is None else library.name}"]
            lines += [f"site {site:x}" for site in sites if mechanism is Mechanism.TRAP]
    if not switched:
        names = ", ".join(path.name for path in libraries) or "nothing"
        problem = f"no library queries the CPU's features in a way that {mechanism.value} switches: {names}"
        if unproven:
            count = counted_text(unproven, "place")
            problem = f"cpuid may occur only outside the functions that {names} names, at {count}: none was switched"
        raise FeatureError(problem, hint=WITHOUT_SWITCH)
    run_directory = directory.resolve()
    _check_room(switched, run_directory)
    report, request, record = run_directory / _REPORT, run_directory / _REQUEST, run_directory / RECORD
    text = [
        f"report {report.name if provide else report}",
        *(f"row {' '.join(f'{part:x}' for part in row)}" for row in rows),
        *lines,
    ]
    with storage_errors(run_directory):
        report.unlink(missing_ok=True)
    write_atomically(request, "".join(f"{line}\n" for line in text).encode(), follow=False)
    prepared_record = _Record(mechanism, list(clear), rows, switched, str(report))
    write_atomically(record, msgspec.json.encode(prepared_record), follow=False)
    loads, library = _LOADED_BY[mechanism], switch_library(mechanism)
    paths = {_LIBRARY: str(library), _REQUEST: str(request)}
    if provide:
        paths = dict(provide({_LIBRARY: library, _REQUEST: request}))
    library_path, loaded_before = paths[_LIBRARY], None if provide else os.environ.get(loads)
    if set(library_path) & set(_SEPARATORS):
        hint = f"set {VARIABLE} to a directory without spaces and colons"
        raise FeatureError(f"a path with a space or a colon cannot be used in {loads}", where=library_path, hint=hint)
    variables = {
        loads: f"{library_path}:{loaded_before}" if loaded_before else library_path,
        _VARIABLE: paths[_REQUEST],
    }
    return PreparedSwitch(variables, record, report)


def _check_room(libraries: Sequence[_Library], directory: Path) -> None:
    """Refuse libraries that the switch library has no room for, or cannot be told."""
    sites = sum(library.sites for library in libraries)
    if len(libraries) > _MOST_LIBRARIES or sites > _MOST_SITES:
        problem = f"{len(libraries)} libraries with {sites:,} places; at most {_MOST_LIBRARIES} with {_MOST_SITES:,}"
        raise FeatureError(problem, hint=WITHOUT_SWITCH)
    for path in (*(library.path for library in libraries), str(directory)):
        if len(os.fsencode(path)) > _LONGEST_PATH or "\n" in path:
            raise FeatureError("the path is too long, or has a line break in it", where=path, hint=WITHOUT_SWITCH)


def proof(record: Path) -> MaskProof:
    """Return the proof that the libraries of a process saw no more features than they should.

    Called in the process itself once they have asked, or when it has ended.
    """
    with storage_errors(record):
        switch = from_json(record.read_bytes(), _Record)
    if not Path(switch.report).exists():
        problem = f"nothing was switched: the loader ignored {_LOADED_BY[switch.mechanism]}, or no library was loaded"
        raise FeatureError(problem, hint=WITHOUT_SWITCH)
    process, libraries = read_report(Path(switch.report))
    _check_report(switch, process, libraries)
    switched_libraries = [library for library in libraries if library.loaded]
    outside = sum(
        request.outside for request, library in zip(switch.libraries, libraries, strict=True) if library.loaded
    )
    is_trap = switch.mechanism is Mechanism.TRAP
    return MaskProof(
        cleared=switch.cleared,
        backend_loaded_before=False,
        same_symbol=True,
        struct_size=None,
        mechanism=switch.mechanism,
        sites=sum(library.sites for library in switched_libraries),
        sites_executed=sum(library.executed for library in switched_libraries) if is_trap else None,
        sites_outside=outside if is_trap else None,
        executions=sum(library.executions for library in switched_libraries),
        masked=sum(library.masked for library in switched_libraries),
    )


def _check_report(record: _Record, process: int, libraries: Sequence[SwitchedLibrary]) -> None:
    """Refuse a report that is no proof."""
    for request, library in zip(record.libraries, libraries, strict=True):
        if library.problem:
            raise FeatureError(_problem_text(library), where=request.path, hint=WITHOUT_SWITCH)
        if not library.loaded and process == os.getpid() and record.mechanism is Mechanism.TRAP:
            _check_absent(request)
        if library.loaded and record.mechanism is Mechanism.TRAP and library.sites != request.sites * library.loaded:
            problem = f"{library.sites} of {request.sites} cpuid instructions were switched"
            raise FeatureError(problem, where=request.path, hint=WITHOUT_SWITCH)
    if not any(library.executions for library in libraries):
        raise FeatureError("no library queried the CPU's features, so nothing was switched off", hint=WITHOUT_SWITCH)
    masked = sum(library.masked for library in libraries)
    if record.cleared and not masked:
        fields = ", ".join(record.cleared)
        raise FeatureError(f"no answer had the features to be switched off: {fields}", hint=WITHOUT_SWITCH)
    if not record.cleared and masked:
        raise FeatureError("features were switched off that should have stayed on", hint=WITHOUT_SWITCH)


def _check_absent(library: _Library) -> None:
    """Refuse a library that this process has and that was not switched."""
    if any(line.endswith(library.path) for line in text_of(Path("/proc/self/maps")).splitlines()):
        raise FeatureError("the library was loaded but not switched", where=library.path, hint=WITHOUT_SWITCH)


def _problem_text(library: SwitchedLibrary) -> str:
    """Return why a library could not be switched."""
    reason = f": {os.strerror(library.detail)}" if library.detail else ""
    return f"the library could not be switched: {_PROBLEMS.get(library.problem, 'unknown reason')}{reason}"


_PROBLEMS = {
    1: "its code in memory differs from the file",
    2: "the system does not allow changing its code, as with SELinux and hardened kernels",
    3: "another SIGILL handler replaced ours",
    4: "the protection of its code could not be restored",
    5: "a second process of the same run loaded it",
    6: "the system does not allow handling SIGILL",
}


def _find_sites(mechanism: Mechanism, library: Path) -> tuple[Sequence[int], int]:
    """Return the places to switch in a library, and how many are left since no function of it holds them.

    One, without an address, for a library that asks for hardware capabilities.
    """
    if mechanism is Mechanism.TRAP:
        sites = cpuid_sites(library)
        return sites.addresses, sites.outside
    with storage_errors(library):
        symbols = read_symbols(library.read_bytes(), library)
    return [0] if symbols is not None and _FUNCTION in symbols.undefined else [], 0


class SwitchedLibrary(NamedTuple):
    """Outcome of one library."""

    loaded: int  # times that it was loaded
    sites: int  # places that were switched in it
    problem: int  # number of the reason why it could not be switched; 0 for none
    detail: int  # error number of the system, where that is the reason
    executed: int  # places that were switched and asked at least once; 0 for hardware capabilities
    executions: int  # questions that it asked
    masked: int  # of them, those that were answered with fewer features
    # in the order in which they were asked for: bits that were set in an answer of the processor and were cleared (0
    # for hardware capabilities), and the answers in which some were
    rows: tuple[tuple[int, int], ...]


def read_report(file: Path) -> tuple[int, tuple[SwitchedLibrary, ...]]:
    """Return the process that was counted so far, and its libraries in the order of the request; it may still run."""
    with storage_errors(file):
        data = file.read_bytes()
    if len(data) != _SIZE:
        raise FeatureError(f"the switch report has {len(data)} bytes instead of {_SIZE}", where=file)
    magic, size, process, libraries, rows = _HEAD.unpack_from(data)
    if magic != _MAGIC or size != _SIZE or libraries > _MOST_LIBRARIES or rows > MOST_ROWS:
        raise FeatureError("the switch report is damaged or of another version", where=file)
    return process, tuple(_unpack_library(data, number, rows) for number in range(libraries))


def _unpack_library(data: bytes, number: int, rows: int) -> SwitchedLibrary:
    """Return the outcome of one library."""
    at = _HEAD.size + number * _ONE
    counts = [_ROW.unpack_from(data, at + _LIBRARY_RECORD.size + row * _ROW.size) for row in range(rows)]
    pairs = tuple((cleared, answers) for cleared, _, answers in counts)
    loaded, sites, problem, detail, executed, _, executions, masked = _LIBRARY_RECORD.unpack_from(data, at)
    return SwitchedLibrary(loaded, sites, problem, detail, executed, executions, masked, pairs)


def is_shown(libraries: str) -> bool:
    """Return whether that was shown for libraries; a cache that cannot be used has shown nothing."""
    try:
        return _shown_file(libraries).exists()
    except (StorageError, OSError):
        return False


def keep_shown(libraries: str) -> None:
    """Keep that it was shown; where nothing can be kept, it is shown again by the next bundle."""
    try:
        file = _shown_file(libraries)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, b"")
    except (StorageError, OSError):
        return


def _shown_file(libraries: str) -> Path:
    """Return the file that says that it was shown for libraries."""
    return cache_directory() / _DIRECTORY / libraries


def switch_library(mechanism: Mechanism, cache: Path | None = None) -> Path:
    """Return the library of a mechanism; built when there is none of this source and compiler."""
    source, here = _FOLDER / _SOURCES[mechanism], isa.architecture(platform.machine())
    compiler = compiler_for(ARCHITECTURES[mechanism], here, _CONSEQUENCE, _HINT, ("g++", "gcc"))
    texts = [file.read_text(encoding="utf-8") for file in (source, _FOLDER / "report.h")]

    def build(path: Path) -> None:
        command = [*compiler.command, *_FLAGS, str(source), "-o", str(path), "-ldl", "-lpthread"]
        run_compiler(command, f"the compiler failed, so {_CONSEQUENCE}", _HINT)

    parts = (compiler.version, *compiler.command, *_FLAGS, *texts)
    return build_once("switch", f"libopscope_{mechanism.value}.so", parts, build, cache)
