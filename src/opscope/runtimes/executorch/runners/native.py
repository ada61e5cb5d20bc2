"""The native runner of ExecuTorch: built against the installed package, each repetition a process of it."""

from __future__ import annotations

import functools
import hashlib
import platform
import sys
import tempfile
import time
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from opscope.bundle.bundle import SCRATCH
from opscope.bundle.manifest import Failure, FailureKind, MaskProof, PlannedInput, Target
from opscope.core.errors import DeviceError, FeatureError, MissingDependencyError, RunError
from opscope.core.system.c_library import check_c_library
from opscope.core.system.cache import cache_directory, is_whole
from opscope.core.system.pythons import HERE
from opscope.core.writing import open_atomically, scratch_directory
from opscope.experiment.protocol import LOG, OUTPUTS, TRACE, ProbeAnswer
from opscope.experiment.target import Capabilities, JobOutcome
from opscope.experiment.tensors import from_bytes, random_inputs, to_bytes
from opscope.hosts.emulator import EmulatedMachine, find_emulator
from opscope.hosts.host import ProcessSettings
from opscope.hosts.process import question_seconds
from opscope.hosts.target_kinds import NATIVE
from opscope.hosts.this_machine import ThisMachine
from opscope.machine import environment, isa
from opscope.machine.cpu_reading import CPUID_LEAVES, CpuReading, fixed_fields
from opscope.machine.isa import proved_layout
from opscope.machine.switch.switch import proof
from opscope.program.structure.dtypes import program_type
from opscope.program.structure.exported import Tensor
from opscope.runtimes.counting.kernel_counter import COUNTS
from opscope.runtimes.executorch.installed import (
    BACKEND,
    THREADPOOL,
    installed_runtime,
    library_directory,
    source_versions,
)
from opscope.runtimes.executorch.kernel_libraries import extra_kernels
from opscope.runtimes.executorch.runners.python import python_here
from opscope.runtimes.hosted import ended_by
from opscope.runtimes.native.building import (
    COMPILER_HINT,
    LINUX_FLAGS,
    RuntimeFolder,
    build_key,
    check_architecture,
    compile_runner,
    find_compiler,
    host_architecture,
    make_folder,
    source_flags,
)
from opscope.runtimes.native.start import (
    INPUT,
    OUTPUT,
    NativeProgram,
    RawTensor,
    RunnerAnswer,
    RunnerCall,
    RunnerStarter,
    RunnerTarget,
    SentFile,
    joined_variables,
    program_for,
)
from opscope.runtimes.native.wheel_runner import Wheel, unpacked_wheel
from opscope.runtimes.switching import brought_by, is_switched_outside, variables_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from opscope.bundle.manifest import Mechanism
    from opscope.core.system.pythons import Python
    from opscope.experiment.protocol import Job
    from opscope.experiment.target import SwitchOffer
    from opscope.experiment.tensors import Array
    from opscope.hosts.device import Device
    from opscope.hosts.host import Host
    from opscope.runtimes.executorch.runners.python import PythonTarget
    from opscope.runtimes.switching import LibrarySwitch


class NativeAnswer(RunnerAnswer, frozen=True):
    """What the runner writes: a measurement, the description of a method, the features, or an error."""

    method: str = ""  # that was run or described; several are separated by commas
    # of the methods, one after the other, in the order of their first calls, with the sizes that these declare;
    # null for one that is no tensor
    inputs: list[RawTensor | None] = msgspec.field(default_factory=list)
    outputs: list[RawTensor] = msgspec.field(default_factory=list)  # likewise, of the last call of each
    mask: MaskProof | None = None  # proof that the features were off
    planned_bytes: int = 0  # memory that the method plans for its tensors
    isa: list[int] | None = None  # bytes of `cpuinfo_isa`, when the CPU's features were asked for
    struct_size: int | None = None  # as the symbol table states it; null where it states none


def _tensor(raw: RawTensor) -> Tensor:
    return Tensor(raw.sizes, program_type(raw.type).name)


def write_inputs(described: Sequence[RawTensor | None], job: Job, work: Path) -> str:
    """Write the inputs of a job, one file each; that of an input that is no tensor is empty.

    Returns what each of them is, for the runner; empty for tensors of the declared sizes.
    """
    if not job.inputs and None in described:
        raise RunError(f"input {described.index(None)} is not a tensor, and its type is unknown")
    declared = [_tensor(raw) for raw in described if raw]
    given = job.inputs or [PlannedInput(one.shape, one.dtype) for one in declared]
    arrays = iter(_arrays([Tensor(one.shape, one.dtype) for one in given if one.shape is not None], job))
    for number, (raw, one) in enumerate(zip(described, given, strict=True)):
        tensor = raw is not None and one.shape is not None
        content = to_bytes(next(arrays), one.dtype, raw.dim_order) if raw is not None and tensor else b""
        (work / f"{INPUT}-{number}.bin").write_bytes(content)
    return ",".join(map(_kind, job.inputs))


