"""LiteRT as a target without Python in the process: its runner, built or as a folder, here, on devices and emulated."""

from __future__ import annotations

import functools
import platform
import tempfile
import time
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import msgspec

from opscope.bundle.manifest import Failure, Target, Tensor
from opscope.core.errors import MissingDependencyError, OpscopeError, RunError
from opscope.core.files import scratch_directory, write_atomically
from opscope.core.json import from_json
from opscope.core.system.c_library import check_c_library
from opscope.core.system.cache import cache_directory, is_whole
from opscope.experiment.protocol import LOG, OUTPUTS, ProbeAnswer
from opscope.experiment.target import Capabilities, JobOutcome
from opscope.experiment.tensors import from_bytes, to_bytes
from opscope.hosts.emulator import EmulatedMachine, find_emulator
from opscope.hosts.target_kinds import NATIVE
from opscope.hosts.this_machine import ThisMachine
from opscope.machine import isa
from opscope.machine.cpu_reading import CPUID_LEAVES, CpuReading, fixed_fields
from opscope.machine.switch.switch import fields_stated, proof
from opscope.runtimes.child import digest, input_arrays, save_outputs
from opscope.runtimes.hosted import ended_by
from opscope.runtimes.litert.c_api import DELEGATE, PLACEHOLDER, check_events
from opscope.runtimes.litert.installed import KNOWN, LIBRARY, MODULE, PACKAGE, installed_litert
from opscope.runtimes.litert.signatures import called_signatures, input_tensors, open_sizes, read_callable
from opscope.runtimes.litert.target import litert_here
from opscope.runtimes.litert.trace import SCHEMA, TRACE, EventRow, LitertInference, LitertTrace
from opscope.runtimes.native.answer import INPUT, OUTPUT, RunnerAnswer, RunnerCall, SentFile
from opscope.runtimes.native.building import build_key, compile_runner, find_compiler, host_architecture, source_flags
from opscope.runtimes.native.folder import RunnerParts, RuntimeFolder, check_architecture, make_folder
from opscope.runtimes.native.start import NativeProgram, RunnerStarter, joined_variables, program_for
from opscope.runtimes.native.target import RunnerTarget
from opscope.runtimes.native.wheels import Wheel, unpacked_wheel
from opscope.runtimes.switching import brought_by, is_switched_outside, nothing_to_clear, variables_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opscope.bundle.manifest import Mechanism
    from opscope.experiment.protocol import Job
    from opscope.experiment.target import SwitchOffer
    from opscope.experiment.tensors import Array
    from opscope.hosts.device import Device
    from opscope.hosts.host import Host
    from opscope.runtimes.litert.signatures import CalledSignature
    from opscope.runtimes.switching import LibrarySwitch


_SHORT_SECONDS = 60.0
_PROGRAM, _CALLS = "program.tflite", "calls.json"
_PROBE = {"probe": 1, "cpuid_leaves": ",".join(f"{leaf}/{subleaf}" for leaf, subleaf in CPUID_LEAVES)}
_NO_RUNNER = "on this machine a model runs from Python, too: --target local"
SOURCE = Path(__file__).with_name("cpp") / "runner.cpp"
_FLAGS = (*source_flags(SOURCE), "-ldl")
_FILE = f"{LIBRARY}.so"
_PLATFORMS = ("manylinux_2_27", "manylinux_2_28")


class NativeLitertTarget(RunnerTarget):
    """Runs .tflite models with the native runner."""

    honours = frozenset({"affinity", "calls", "inputs", "values", "delegate"})

    @cached_property
    def jobs(self) -> LitertJobs:
        """What runs its jobs."""
        return LitertJobs(self._host, self.program)

    def capabilities(self) -> Capabilities:
        """The name of its traces."""
        return Capabilities(host=self._host, trace=TRACE)

    def probe(self) -> NoReturn:
        """Features cannot be cleared in the library: it has no symbols, so that its variable cannot be found."""
        raise nothing_to_clear(library_of(self.program))


def native_litert_here(cache: Path | None = None) -> NativeLitertTarget:
    """The native runner on this machine, with the installed LiteRT."""
    program = runner_here(cache)
    return NativeLitertTarget(ThisMachine(Target(NATIVE.name, "")), lambda: program, {}, litert_here())


def native_litert_on(
    device: Device, cache: Path | None = None, versions: Mapping[str, str] | None = None
) -> NativeLitertTarget:
    """The native runner on a device, sent with all it needs."""
    otherwise = "LiteRT models run on devices of Linux and Android"
    made = functools.partial(program_for, device, lambda arch: runner_for(arch, cache), otherwise)
    return NativeLitertTarget(device, made, versions or {}, None)


def native_litert_emulated(cache: Path | None = None) -> NativeLitertTarget:
    """The native runner for 64-bit Arm under QEMU on this machine. Its times mean nothing."""
    host = EmulatedMachine(find_emulator())
    found = NativeProgram.of(runner_for(host.arch, cache))
    program = found._replace(versions={**found.versions, **host.versions})
    return NativeLitertTarget(host, lambda: program, {}, None)


