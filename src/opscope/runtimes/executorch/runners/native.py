"""The native runner of ExecuTorch: built against the installed package; each repetition is a process."""

from __future__ import annotations

import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from opscope.bundle.manifest import Failure, FailureKind, PlannedInput, Target
from opscope.core.errors import FeatureError, MissingDependencyError, RunError
from opscope.core.system.c_library import check_c_library
from opscope.core.system.pythons import HERE
from opscope.experiment.protocol import TRACE, ProbeAnswer
from opscope.experiment.target import Capabilities
from opscope.experiment.tensors import from_bytes, random_inputs, to_bytes
from opscope.hosts.target_kinds import NATIVE
from opscope.hosts.this_machine import ThisMachine
from opscope.machine import environment, isa
from opscope.machine.cpu_reading import CpuReading, fixed_fields
from opscope.machine.isa import proved_layout
from opscope.program.structure.dtypes import program_type
from opscope.program.structure.exported import Tensor
from opscope.runtimes.executorch.installed import (
    BACKEND,
    THREADPOOL,
    installed_runtime,
    library_directory,
    source_versions,
)
from opscope.runtimes.executorch.kernel_libraries import extra_kernels
from opscope.runtimes.executorch.runners.python import python_here
from opscope.runtimes.hosted import FailedJob
from opscope.runtimes.native.building import (
    COMPILER_HINT,
    LINUX_FLAGS,
    RuntimeFolder,
    built_runner,
    check_architecture,
    find_compiler,
    host_architecture,
    make_folder,
    source_flags,
)
from opscope.runtimes.native.jobs import PreparedRun, RunnerTarget
from opscope.runtimes.native.start import INPUT, OUTPUT, NativeProgram, RawTensor, RunnerAnswer, SentFile
from opscope.runtimes.native.wheel_runner import Wheel, unpacked_wheel
from opscope.runtimes.switching import is_switched_outside

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from opscope.core.system.pythons import Python
    from opscope.experiment.protocol import Job
    from opscope.experiment.tensors import Array
    from opscope.hosts.host import Host, ProcessSettings
    from opscope.runtimes.executorch.runners.python import PythonTarget
    from opscope.runtimes.switching import LibrarySwitch


class NativeAnswer(RunnerAnswer, frozen=True):
    """Answer of the runner: a measurement, the description of a method, the features, or an error."""

    method: str = ""  # that was run or described; several are separated by commas
    # of the methods, one after the other, in the order of their first calls, with the sizes that these declare;
    # null for one that is no tensor
    inputs: list[RawTensor | None] = msgspec.field(default_factory=list)
    outputs: list[RawTensor] = msgspec.field(default_factory=list)  # likewise, of the last call of each
    planned_bytes: int = 0  # memory that the method plans for its tensors
    isa: list[int] | None = None  # bytes of `cpuinfo_isa`, when the CPU's features were asked for
    struct_size: int | None = None  # as the symbol table states it; null where it states none


def _describe_tensor(raw: RawTensor) -> Tensor:
    return Tensor(raw.sizes, program_type(raw.type).name)


def _planned_inputs(described: Sequence[RawTensor | None], job: Job) -> Sequence[PlannedInput]:
    """Return the inputs of a job as requested, else as its methods declare them."""
    if not job.inputs and None in described:
        raise RunError(f"input {described.index(None)} is not a tensor, and its type is unknown")
    return job.inputs or [PlannedInput(raw.sizes, _describe_tensor(raw).dtype) for raw in described if raw]


def write_inputs(described: Sequence[RawTensor | None], job: Job, work: Path) -> str:
    """Write the inputs of a job, one file each; the file of an input that is no tensor is empty.

    Returns the kind of each input in the runner's syntax; empty for tensors of the declared sizes.
    """
    inputs = _planned_inputs(described, job)
    arrays = iter(
        _input_arrays([Tensor(planned.shape, planned.dtype) for planned in inputs if planned.shape is not None], job)
    )
    for number, (raw, planned) in enumerate(zip(described, inputs, strict=True)):
        is_tensor = raw is not None and planned.shape is not None
        content = to_bytes(next(arrays), planned.dtype, raw.dim_order) if raw is not None and is_tensor else b""
        (work / f"{INPUT}-{number}.bin").write_bytes(content)
    return ",".join(map(_input_kind, job.inputs))


def _input_arrays(tensors: Sequence[Tensor], job: Job) -> Sequence[Array]:
    if job.values is None:
        return random_inputs(tensors, job.seed)
    with np.load(job.values, allow_pickle=False) as file:
        return [file[f"arr_{number}"] for number, planned in enumerate(job.inputs) if planned.shape is not None]


def _input_kind(planned: PlannedInput) -> str:
    """Return an input in the syntax of the runner."""
    if planned.shape is not None:
        return f"t:{'x'.join(map(str, planned.shape))}"
    if planned.value is None:
        return "n"
    letter = {"int": "i", "float": "f", "bool": "b"}[planned.dtype]
    return f"{letter}:{int(planned.value) if letter != 'f' else planned.value!r}"


