"""The base class of runtimes: one object per runtime, with everything that other rooms ask of it.

What only few runtimes have is here with a default for all others. A runtime imports its package only when it is
used.
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
"""Delegate of a variant that ran without one: its operators are those of the file, each on its own."""


class AskedCalls(NamedTuple):
    """The methods of a program that are called, and their inputs."""

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
        """The usual suffix of its programs."""
        return self.suffixes[0]

    @property
    def trace_format(self) -> str | None:
        """The format of the traces that its runs write; None if it writes none."""
        return next(iter(self.readers), None)

    def target(self, target_name: TargetName) -> RunTarget:
        """Return the target where its models run; by default only Python on this machine.

        Raises:
            UsageError: models do not run on that target.
            OpscopeError: what the target needs is missing, or a device does not answer.
        """
        from opscope.hosts.target_kinds import AUTO, LOCAL

        if target_name.kind in {AUTO, LOCAL}:
            return self.target_here()
        hint = f"leave out --target: {AUTO.name} and {LOCAL.name} run it on this machine"
        problem = f"{self.title} models run on this machine only, not on {target_name.text}"
        raise UsageError(problem, where="--target", hint=hint)

    def target_for(
        self,
        target_name: TargetName,
        programs: Sequence[Path],  # noqa: ARG002 - where they differ
        calls_of: Callable[[Path], AskedCalls],  # noqa: ARG002 - likewise
    ) -> RunTarget:
        """Return the target where these programs run: that of ``target``, unless one of the programs cannot run there.

        ``calls_of`` returns the calls of a program.
        """
        return self.target(target_name)

    def target_here(self) -> RunTarget:
        """Return this machine as a target that runs models from Python.

        What is missing to run models is no error, as long as the features of the CPU can be read.
        """
        raise NotImplementedError(self.title)

    def build(
        self,
        target_name: TargetName,
        runner: Path | None = None,  # noqa: ARG002 - where there are builds
        arguments: Sequence[str] = (),  # noqa: ARG002
        program: Path | None = None,  # noqa: ARG002
    ) -> RunTarget:
        """Return the target of a user's own build of the runner, on the host that a target's name gives.

        Args:
            target_name: the host, and the runner where ``runner`` is None.
            runner: path of the build.
            arguments: of the runner.
            program: a program whose output values are read, if any.

        Raises:
            UsageError: the runtime has no such builds, or this one cannot be used there.
            OpscopeError: the build or what reaches the host is missing, or a device does not answer.
        """
        raise UsageError(f"builds of executor_runner do not run {self.title} models", where=target_name.text)

    def package(self) -> str:
        """Return the name of its Python package, which is also its key among the versions of an environment."""
        return self.name

    def is_installed(self) -> bool:
        """Return whether its package is installed; ``version`` tells whether it can be used."""
        return find_spec(self.name) is not None

    def version(self) -> str:
        """Return the version of the installed package. Raises MissingDependencyError if it cannot be used."""
        raise NotImplementedError(self.title)

    def loaded(self) -> str:
        """Return the library that its processes load: the name of a module, or the path of a shared library."""
        return self.name

    def checks(self) -> list[Check]:
        """Check the runtime on this machine for `opscope doctor`: a problem if it is installed but cannot be loaded."""
        from opscope.core.errors import MissingDependencyError
        from opscope.core.install import install_command
        from opscope.experiment.checks import Check, State
        from opscope.runtimes.loading import loading_problem

        try:
            version = self.version()
        except MissingDependencyError as error:
            problem = f"models ({self.suffix}) cannot be run: {error.problem}"
            return [Check(self.name, State.NOTE, problem, error.hint or "")]
        if self.is_installed() and (obstacle := loading_problem(self.loaded())):
            hint = f"install it again: {install_command(self.name)}"
            return [Check(self.name, State.PROBLEM, f"{version} is installed but cannot be loaded: {obstacle}", hint)]
        return [Check(self.name, State.OK, version)]

    def runs_here(self, checks: Sequence[Check]) -> bool:
        """Return whether it runs models on this machine, given its checks."""
        from opscope.core.errors import MissingDependencyError

        try:
            self.version()
        except MissingDependencyError:
            return False
        return not any(check.state == "problem" for check in checks)

    def holds(self, path: Path) -> bool:
        """Return whether an existing file is one of its programs, by content."""
        from opscope.core.files import head_of

        return self.is_program(head_of(path, _HEAD))

    def program_in(self, folder: Path) -> Path | None:  # noqa: ARG002 - where folders are models
        """Return the program in a folder that stands for a model; None for any other folder."""
        return None

    def program(self, model: str, models: Path | None) -> Path | None:  # noqa: ARG002 - where models are exported
        """Return the program that a user named; None for a model to export, which may be in a directory of models.

        Raises:
            NotFoundError: there is neither.
            TraceFormatError: the program is damaged.
            UsageError: it cannot be run.
        """
        self.check(Path(model))
        return Path(model)

    def check(self, path: Path) -> None:
        """Raise an error if a program cannot be run, as far as its file shows it."""

    def check_without_delegate(self, path: Path) -> None:
        """Raise an error if a program cannot run without the delegate."""

    def check_options(self, options: Mapping[str, str] | None) -> None:
        """Raise UsageError if a run option is unknown."""

    def options(self, requested: Mapping[str, str]) -> Mapping[str, str]:
        """Return all options of a run: the requested ones, and those that opscope sets itself."""
        return requested

    def check_registered(self, program: Path, libraries: Sequence[Path], where: str) -> None:
        """Raise an error if a program calls operators that these libraries do not register.

        ``where`` names what loads them.
        """

    def unpacked(self, program: Path, work: Path) -> tuple[Path, Mapping[str, Sequence[InputValue]]]:  # noqa: ARG002
        """Write a program without the inputs that are packed with it to ``work``.

        Return its path and these inputs, by method.
        """
        return program, {}

    def files(self, program: Path, data: Path | None) -> list[Path]:  # noqa: ARG002 - where weights are named
        """Return a program and all files that belong to it; ``data`` is the file of weights that a user named."""
        return [program]

    def kept_files(self, files: Sequence[Path], work: Path) -> list[Path]:  # noqa: ARG002 - for what is changed
        """Return the files to copy into a bundle, in the same order; changed copies are written to ``work``."""
        return list(files)

    def described(self, model: str, source: Path | None, files: Sequence[Path], home: str) -> Model:  # noqa: ARG002
        """Describe a model for the manifest. Which part of it a delegate runs is only known when it runs.

        Args:
            model: name that the user gave.
            source: the program that was named; None for a model that was exported.
            files: the program first, then its weights.
            home: directory of the bundle that contains them.
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
        """Return the methods that a caller can name; never empty."""
        raise NotImplementedError(self.title, program)

    def tensor_names(self, program: Path) -> tuple[list[str], list[str]]:
        """Return the names of the inputs and outputs of the first signature, as the file has them."""
        signature = self.signatures(program)[0]
        inputs, outputs = ([tensor.name for tensor in side] for side in (signature.inputs, signature.outputs))
        return inputs, outputs

    def methods(self, program: Path) -> list[str]:
        """Return the names of all methods."""
        return [signature.name for signature in self.signatures(program)]

    def inputs(self, program: Path, calls: Sequence[str]) -> Mapping[str, Sequence[NamedValue]]:
        """Return the inputs of each called method, in the order of first calls.

        Without calls, those of the usual method.
        """
        language = self._called_language(program, calls)
        if language is not None:
            return {name: language.named(name) for name in dict.fromkeys(calls)}
        known = {signature.name: signature for signature in self.signatures(program)}
        return {
            name: [(tensor.name, tensor) for tensor in known[name].inputs]
            for name in dict.fromkeys(calls) or [next(iter(known))]
        }

    def open_inputs(self, inputs: Sequence[NamedValue]) -> list[NamedValue]:
        """Return the inputs whose sizes a program leaves open."""
        from opscope.program.structure.plan import Dynamism, PlannedTensor

        return [
            (name, value)
            for name, value in inputs
            if isinstance(value, PlannedTensor) and value.dynamism is not Dynamism.STATIC
        ]

    def index_limits(self, program: Path) -> Mapping[str, int]:  # noqa: ARG002 - where graphs are read
        """Return the number of rows of the table that an input indexes, by input name, as far as it is known."""
        return {}

    def calls(self, program: Path, texts: Sequence[str], *, phases: bool = True) -> list[str]:
        """Return the methods that a process calls repeatedly; empty for a program with one method.

        ``texts`` are ``NAME`` or ``NAME:COUNT``, in order; without any, each method is called once. The single graph of
        a language model is called for its phases, except if ``phases`` is False because a user gives its inputs.

        Raises:
            UsageError: the program has no such method, or the count is not a number.
        """
        from opscope.runtimes.language import asked_calls

        names = self.methods(program)
        return self._phase_calls(program, texts, phases=phases) or (
            asked_calls(texts, names) or (names if len(names) > 1 else [])
        )

    def language(self, program: Path) -> LanguageModel | None:  # noqa: ARG002 - where one graph has phases
        """Return the language model that a program with one method is; None for any other program."""
        return None

    def _called_language(self, program: Path, calls: Sequence[str]) -> LanguageModel | None:
        """Return the language model if all calls name its phases; None otherwise."""
        from opscope.program.phases import phase_of

        return self.language(program) if calls and all(map(phase_of, calls)) else None

    def _phase_calls(self, program: Path, texts: Sequence[str], *, phases: bool) -> list[str]:
        """Return the phases of a language model to call.

        Empty if the program is none, or if its method itself is named.
        """
        methods = {text.partition(":")[0] for text in texts} & set(self.methods(program))
        language = self.language(program) if phases and not methods else None
        if language is None:
            return []
        return language.asked(texts) if texts else language.usual()

    def phases(self, program: Path) -> Mapping[str, Phase]:  # noqa: ARG002 - where programs or their records tell
        """Return the phase of a language model that each method computes, by method; empty for any other program."""
        return {}

    def fills(self, program: Path, calls: Sequence[str]) -> Sequence[str | None]:
        """Return how the inputs of these calls are filled, in the syntax of ``--input``.

        Empty if the calls do not imply it.
        """
        language = self._called_language(program, calls)
        return [word for name in dict.fromkeys(calls) for word in language.words(name)] if language else ()

    def is_program(self, head: bytes) -> bool:  # noqa: ARG002 - where programs are read
        """Return whether a file that starts with these bytes (at least 8) is a program that ``read`` takes."""
        return False

    def read(self, program: Path, record: Path | None, *, delegated: bool) -> ProgramModel:
        """Read the typed model of a program from its files. Used by ``model``, which caches it."""
        raise NotImplementedError(self.title, program, record, delegated)

    def model(self, program: Path, record: Path | None = None, *, delegated: bool = True) -> ProgramModel:
        """Return the typed model of a program; without the record of its export, modules and source lines are unknown.

        ``delegated``: whether a runtime that chooses its delegate when it loads the model has one.

        Raises:
            OpscopeError: a file is missing or damaged, or the record is of another model, or was made after lowering.
        """
        files = [program] if record is None else [program, record]
        stamps = tuple((str(path), path.stat().st_mtime_ns if path.exists() else 0) for path in files)
        model = _read_cached_model(self, *stamps, delegated=delegated)
        if model.conflict:
            raise MismatchError(model.conflict, where=record, hint="give the record of the same export, or omit it")
        return model

    def weight_bits(self, program: Path) -> frozenset[int]:
        """Return the bit widths of the weights of its matrix products, at least 8 each; empty if they are unknown."""
        from opscope.program.structure.dtypes import used_bits

        values = (value for graph in self.model(program).graphs for value in graph.graph.values if value.is_constant)
        return used_bits(value.dtype for value in values if len(value.dims) > 1)

    def preflight(self, program: Path, record: Path | None, cpu: Cpu | None) -> Preflight:
        """Return the operators of a program that a processor will accelerate.

        With the record of its export, by lines of the model, too.
        """
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
        """Return the typed model of a program, its record if it can be used, and otherwise the reason."""
        try:
            return self.model(program, record, delegated=delegated), record, None
        except OpscopeError as error:
            if record is None or error.where != str(record):
                raise
            return self.model(program, delegated=delegated), None, error

    def attributed(self, side: Side, program: Path, record: Path | None) -> AttributedSide:
        """Attribute the operators of a side to the program that ran."""
        from opscope.runtimes.attribution import attributed_by_model

        delegated = side.variant is None or side.variant.delegate != NO_DELEGATE
        model, record, problem = self.usable_model(program, record, delegated=delegated)
        return attributed_by_model(side, model, self.first_calls(side, model))._replace(record=record, problem=problem)

    def clock_start(self, trace: Path) -> int:  # noqa: ARG002 - where it is not the process's
        """Return the process clock in ns at the zero of a trace's times; 0 if the trace uses the process clock."""
        return 0

    def first_calls(self, side: Side, model: ProgramModel) -> Mapping[str, int]:  # noqa: ARG002 - where they are counted
        """Return the instruction of the first delegate call of each method.

        Only traces that count delegate calls from 0 need it.
        """
        return {}

    def summary(self, path: Path, head: bytes) -> ProgramSummary | RecordSummary | None:
        """Summarise a program or record of this runtime; None for any other file. ``head`` is the start of the file."""
        import msgspec

        from opscope.analysis.preflight.contents import summarise_program
        from opscope.core.files import sha256_of

        if not self.is_program(head):
            return None
        model = self.model(path)
        summary = summarise_program(model.executable, model.graphs, str(path), sha256_of(path))
        return msgspec.structs.replace(summary, format=self.suffix.removeprefix("."))

    def check_record(self, path: Path) -> None:
        """Raise an error if the record of an export cannot be read."""


@lru_cache(maxsize=4)
def _read_cached_model(
    runtime: Runtime, program: tuple[str, int], record: tuple[str, int] | None = None, *, delegated: bool
) -> ProgramModel:
    """Read a model once for all variants of a bundle; a file that changed is read again."""
    return runtime.read(Path(program[0]), Path(record[0]) if record else None, delegated=delegated)