def _arrays(tensors: Sequence[Tensor], job: Job) -> Sequence[Array]:
    if job.values is None:
        return random_inputs(tensors, job.seed)
    with np.load(job.values, allow_pickle=False) as file:
        return [file[f"arr_{number}"] for number, one in enumerate(job.inputs) if one.shape is not None]


def _kind(one: PlannedInput) -> str:
    """An input in the words of the runner."""
    if one.shape is not None:
        return f"t:{'x'.join(map(str, one.shape))}"
    if one.value is None:
        return "n"
    letter = {"int": "i", "float": "f", "bool": "b"}[one.dtype]
    return f"{letter}:{int(one.value) if letter != 'f' else one.value!r}"


def read_outputs(outputs: Sequence[RawTensor], work: Path) -> tuple[list[Array], str]:
    """The outputs as arrays, and the hash of all their values in the order of their dimensions."""
    arrays, digest = [], hashlib.sha256()
    for number, raw in enumerate(outputs):
        array = from_bytes((work / f"{OUTPUT}-{number}.bin").read_bytes(), _tensor(raw), raw.dim_order)
        arrays.append(array)
        digest.update(array.tobytes())
    return arrays, digest.hexdigest()


_SHORT_SECONDS = 60.0
_PROGRAM, _DATA = "program.pte", "program.ptd"
_PROBE = {"probe": 1, "cpuid_leaves": ",".join(f"{leaf}/{subleaf}" for leaf, subleaf in CPUID_LEAVES)}
_MAC = sys.platform == "darwin"
_SUFFIX = ".dylib" if _MAC else ".so"
_PARTS = ("libexecutorch", "libexecutorch_kernels_optimized", BACKEND, "libexecutorch_kernels_quantized")