class RuntimeSignature(msgspec.Struct, frozen=True):
    """A signature as the runtime tells it: names in its own order."""

    name: str  # of the signature
    inputs: list[str]  # names
    outputs: list[str]


class LitertAnswer(RunnerAnswer, frozen=True):
    """What the runner writes: a measurement, the signatures, what the processor says, or an error."""

    # in the order of the runtime, when they were asked for
    signatures: list[RuntimeSignature] = msgspec.field(default_factory=list)
    # sizes of the outputs of every signature that was called, in the order of the runtime; null where they are
    # those of the file
    outputs: list[list[int] | None] = msgspec.field(default_factory=list)
    processor: CpuReading | None = None  # what it says of itself, when it was asked


class _TracedCall(msgspec.Struct, frozen=True):
    """A call with its events, and the number of its signature."""

    wall_ns: int
    start_ns: int
    signature: int
    events: list[EventRow]


class LitertJobs:
    """Runs jobs with LiteRT's native runner.

    Args:
        host: where.
        program: the runner.
    """

    def __init__(self, host: Host, program: NativeProgram) -> None:
        self._runner = RunnerStarter(host, program, LitertAnswer)
        self._program = program
        self._told: dict[tuple[str, int, int], list[RuntimeSignature]] = {}

    @cached_property
    def probed(self) -> ProbeAnswer:
        """The CPU's features as the processor there states them; asked once."""
        with tempfile.TemporaryDirectory(prefix="opscope-") as directory:
            work = Path(directory)
            heard = self._runner.answer(RunnerCall(_PROBE, work, work / LOG, _SHORT_SECONDS))
        if isinstance(heard, Failure) or heard.processor is None:
            reason = heard.message if isinstance(heard, Failure) else "the runner reported none"
            raise RunError(f"the features of the CPU cannot be read: {reason}", hint=_NO_RUNNER)
        arch = self._program.arch
        return ProbeAnswer(arch, fields_stated(arch, heard.processor), None, 0, {}, fixed_fields(heard.processor))

    def offer(self, mechanism: Mechanism) -> SwitchOffer:
        """What a mechanism can do for the library."""
        return self._switch().offer(mechanism)

    def _switch(self) -> LibrarySwitch:
        return self._runner.switch([library_of(self._program)], lambda: self.probed)

    def execute(self, job: Job, directory: Path) -> JobOutcome:
        """Run a job; see :meth:`opscope.experiment.target.RunTarget.execute`."""
        try:
            with scratch_directory(directory / ".native") as work:
                return self._execute(job, directory.resolve(), work.resolve())
        except (OpscopeError, OSError) as error:
            return ended_by(error)
        except (ValueError, IndexError) as error:
            return ended_by(RunError(f"what the runner left does not fit the model: {error}"))

    def _execute(self, job: Job, directory: Path, work: Path) -> JobOutcome:
        program = Path(job.program)
        told = self._signatures(program, work, directory / LOG)
        if isinstance(told, Failure):
            return JobOutcome(failure=told)
        model = read_callable(program)
        names = {("" if one.name == PLACEHOLDER else one.name): one for one in told}
        called = called_signatures(model, names, job.calls)
        numbers = {name: told.index(own.told) for name, own in called.items()}
        inputs = input_tensors([own.declared for own in called.values()], job.inputs)
        arrays = input_arrays(job.values, job.seed, inputs)
        sizes = _write_inputs(called, arrays, inputs, open_sizes(model, job.calls, job.inputs), work)
        switch = self._switch().prepared(job, work) if is_switched_outside(job) else None
        flags = {
            "library": self._runner.library_there(library_of(self._program)),
            "delegate": job.delegate or DELEGATE,
            "signatures": ",".join(str(numbers[name]) for name in job.calls or called),
            "input_sizes": ",".join(sizes),
            "warmup": job.warmup,
            "num_executions": job.inferences - job.warmup,
            "cpu_threads": job.threads,
            "cpu_affinity": ",".join(map(str, job.affinity)),
            "trace_path": _CALLS if job.traced else "",
        }
        traced = work / _CALLS
        heard = self._runner.answer(
            RunnerCall(
                flags=flags,
                work=work,
                log=directory / LOG,
                timeout=job.timeout_seconds,
                process=job.process,
                sent={"model_path": SentFile("programs", _PROGRAM, program)},
                inputs=len(inputs),
                outputs=True,
                brought={_CALLS: traced, **brought_by(switch)},
                variables=joined_variables(self._runner.counting(job.counter), variables_of(switch)),
            )
        )
        if isinstance(heard, Failure):
            return JobOutcome(failure=heard)
        proved = proof(switch.record) if switch else None
        began = time.perf_counter_ns()
        if job.traced:
            self._write_trace(traced, job, {number: name for name, number in numbers.items()}, directory / TRACE)
        outputs = _read_outputs(called, heard, work)
        save_outputs(str(directory / OUTPUTS), outputs)
        spent = time.perf_counter_ns() - began
        return JobOutcome(
            measurement=heard.measurement(
                mask=proved,
                threads=None,
                inputs=inputs,
                outputs=[Tensor(list(array.shape), str(array.dtype)) for array in outputs],
                output_sha256=digest(outputs),
                versions=self._program.versions,
                spent=spent,
            )
        )

    def _signatures(self, program: Path, work: Path, log: Path) -> list[RuntimeSignature] | Failure:
        """The runtime's signatures of a model; asked once for a file."""
        state = program.stat()
        key = (str(program), state.st_mtime_ns, state.st_size)
        if key not in self._told:
            flags = {"describe": 1, "library": self._runner.library_there(library_of(self._program))}
            sent = {"model_path": SentFile("programs", _PROGRAM, program)}
            heard = self._runner.answer(RunnerCall(flags, work, log, _SHORT_SECONDS, sent))
            if isinstance(heard, Failure):
                return heard
            self._told[key] = heard.signatures
        return self._told[key]

    def _write_trace(self, told: Path, job: Job, names: Mapping[int, str], into: Path) -> None:
        """Check the events of each call, and keep them as the Python child does."""
        calls = from_json(told.read_bytes(), list[_TracedCall])
        for one in calls:
            check_events(one.events, one.wall_ns)
        inferences = [LitertInference(one.wall_ns, one.events, one.start_ns, names[one.signature]) for one in calls]
        version, first = self._program.versions[PACKAGE], next(iter(names.values()))
        trace = LitertTrace(SCHEMA, version, job.delegate or DELEGATE, job.threads, first, inferences)
        write_atomically(into, msgspec.json.encode(trace))


