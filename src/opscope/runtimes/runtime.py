"""What a runtime is: one object for each, with all that the other rooms ask of it.

What few runtimes have is here as what holds for the others. A runtime imports nothing of itself until it is asked.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from opscope.core.errors import MismatchError, OpscopeError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from opscope.analysis.preflight.contents import ProgramSummary, RecordSummary
    from opscope.analysis.preflight.preflight import Preflight
    from opscope.analysis.tuning import TuningSpace
    from opscope.bundle.manifest import Model, PlannedInput
    from opscope.experiment.checks import Check
    from opscope.experiment.inputs import InputValue
    from opscope.experiment.target import RunTarget
    from opscope.experiment.target_names import TargetName
    from opscope.program.kernels.cpu import Cpu
    from opscope.program.model import ProgramModel
    from opscope.program.phases import Phase
    from opscope.program.structure.exported import Signature
    from opscope.program.structure.plan import NamedValue
    from opscope.runtimes.attribution import AttributedSide
    from opscope.runtimes.language import LanguageModel
    from opscope.runtimes.side import Side

_HEAD = 8
NO_DELEGATE = "none"
"""Of a variant that ran without the delegate: its operators are those of the file, each on its own."""


class AskedCalls(NamedTuple):
    """What is called of a program, and with which inputs."""

    calls: Sequence[str]  # methods, over and over in this order; empty for the only one
    inputs: Sequence[PlannedInput]  # of the methods, one after the other; empty: as the program declares them


class Runtime:
    """A runtime.

    Attributes:
        name: in files, and what names of its formats begin with.
        title: as people call it.
        suffixes: of its programs, the usual one first.
        takes: usual suffixes of programs of other runtimes that it runs, too, where it is asked for by its name.
        readers: module and class of the reader of each format of its traces, the one that its runs leave first.
        program_hint: what naming the program adds to a trace.
        takes_data: whether its programs may keep their weights in a file that a user names.
        importable: module of its package that runs programs from Python; empty: releases of it run in its runner.
        chooses_delegate: whether its programs run with and without a delegate, as they are told.
        has_options: whether a run of it has options by name.
        has_delegates: whether parts of its programs run in delegates, whose events its traces hold.
        has_model: whether its programs are read, so that they attribute traces of any format.
        channels_last: whether channels are the last size of what convolutions make, else the second.
        names_kernels: whether its traces name the kernel of every operator that ran.
        writes_texts: whether its profiler writes a text before and after what it times of an operator.
        preflight_runs: whether the preflight of a program runs it.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]]
    takes: ClassVar[tuple[str, ...]] = ()
    readers: ClassVar[Mapping[str, tuple[str, str]]] = {}
    program_hint: ClassVar[str] = ""
    takes_data: ClassVar[bool] = False
    importable: ClassVar[str] = ""
    chooses_delegate: ClassVar[bool] = False
    has_options: ClassVar[bool] = False
    has_delegates: ClassVar[bool] = True
    has_model: ClassVar[bool] = True
    channels_last: ClassVar[bool] = True
    names_kernels: ClassVar[bool] = False
    writes_texts: ClassVar[bool] = False
    preflight_runs: ClassVar[bool] = False

    @property
    def suffix(self) -> str:
        """The usual end of the names of its programs."""
        return self.suffixes[0]

    @property
    def trace_format(self) -> str | None:
        """The format of the traces that its runs leave."""
        return next(iter(self.readers), None)

    def target(self, named: TargetName) -> RunTarget:
        """Where its models run, by the name of a target: unless it says otherwise, from Python on this machine.

        Raises:
            UsageError: they do not run there.
            OpscopeError: what the target needs is missing, or a device does not answer.
        """
        from opscope.hosts.target_kinds import AUTO, LOCAL

        if named.kind in {AUTO, LOCAL}:
            return self.target_here()
        hint = f"leave out --target: {AUTO.name} and {LOCAL.name} run it on this machine"
        problem = f"{self.title} models run on this machine only, not on {named.text}"
        raise UsageError(problem, where="--target", hint=hint)

    def target_for(
        self,
        named: TargetName,
        programs: Sequence[Path],  # noqa: ARG002 - where they differ
        asked: Callable[[Path], AskedCalls],  # noqa: ARG002 - likewise
    ) -> RunTarget:
        """Where these programs of it run: as ``target`` says, unless one of them cannot; ``asked`` tells its calls."""
        return self.target(named)

    def target_here(self) -> RunTarget:
        """This machine, from Python; whatever is missing to run models, as far as it tells the CPU's features."""
        raise NotImplementedError(self.title)

    def build(
        self,
        named: TargetName,
        runner: Path | None = None,  # noqa: ARG002 - where there are builds
        arguments: Sequence[str] = (),  # noqa: ARG002
        program: Path | None = None,  # noqa: ARG002
    ) -> RunTarget:
        """A build of the user's on the host that a name tells of; where no runner is given, that of the name.

        With a program, its output values are read.

        Raises:
            UsageError: there are no such builds, or this one cannot be used there.
            OpscopeError: the build or what reaches the host is missing, or a device does not answer.
        """
        raise UsageError(f"builds of executor_runner do not run {self.title} models", where=named.text)

    def package(self) -> str:
        """Name of its package of Python, and of it among the versions of an environment."""
        return self.name

    def is_installed(self) -> bool:
        """Whether its package is there; whether it can be used, ``version`` tells."""
        return find_spec(self.name) is not None

    def version(self) -> str:
        """Of the installed package; a MissingDependencyError says why it cannot be used."""
        raise NotImplementedError(self.title)

    def loaded(self) -> str:
        """What its processes load: the name of a module, or the path of a shared library."""
        return self.name

    def checks(self) -> list[Check]:
        """What `opscope doctor` says of it on this machine: a problem where it is installed and cannot be loaded."""
        from opscope.core.errors import MissingDependencyError
        from opscope.core.install import install_command
        from opscope.experiment.checks import Check, State
        from opscope.runtimes.loading import loading_problem

        try:
            found = self.version()
        except MissingDependencyError as error:
            problem = f"models ({self.suffix}) cannot be run: {error.problem}"
            return [Check(self.name, State.NOTE, problem, error.hint or "")]
        if self.is_installed() and (obstacle := loading_problem(self.loaded())):
            hint = f"install it again: {install_command(self.name)}"
            return [Check(self.name, State.PROBLEM, f"{found} is installed but cannot be loaded: {obstacle}", hint)]
        return [Check(self.name, State.OK, found)]

    def runs_here(self, checks: Sequence[Check]) -> bool:
        """Whether it runs models on this machine, as its checks tell."""
        from opscope.core.errors import MissingDependencyError

        try:
            self.version()
        except MissingDependencyError:
            return False
        return not any(check.state == "problem" for check in checks)

    def holds(self, path: Path) -> bool:
        """Whether an existing file is a program of it, by its content."""
        from opscope.core.files import head_of

        return self.is_program(head_of(path, _HEAD))

    def program_in(self, folder: Path) -> Path | None:  # noqa: ARG002 - where folders are models
        """The program of a folder that stands for a model; None for any other folder."""
        return None

    def program(self, model: str, models: Path | None) -> Path | None:  # noqa: ARG002 - where models are exported
        """The program that was named; None for a model to export, which may be in a directory of models.

        Raises:
            NotFoundError: there is neither.
            TraceFormatError: the program is damaged.
            UsageError: it cannot be run.
        """
        self.check(Path(model))
        return Path(model)

    def check(self, path: Path) -> None:
        """Refuse a program that cannot be run, as far as its file shows it."""

    def check_without_delegate(self, path: Path) -> None:
        """Refuse a program that cannot run without the delegate."""

    def check_options(self, options: Mapping[str, str] | None) -> None:
        """Refuse options of a run that are not known."""

    def options(self, asked: Mapping[str, str]) -> Mapping[str, str]:
        """The options of a run: those that were asked for, and those that opscope sets itself."""
        return asked

    def check_registered(self, program: Path, libraries: Sequence[Path], where: str) -> None:
        """Refuse a program that calls what these libraries do not register; ``where`` names what loads them."""

    def unpacked(self, program: Path, work: Path) -> tuple[Path, Mapping[str, Sequence[InputValue]]]:  # noqa: ARG002
        """A program without the inputs that are packed with it, written to ``work``; and these inputs, by method."""
        return program, {}

    def files(self, program: Path, data: Path | None) -> list[Path]:  # noqa: ARG002 - where weights are named
        """A program that was named, and all that belongs to it; ``data`` are weights that were named."""
        return [program]

    def kept_files(self, files: Sequence[Path], work: Path) -> list[Path]:  # noqa: ARG002 - for what is changed
        """The files to copy into a bundle, in the same order; ``work`` is for those that differ from the ones given."""
        return list(files)

    def described(self, model: str, source: Path | None, files: Sequence[Path], home: str) -> Model:  # noqa: ARG002
        """What a manifest says about a model; who runs which part of it is known when it runs.

        Args:
            model: as it was named.
            source: the program that was named; None for a model that was exported.
            files: the program first, then its weights.
            home: directory of the bundle that they lie in.
        """
        from opscope.bundle.manifest import Model
        from opscope.core.files import place_beside, sha256_of

        program, *weights = files
        return Model(
            name=program.stem,
            source=model,
            dtype=None,
            program=f"{home}/{program.name}",
            etrecord=None,
            sha256=sha256_of(program),
            size=program.stat().st_size,
            methods=self.methods(program),
            backends=[],
            data=f"{home}/{place_beside(weights[0], program)}" if weights else None,
            data_sha256=sha256_of(weights[0]) if weights else None,
            data_size=weights[0].stat().st_size if weights else None,
            phases=dict(self.phases(program)),
        )

    def signatures(self, program: Path) -> Sequence[Signature]:
        """Methods that a caller can name; never empty."""
        raise NotImplementedError(self.title, program)

    def tensor_names(self, program: Path) -> tuple[list[str], list[str]]:
        """Names of the tensors that the first signature takes and gives, as the file has them."""
        signature = self.signatures(program)[0]
        inputs, outputs = ([one.name for one in side] for side in (signature.inputs, signature.outputs))
        return inputs, outputs

    def methods(self, program: Path) -> list[str]:
        """Names of all methods."""
        return [one.name for one in self.signatures(program)]

    def inputs(self, program: Path, calls: Sequence[str]) -> Mapping[str, Sequence[NamedValue]]:
        """Inputs of the methods that a process calls, in the order of their first calls; of no calls, the usual one."""
        language = self._called_language(program, calls)
        if language is not None:
            return {name: language.named(name) for name in dict.fromkeys(calls)}
        known = {one.name: one for one in self.signatures(program)}
        return {
            name: [(one.name, one) for one in known[name].inputs]
            for name in dict.fromkeys(calls) or [next(iter(known))]
        }

    def open_inputs(self, inputs: Sequence[NamedValue]) -> list[NamedValue]:
        """Inputs of which a program does not say how large they are."""
        from opscope.program.structure.plan import Dynamism, PlannedTensor

        return [
            (name, value)
            for name, value in inputs
            if isinstance(value, PlannedTensor) and value.dynamism is not Dynamism.STATIC
        ]

    def index_limits(self, program: Path) -> Mapping[str, int]:  # noqa: ARG002 - where graphs are read
        """Rows of the table that an input is an index into, by the name of the input, as far as it is known."""
        return {}

    def calls(self, program: Path, asked: Sequence[str], *, phases: bool = True) -> list[str]:
        """The methods that a process calls over and over; empty for a program with one method.

        ``asked`` are ``NAME`` or ``NAME:COUNT``, in order; without any each method is called once. The one graph of a
        language model is called for its phases; not with ``phases`` False, since somebody gives its inputs.

        Raises:
            UsageError: the program has no such method, or the count is not a number.
        """
        from opscope.runtimes.language import asked_calls

        names = self.methods(program)
        return self._phase_calls(program, asked, phases=phases) or (
            asked_calls(asked, names) or (names if len(names) > 1 else [])
        )

    def language(self, program: Path) -> LanguageModel | None:  # noqa: ARG002 - where one graph has phases
        """The language model that a program with one method is; None for any other."""
        return None

    def _called_language(self, program: Path, calls: Sequence[str]) -> LanguageModel | None:
        """The language model whose phases these calls are; None where they are none."""
        from opscope.program.phases import phase_of

        return self.language(program) if calls and all(map(phase_of, calls)) else None

    def _phase_calls(self, program: Path, asked: Sequence[str], *, phases: bool) -> list[str]:
        """The phases of a language model as they are called, unless its method itself is named; empty: it is none."""
        named = {text.partition(":")[0] for text in asked} & set(self.methods(program))
        language = self.language(program) if phases and not named else None
        if language is None:
            return []
        return language.asked(asked) if asked else language.usual()

    def phases(self, program: Path) -> Mapping[str, Phase]:  # noqa: ARG002 - where programs or their records tell
        """What calls of its methods do for a language model, by method; empty for any other program."""
        return {}

    def fills(self, program: Path, calls: Sequence[str]) -> Sequence[str | None]:
        """What fills the inputs of these calls, in the words of ``--input``, where that follows from the calls."""
        language = self._called_language(program, calls)
        return [word for name in dict.fromkeys(calls) for word in language.words(name)] if language else ()

    def is_program(self, head: bytes) -> bool:  # noqa: ARG002 - where programs are read
        """Whether a file that starts with these bytes (at least 8) is a program that ``read`` takes."""
        return False

    def read(self, program: Path, record: Path | None, *, delegated: bool) -> ProgramModel:
        """The typed picture of a model from its files, as ``model`` says."""
        raise NotImplementedError(self.title, program, record, delegated)

    def model(self, program: Path, record: Path | None = None, *, delegated: bool = True) -> ProgramModel:
        """The typed picture of a model; without the record of its export, modules and source lines are not known.

        ``delegated``: whether a runtime that chooses its delegate when it loads the model has one.

        Raises:
            OpscopeError: a file is absent or damaged, or the record is of another model, or was made after lowering.
        """
        files = [program] if record is None else [program, record]
        stamps = tuple((str(path), path.stat().st_mtime_ns if path.exists() else 0) for path in files)
        model = _model(self, *stamps, delegated=delegated)
        if model.conflict:
            raise MismatchError(model.conflict, where=record, hint="give the record of the same export, or omit it")
        return model

    def weight_bits(self, program: Path) -> frozenset[int]:
        """Widths of the weights of its products in bits, 8 for narrower ones, too; empty where they are not known."""
        from opscope.program.structure.dtypes import used_bits

        values = (value for graph in self.model(program).graphs for value in graph.graph.values if value.is_constant)
        return used_bits(value.dtype for value in values if len(value.dims) > 1)

    def preflight(self, program: Path, record: Path | None, cpu: Cpu | None) -> Preflight:
        """Tell what a processor will accelerate of a program; the record of its export adds lines of the model."""
        from opscope.analysis.preflight.preflight import preflight
        from opscope.core.files import sha256_of

        return preflight(self.model(program, record), str(program), sha256_of(program), cpu)

    def tuning_space(self, cpus: int) -> TuningSpace:  # noqa: ARG002 - for those that have settings
        """Return the settings that `opscope tune` tries on a machine with so many usable CPUs.

        Raises:
            UsageError: the runtime has none.
        """
        raise UsageError(f"{self.title} has no settings that opscope can try", hint="profile the model instead")

    def usable_model(
        self, program: Path, record: Path | None, *, delegated: bool = True
    ) -> tuple[ProgramModel, Path | None, OpscopeError | None]:
        """The typed picture of a model, its record when it can be used, and why it cannot."""
        try:
            return self.model(program, record, delegated=delegated), record, None
        except OpscopeError as error:
            if record is None or error.where != str(record):
                raise
            return self.model(program, delegated=delegated), None, error

    def attributed(self, side: Side, program: Path, record: Path | None) -> AttributedSide:
        """A side whose operators have their places in the program that ran, and what it says of them."""
        from opscope.runtimes.attribution import attributed_by_model

        delegated = side.variant is None or side.variant.delegate != NO_DELEGATE
        model, record, problem = self.usable_model(program, record, delegated=delegated)
        return attributed_by_model(side, model, self.first_calls(side, model))._replace(record=record, problem=problem)

    def clock_start(self, trace: Path) -> int:  # noqa: ARG002 - where it is not the process's
        """What the clock of a process read, in ns, where the times of its trace count from; 0: they are its own."""
        return 0

    def first_calls(self, side: Side, model: ProgramModel) -> Mapping[str, int]:  # noqa: ARG002 - where they are counted
        """Instruction of the first delegate call of each method, for traces that count these calls from 0."""
        return {}

    def summary(self, path: Path, head: bytes) -> ProgramSummary | RecordSummary | None:
        """What a file holds, where it is of this runtime and no trace; ``head`` is its start."""
        import msgspec

        from opscope.analysis.preflight.contents import summarise_program
        from opscope.core.files import sha256_of

        if not self.is_program(head):
            return None
        model = self.model(path)
        summary = summarise_program(model.executable, model.graphs, str(path), sha256_of(path))
        return msgspec.structs.replace(summary, format=self.suffix.removeprefix("."))

    def check_record(self, path: Path) -> None:
        """Refuse a record of an export that cannot be read."""


@lru_cache(maxsize=4)
def _model(
    runtime: Runtime, program: tuple[str, int], record: tuple[str, int] | None = None, *, delegated: bool
) -> ProgramModel:
    """Variants of a bundle share a model; a file that changed is read again."""
    return runtime.read(Path(program[0]), Path(record[0]) if record else None, delegated=delegated)