class NativeJobs:
    """Runs jobs with the native runner, which was built for ``arch``, as in ``opscope.machine.isa``.

    ``versions`` are of the runtime and of what built the runner; ``probe`` asks for the CPU's features in its place.
    """

    def __init__(
        self,
        runner: NativeStarter,
        versions: Mapping[str, str],
        arch: str,
        probe: Callable[[], ProbeAnswer] | None = None,
    ) -> None:
        self._runner, self._versions, self._arch = runner, dict(versions), arch
        self._probe = probe or self._ask_features
        self._described: dict[tuple[str, int, int, str], list[RawTensor | None]] = {}

    @cached_property
    def probed(self) -> ProbeAnswer:
        """The CPU's features as the runtime sees them; asked once."""
        return self._probe()

    def loader_version(self) -> str:
        """Return what the loader that is brought to a device says of itself there."""
        return self._runner.loader_version()

    def _ask_features(self, process: ProcessSettings | None = None) -> ProbeAnswer:
        with tempfile.TemporaryDirectory(prefix="opscope-") as directory:
            work = Path(directory)
            seconds = question_seconds(_SHORT_SECONDS)
            call = RunnerCall(_PROBE, work, work / LOG, seconds, process=process or ProcessSettings())
            heard = self._runner.answer(call)
        if isinstance(heard, Failure):
            raise RunError(f"cannot read the CPU's features: {heard.message}", hint=_NO_RUNNER)
        if heard.isa is None or heard.processor is None:
            raise RunError("the runner reported no features", hint=_NO_RUNNER)
        return probe_answer(heard.isa, heard.struct_size, heard.processor, self._arch)

    def execute(self, job: Job, directory: Path) -> JobOutcome:
        """Run a job; see :meth:`opscope.experiment.target.RunTarget.execute`."""
        try:
            with scratch_directory(directory / SCRATCH) as work:
                return self._execute(job, directory, work)
        except (FeatureError, DeviceError, RunError, OSError) as error:
            return ended_by(error)
        except ValueError as error:
            return ended_by(RunError(f"the runner's output does not match the program: {error}"))

    def offer(self, mechanism: Mechanism) -> SwitchOffer:
        """What a mechanism can do for the runner's libraries."""
        return self._runner.switching(lambda: self.probed).offer(mechanism)

    def _execute(self, job: Job, directory: Path, work: Path) -> JobOutcome:
        calls = ",".join(job.calls)
        inputs = self._inputs(Path(job.program), calls, work, directory / LOG)
        if isinstance(inputs, Failure):
            return JobOutcome(failure=inputs)
        kinds = write_inputs(inputs, job, work)
        outside = is_switched_outside(job)
        switch = self._runner.switching(lambda: self.probed).prepared(job, work) if outside else None
        flags = {
            **self._features(None if switch else job.clear, job.process.processor),
            "method_name": calls,
            "input_kinds": kinds,
            "kernels": ",".join(self._runner.kernels(Path(job.program))),
            "warmup": job.warmup,
            "num_executions": job.inferences - job.warmup,
            "cpu_threads": job.threads,
            "cpu_affinity": ",".join(map(str, job.variant.affinity)),
        }
        if job.traced:
            flags["etdump_path"] = TRACE
        sent = {"model_path": SentFile("programs", _PROGRAM, Path(job.program))}
        if job.data:
            sent["data_path"] = SentFile("data", _DATA, Path(job.data))
        heard = self._runner.answer(
            RunnerCall(
                flags=flags,
                work=work,
                log=directory / LOG,
                timeout=job.timeout_seconds,
                process=job.process,
                sent=sent,
                inputs=len(inputs),
                outputs=True,
                brought={TRACE: directory / TRACE, COUNTS: directory / COUNTS, **brought_by(switch)},
                variables=joined_variables(self._runner.counting(job.counter), variables_of(switch)),
            )
        )
        if isinstance(heard, Failure):
            return JobOutcome(failure=heard)
        if switch:
            heard = msgspec.structs.replace(heard, mask=proof(switch.record))
        return self._outcome(heard, job, directory, work)

    def _inputs(self, program: Path, calls: str, work: Path, log: Path) -> list[RawTensor | None] | Failure:
        """The inputs of a program's methods; asked once for a file."""
        try:
            state = program.stat()
        except OSError as error:
            return Failure(FailureKind.EXIT, f"{program}: {error.strerror}")
        key = (str(program), state.st_mtime_ns, state.st_size, calls)
        if key not in self._described:
            flags, sent = {"method_name": calls, "describe": 1}, {"model_path": SentFile("programs", _PROGRAM, program)}
            heard = self._runner.answer(RunnerCall(flags, work, log, question_seconds(_SHORT_SECONDS), sent))
            if isinstance(heard, Failure):
                return heard
            self._described[key] = heard.inputs
        return self._described[key]

    def _features(self, clear: list[str] | None, seen: ProcessSettings | None) -> dict[str, object]:
        """The flags that clear features, with what the runner needs to check the layout; None: to leave them alone.

        ``seen`` is how a process is started that sees the same processor, where that is not the machine's.
        """
        if clear is None:
            return {"plain": 1}
        probed = self.probed if seen is None else self._ask_features(seen)
        unknown = [field for field in clear if field not in probed.offsets]
        if unknown:
            raise FeatureError(f"cpuinfo_isa has no field {', '.join(unknown)}")
        return {
            "cpuinfo_size": probed.layout_size,
            "detected": ",".join(f"{field}={probed.offsets[field]}" for field in probed.fields),
            "clear": ",".join(f"{field}={probed.offsets[field]}" for field in clear),
        }

    def _outcome(self, answer: NativeAnswer, job: Job, directory: Path, work: Path) -> JobOutcome:
        if (answer.mask and answer.mask.cleared) != job.clear:
            return JobOutcome(failure=Failure(FailureKind.MASK, "the runner cleared features other than requested"))
        began = time.perf_counter_ns()
        arrays, digest = read_outputs(answer.outputs, work)
        with open_atomically(directory / OUTPUTS) as file:
            np.savez(file, *arrays)
        spent = time.perf_counter_ns() - began
        return JobOutcome(
            measurement=answer.measurement(
                mask=answer.mask,
                inputs=_tensors(job, answer),
                outputs=[_tensor(raw) for raw in answer.outputs],
                output_sha256=digest,
                versions=self._versions,
                spent=spent,
            )
        )


def _tensors(job: Job, answer: NativeAnswer) -> list[Tensor]:
    """The tensors among the inputs, with the sizes that they had."""
    if job.inputs:
        return [Tensor(one.shape, one.dtype) for one in job.inputs if one.shape is not None]
    return [_tensor(raw) for raw in answer.inputs if raw is not None]


_NO_RUNNER = "if the native runner does not start, try Python: --target local, or over ssh ssh:HOST?python=PATH"