_PROGRAM, _DATA = "program.pte", "program.ptd"
_MAC = sys.platform == "darwin"
_SUFFIX = ".dylib" if _MAC else ".so"
_PARTS = ("libexecutorch", "libexecutorch_kernels_optimized", BACKEND, "libexecutorch_kernels_quantized")


def probe_answer(isa: Sequence[int], struct_size: int | None, processor: CpuReading, arch: str) -> ProbeAnswer:
    """Return the set fields of ``cpuinfo_isa``, once its layout has been checked."""
    layout = proved_layout(arch, isa, struct_size, processor)
    fields = sorted(name for name, offset in layout.offsets.items() if isa[offset])
    fixed = fixed_fields(processor)
    return ProbeAnswer(arch, fields, struct_size, layout.size, layout.offsets, fixed)


def backend_of(program: NativeProgram) -> Path:
    """Return the library of the backend whose kernels a runner calls, on this machine."""
    return _library_directory(program) / f"{BACKEND}{_suffix_of(program)}"


def libraries_of(program: NativeProgram) -> list[Path]:
    """Return the libraries that a runner can load, on this machine."""
    directory, suffix = _library_directory(program), _suffix_of(program)
    return [directory / f"{name}{suffix}" for name in _PARTS if (directory / f"{name}{suffix}").exists()]


def _suffix_of(program: NativeProgram) -> str:
    """Return the suffix of a program's libraries: a folder that is copied to a host is always for Linux."""
    return ".so" if program.brought else _SUFFIX


def _library_directory(program: NativeProgram) -> Path:
    if program.brought:
        return program.brought.directory
    return program.library.parent if program.library else library_directory()


SOURCE = Path(__file__).with_name("cpp") / "runner.cpp"
_LIBRARIES = ("executorch_etdump", "executorch_threadpool", "executorch")
# The event tracer's switch must be that of the package's own libraries, or the classes have other layouts.
_DEFINES = ("C10_USING_CUSTOM_GENERATED_MACROS", "ET_EVENT_TRACER_ENABLED")
_TYPES = "executorch/runtime/core/portable_type/c10"


class NativeTarget(RunnerTarget[NativeAnswer]):
    """Runs jobs with ExecuTorch's native runner.

    Loading a program includes loading its method here; with Python that is part of the first inference.
    ``ceilings``: Python on the same host; ``features`` asks for the CPU's features in place of the runner.
    """

    honours = frozenset({"affinity", "calls", "inputs", "values", "data"})
    answers = NativeAnswer
    otherwise = "use a Python with executorch there: ?python=PATH"
    without_runner = "if the native runner does not start, try Python: --target local, or over ssh ssh:HOST?python=PATH"

    def __init__(
        self,
        host: Host,
        program: Callable[[], NativeProgram],
        versions: Mapping[str, str],
        ceilings: PythonTarget | None = None,
        features: Callable[[], ProbeAnswer] | None = None,
    ) -> None:
        super().__init__(host, program, versions, ceilings)
        self._features_elsewhere = features

    @classmethod
    def folder(cls, arch: str, cache: Path | None = None) -> RuntimeFolder:
        """Return the folder for an architecture."""
        return build_runtime(arch, cache)

    def capabilities(self) -> Capabilities:
        """Return the runner's capabilities; it has all of them, and the kernels that it calls can be counted."""
        return Capabilities(
            brought=self.brought_files,
            host=self._host,
            backend=lambda: backend_of(self.program),
            libraries=lambda: libraries_of(self.program),
            loader=(lambda: self._runner_starter.loader_version()) if self._host.remote else None,  # noqa: PLW0108 - not made yet
        )

    def probe(self) -> ProbeAnswer:
        """Return the CPU's features as the runtime on the host sees them."""
        return self.probed

    def _ask_features(self, process: ProcessSettings) -> ProbeAnswer:
        if self._features_elsewhere:
            return self._features_elsewhere()
        answer, reading = self._ask_processor(process)
        if answer.isa is None:
            raise RunError("the runner reported no features", hint=self.without_runner)
        return probe_answer(answer.isa, answer.struct_size, reading, self.program.arch)

    def _library_switch(self) -> LibrarySwitch:
        """Return the switch for the libraries that ask the CPU for the features by which kernels are chosen."""
        backend = backend_of(self.program)
        return self._runner_starter.switch(
            [backend.with_name(f"{THREADPOOL}{backend.suffix}"), backend], lambda: self.probed
        )

    def kernels(self, program: Path) -> list[str]:
        """Return files of the libraries of further kernels that a program needs and that are there."""
        known = {file.name for file in libraries_of(self.program)}
        file_names = [
            f"{shipped.library}{_suffix_of(self.program)}" for shipped in extra_kernels(program) if shipped.library
        ]
        prefix = "@rpath/" if _MAC and not self.program.brought else ""
        return [f"{prefix}{name}" for name in file_names if name in known]

    def _prepare_run(self, job: Job, directory: Path, work: Path) -> PreparedRun:
        sent = {"model_path": SentFile("programs", _PROGRAM, Path(job.program))}
        methods = {"method_name": ",".join(job.calls)}
        described = self._describe_program(sent, methods, work, directory).inputs
        flags = {
            **self._clearing_flags(job),
            **methods,
            "input_kinds": write_inputs(described, job, work),
            "kernels": ",".join(self.kernels(Path(job.program))),
            "etdump_path": TRACE if job.traced else "",
        }
        if job.data:
            sent["data_path"] = SentFile("data", _DATA, Path(job.data))

        def keep(answer: NativeAnswer) -> tuple[list[Array], list[Tensor]]:
            if not is_switched_outside(job) and (answer.mask and answer.mask.cleared) != job.clear:
                raise FailedJob(Failure(FailureKind.MASK, "the runner cleared features other than requested"))
            tensors = [_describe_tensor(raw) for raw in answer.outputs]
            blobs = [(work / f"{OUTPUT}-{number}.bin").read_bytes() for number in range(len(tensors))]
            orders = [raw.dim_order for raw in answer.outputs]
            return list(map(from_bytes, blobs, tensors, orders)), tensors

        inputs = [
            Tensor(planned.shape, planned.dtype)
            for planned in _planned_inputs(described, job)
            if planned.shape is not None
        ]
        return PreparedRun(flags, sent, len(described), inputs, {TRACE: directory / TRACE}, keep)

    def _clearing_flags(self, job: Job) -> dict[str, object]:
        """Return the flags that clear features, with what the runner needs to check the layout."""
        if job.clear is None or is_switched_outside(job):
            return {"plain": 1}
        seen = job.process.processor
        probed = self.probed if seen is None else self._ask_features(seen)
        unknown = [field for field in job.clear if field not in probed.offsets]
        if unknown:
            raise FeatureError(f"cpuinfo_isa has no field {', '.join(unknown)}")
        return {
            "cpuinfo_size": probed.layout_size,
            "detected": ",".join(f"{field}={probed.offsets[field]}" for field in probed.fields),
            "clear": ",".join(f"{field}={probed.offsets[field]}" for field in job.clear),
        }