def _write_inputs(
    called: Mapping[str, CalledSignature[RuntimeSignature]],
    arrays: Sequence[Array],
    tensors: Sequence[Tensor],
    sizes: Mapping[str, Mapping[str, Sequence[int]]],
    work: Path,
) -> list[str]:
    """Write the inputs of all calls, one file each, in the order of the runtime.

    Returns:
        The sizes of each of them, for the runner.
    """
    words: list[str] = []
    given = iter(zip(arrays, tensors, strict=True))
    for name, own in called.items():
        of_input = {one.name: next(given) for one in own.declared.inputs}
        for asked in own.told.inputs:
            array, tensor = of_input[asked]
            content = to_bytes(array, tensor.dtype, range(array.ndim))
            (work / f"{INPUT}-{len(words)}.bin").write_bytes(content)
            words.append("x".join(map(str, sizes.get(name, {}).get(asked, ()))) or "-")
    return words


def _read_outputs(
    called: Mapping[str, CalledSignature[RuntimeSignature]], heard: LitertAnswer, work: Path
) -> list[Array]:
    """Outputs of the last calls, in the order of the file."""
    found: list[Array] = []
    first = 0
    for own in called.values():
        for one in own.declared.outputs:
            number = first + own.told.outputs.index(one.name)
            sizes = heard.outputs[number]
            tensor = Tensor(list(one.sizes if sizes is None else sizes), one.dtype.name)
            data = (work / f"{OUTPUT}-{number}.bin").read_bytes()
            found.append(from_bytes(data, tensor, range(len(tensor.shape))))
        first += len(own.told.outputs)
    return found


def runner_here(cache: Path | None = None) -> NativeProgram:
    """The runner for the installed LiteRT; built when there is none of this source and compiler."""
    check_c_library()
    found, compiler = installed_litert(), find_compiler()
    path = (cache or cache_directory()) / "native" / build_key(compiler, SOURCE, _FLAGS) / "runner"
    if not is_whole(path):
        compile_runner(compiler, _FLAGS, path)
    versions = {PACKAGE: found.version, "compiler": compiler.version}
    return NativeProgram(isa.architecture(platform.machine()), versions, command=[str(path)])


def runner_for(arch: str, cache: Path | None = None) -> RuntimeFolder:
    """The folder that runs models on any Linux of an architecture.

    Its library is that of the installed package where that fits, else that of the wheel of the same version.
    """
    check_architecture(arch)
    find_compiler(arch)  # before anything is downloaded
    version, library = _library_for(arch, cache)
    return make_folder(arch, RunnerParts({PACKAGE: version}, SOURCE, _FLAGS, [library]), cache)


def _library_for(arch: str, cache: Path | None) -> tuple[str, Path]:
    """Version and file of the library for Linux on an architecture."""
    try:
        found = installed_litert()
    except MissingDependencyError:
        if arch == host_architecture():
            raise
        version = KNOWN[-1]  # its structures are known, whatever is installed here
    else:
        version = found.version
        if arch == host_architecture():
            return version, found.library
    wheel = Wheel(PACKAGE, version, _PLATFORMS, (f"{MODULE}/{_FILE}",))
    return version, unpacked_wheel(wheel, arch, cache) / MODULE / _FILE


def library_of(program: NativeProgram) -> Path:
    """The library whose kernels a runner calls, on this machine."""
    return program.brought.directory / _FILE if program.brought else installed_litert().library