def probe_answer(isa: Sequence[int], struct_size: int | None, processor: CpuReading, arch: str) -> ProbeAnswer:
    """The set fields of ``cpuinfo_isa``, once its layout has been checked."""
    layout = proved_layout(arch, isa, struct_size, processor)
    fields = sorted(name for name, offset in layout.offsets.items() if isa[offset])
    fixed = fixed_fields(processor)
    return ProbeAnswer(arch, fields, struct_size, layout.size, layout.offsets, fixed)


def backend_of(program: NativeProgram) -> Path:
    """The library of the backend whose kernels a runner calls, on this machine."""
    return _libraries(program) / f"{BACKEND}{_suffix_of(program)}"


def libraries_of(program: NativeProgram) -> list[Path]:
    """The libraries that a runner can load, on this machine."""
    place, suffix = _libraries(program), _suffix_of(program)
    return [place / f"{name}{suffix}" for name in _PARTS if (place / f"{name}{suffix}").exists()]


def _suffix_of(program: NativeProgram) -> str:
    """Return the ending of a program's libraries: a folder that is brought is always for Linux."""
    return ".so" if program.brought else _SUFFIX


def _libraries(program: NativeProgram) -> Path:
    if program.brought:
        return program.brought.directory
    return program.library.parent if program.library else library_directory()


class NativeStarter(RunnerStarter[NativeAnswer]):
    """Starts the native runner of ExecuTorch."""

    def __init__(self, host: Host, program: NativeProgram) -> None:
        super().__init__(host, program, NativeAnswer)

    def kernels(self, program: Path) -> list[str]:
        """Files of the libraries of further kernels that a program needs and that are there."""
        known = {file.name for file in libraries_of(self._program)}
        named = [f"{one.library}{_suffix_of(self._program)}" for one in extra_kernels(program) if one.library]
        prefix = "@rpath/" if _MAC and not self._program.brought else ""
        return [f"{prefix}{name}" for name in named if name in known]

    def switching(self, features: Callable[[], ProbeAnswer]) -> LibrarySwitch:
        """What switches features for the libraries that ask the CPU for those by which kernels are chosen."""
        backend = backend_of(self._program)
        return self.switch([backend.with_name(f"{THREADPOOL}{backend.suffix}"), backend], features)


SOURCE = Path(__file__).with_name("cpp") / "runner.cpp"
_LIBRARIES = ("executorch_etdump", "executorch_threadpool", "executorch")
# The event tracer's switch must be that of the package's own libraries, or the classes have other layouts.
_DEFINES = ("C10_USING_CUSTOM_GENERATED_MACROS", "ET_EVENT_TRACER_ENABLED")
_TYPES = "executorch/runtime/core/portable_type/c10"


class NativeTarget(RunnerTarget):
    """Runs jobs with ExecuTorch's native runner.

    Loading a program includes loading its method here; with Python that is part of the first inference. ``python`` of
    the same host measures its ceilings; ``probe`` asks for the CPU's features in place of the runner.
    """

    honours = frozenset({"affinity", "calls", "inputs", "values", "data"})

    def __init__(
        self,
        host: Host,
        program: Callable[[], NativeProgram],
        versions: Mapping[str, str],
        python: PythonTarget | None = None,
        probe: Callable[[], ProbeAnswer] | None = None,
    ) -> None:
        super().__init__(host, program, versions, python)
        self._asks = probe

    @cached_property
    def jobs(self) -> NativeJobs:
        """What runs its jobs."""
        program = self.program
        return NativeJobs(NativeStarter(self._host, program), program.versions, program.arch, self._asks)

    def capabilities(self) -> Capabilities:
        """All; the kernels that it calls can be counted."""
        return Capabilities(
            brought=self.brought_files,
            host=self._host,
            backend=lambda: backend_of(self.program),
            libraries=lambda: libraries_of(self.program),
            loader=self._loader_version if self._host.remote else None,
        )

    def _loader_version(self) -> str:
        return self.jobs.loader_version()

    def probe(self) -> ProbeAnswer:
        """The CPU's features as the runtime there sees them."""
        return self.jobs.probed


def native_here(cache: Path | None = None, runner: Sequence[str] | None = None, package: Python = HERE) -> NativeTarget:
    """The native runner on this machine, for the executorch that a Python has."""
    built, versions = (None, {}) if runner else build_runner(cache, package=package)
    command = [str(built)] if built else list(runner or ())
    library = None if package is HERE else library_directory(package) / f"{BACKEND}{_SUFFIX}"
    program = NativeProgram(isa.architecture(platform.machine()), versions, command=command, library=library)
    # The runner tells features in milliseconds; on macOS it cannot tell the size of cpuinfo_isa, Python can.
    asks_runner = built is not None and sys.platform == "linux"
    target = NativeTarget(
        ThisMachine(Target(NATIVE.name, package.address)),
        lambda: program,
        environment.versions(),
        # another package's ceilings are not measured; and the target is not there yet
        python_here(features=lambda: target.probe()) if package is HERE else None,  # noqa: PLW0108
        None if asks_runner else python_here().probe,
    )
    return target