def native_here(cache: Path | None = None, runner: Sequence[str] | None = None, package: Python = HERE) -> NativeTarget:
    """Return the native runner on this machine, for the executorch that a Python has."""
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


_TESTED = "1.5.1"
# Oldest first: the wheels say which C library they need.
_PLATFORMS = ("manylinux2014", "manylinux_2_17", "manylinux_2_28")
_WANTED = ("executorch/lib/", "executorch/include/")


def runtime_version() -> str:
    """Return the version of the runtime to send: the installed one, else the one that opscope is tested with."""
    try:
        return version("executorch")
    except PackageNotFoundError:
        return _TESTED


def runtime_libraries(arch: str, cache: Path | None = None) -> Path:
    """Return the directory of the runtime's libraries for Linux on an architecture; the headers lie beside it.

    They are those of the installed package where that fits, else of the wheel of the same version.
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
    """Return the folder for an architecture; made once of this runtime, compiler and runner."""
    check_architecture(arch)
    find_compiler(arch)  # before anything is downloaded
    libraries = runtime_libraries(arch, cache)
    return make_folder(
        arch,
        {"executorch": runtime_version()},
        source=SOURCE,
        flags=[*compiler_flags(libraries, "$ORIGIN"), *LINUX_FLAGS],
        libraries=_runtime_files(libraries),
        cache=cache,
    )


def _runtime_files(libraries: Path) -> list[Path]:
    names = (*_RUNTIME, _KERNELS) if (libraries / _KERNELS).exists() else _RUNTIME
    return [libraries / name for name in names]


def build_runner(
    cache: Path | None = None, python: Path | None = None, package: Python = HERE
) -> tuple[Path, dict[str, str]]:
    """Build the native runner for an installed package; return it with the versions of package and compiler.

    It is only built if there is none of this source, package and compiler.
    """
    check_c_library(python)
    libraries, compiler = library_directory(package), find_compiler()
    flags = [*compiler_flags(libraries, str(libraries)), *(() if _MAC else LINUX_FLAGS)]
    runtime = installed_runtime(package).version
    path = built_runner(compiler, SOURCE, flags, runtime, cache=cache)
    return path, {"executorch": runtime, **source_versions(package), "compiler": compiler.version}


def compiler_flags(libraries: Path, rpath: str) -> list[str]:
    """Return the arguments of the compiler without the name of the result; the source stands before libraries."""
    include = libraries.parent / "include"
    if not (include / "executorch/extension/module/module.h").exists():
        raise MissingDependencyError("the executorch package has no C++ headers", where=include, hint=COMPILER_HINT)
    return [
        *(f"-D{name}" for name in _DEFINES),
        *("-isystem", str(include), "-isystem", str(include / _TYPES)),
        *source_flags(SOURCE),
        *(f"-L{libraries}", "-Xlinker", "-rpath", "-Xlinker", rpath, *(f"-l{name}" for name in _LIBRARIES)),
    ]