def native_on(device: Device, cache: Path | None = None, versions: Mapping[str, str] | None = None) -> NativeTarget:
    """The native runner on a device, sent with all it needs."""
    otherwise = "use a Python with executorch there: ?python=PATH"
    made = functools.partial(program_for, device, lambda arch: build_runtime(arch, cache), otherwise)
    return NativeTarget(device, made, versions or {})


def native_emulated(cache: Path | None = None) -> NativeTarget:
    """The native runner for 64-bit Arm under QEMU on this machine. Its times mean nothing."""
    host = EmulatedMachine(find_emulator())
    native_program = NativeProgram.of(build_runtime(host.arch, cache))
    program = native_program._replace(versions={**native_program.versions, **host.versions})
    return NativeTarget(host, lambda: program, {})


_TESTED = "1.5.1"
# Oldest first: the wheels say which C library they need.
_PLATFORMS = ("manylinux2014", "manylinux_2_17", "manylinux_2_28")
_WANTED = ("executorch/lib/", "executorch/include/")


def runtime_version() -> str:
    """Version of the runtime to send: the one installed here, else the one that opscope is tested with."""
    try:
        return version("executorch")
    except PackageNotFoundError:
        return _TESTED


def runtime_libraries(arch: str, cache: Path | None = None) -> Path:
    """Directory of the runtime's libraries for Linux on an architecture; the headers lie beside it.

    Those of the installed package where that fits, else those of the wheel of the same version.
    """
    if arch == host_architecture():
        return library_directory()
    wheel = Wheel("executorch", runtime_version(), _PLATFORMS, _WANTED)
    return unpacked_wheel(wheel, arch, cache) / "executorch" / "lib"


_RUNTIME = tuple(
    f"libexecutorch{name}.so" for name in ("", "_threadpool", "_etdump", "_kernels_optimized", "_backend_xnnpack")
)
_KERNELS = "libexecutorch_kernels_quantized.so"
"""Goes with them where the package has it."""


def build_runtime(arch: str, cache: Path | None = None) -> RuntimeFolder:
    """The folder for an architecture; made once of this runtime, compiler and runner."""
    check_architecture(arch)
    find_compiler(arch)  # before anything is downloaded
    libraries = runtime_libraries(arch, cache)
    return make_folder(
        arch,
        {"executorch": runtime_version()},
        source=SOURCE,
        flags=[*compiler_flags(libraries, "$ORIGIN"), *LINUX_FLAGS],
        libraries=_parts(libraries),
        cache=cache,
    )


def _parts(libraries: Path) -> list[Path]:
    names = (*_RUNTIME, _KERNELS) if (libraries / _KERNELS).exists() else _RUNTIME
    return [libraries / name for name in names]


def build_runner(
    cache: Path | None = None, python: Path | None = None, package: Python = HERE
) -> tuple[Path, dict[str, str]]:
    """The native runner for an installed package, and the versions of that and of the compiler that built it.

    It is built when there is none of this source, package and compiler.
    """
    check_c_library(python)
    libraries, compiler = library_directory(package), find_compiler()
    flags = [*compiler_flags(libraries, str(libraries)), *(() if _MAC else LINUX_FLAGS)]
    runtime = installed_runtime(package).version
    path = (cache or cache_directory()) / "native" / build_key(compiler, SOURCE, flags, runtime) / "runner"
    if not is_whole(path):
        compile_runner(compiler, flags, path)
    return path, {"executorch": runtime, **source_versions(package), "compiler": compiler.version}


def compiler_flags(libraries: Path, rpath: str) -> list[str]:
    """Arguments of the compiler but for the name of the result; source before libraries."""
    include = libraries.parent / "include"
    if not (include / "executorch/extension/module/module.h").exists():
        raise MissingDependencyError("the executorch package has no C++ headers", where=include, hint=COMPILER_HINT)
    return [
        *(f"-D{name}" for name in _DEFINES),
        *("-isystem", str(include), "-isystem", str(include / _TYPES)),
        *source_flags(SOURCE),
        *(f"-L{libraries}", "-Xlinker", "-rpath", "-Xlinker", rpath, *(f"-l{name}" for name in _LIBRARIES)),
    ]
