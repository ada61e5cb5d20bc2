"""ExecuTorch as a runtime of opscope; it is also the one for which models are exported."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from opscope.runtimes.runtime import Runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from opscope.analysis.preflight.contents import ProgramSummary, RecordSummary
    from opscope.analysis.preflight.exported import ExportRecord
    from opscope.analysis.tuning import TuningSpace
    from opscope.bundle.manifest import Model
    from opscope.core.system.stages import StepProgress
    from opscope.experiment.checks import Check
    from opscope.experiment.inputs import InputValue
    from opscope.experiment.target import RunTarget
    from opscope.experiment.target_names import TargetName
    from opscope.program.model import ProgramModel
    from opscope.program.phases import Phase
    from opscope.program.structure.plan import NamedValue
    from opscope.runtimes.exports import Choice
    from opscope.runtimes.language import LanguageModel
    from opscope.runtimes.runtime import AskedCalls


class KnownModels(NamedTuple):
    """Models that can be named, each with a one-line description."""

    registered: list[tuple[str, str]]  # here
    directory: Path  # of the user's own
    own: list[tuple[str, str]]  # in that directory
    elsewhere: list[str]  # how models of other registries are named, as lines


class ExecuTorch(Runtime):
    """Runs a .pte, or a .bpte that contains one with its inputs."""

    name = "executorch"
    title = "ExecuTorch"
    suffixes = (".pte", ".bpte")
    readers: ClassVar = {"etdump": ("opscope.runtimes.executorch.etdump", "EtdumpReader")}
    program_hint = "--program MODEL.pte adds shapes, --etrecord adds layers"
    takes_data = True

    def target(self, target_name: TargetName) -> RunTarget:
        """Return the target of a name: on each kind of host, or with a build of the user's there."""
        from opscope.runtimes.executorch.targets import target_named

        return target_named(target_name)

    def target_for(
        self, target_name: TargetName, programs: Sequence[Path], calls_of: Callable[[Path], AskedCalls]
    ) -> RunTarget:
        """Return Python if a program needs it, for kernels that only it has or for phases of one method.

        Else ``target``.

        A build of the user's has what it was built with, and calls the method that it chooses.
        """
        from opscope.core.errors import UsageError
        from opscope.hosts.target_kinds import AUTO, LOCAL
        from opscope.runtimes.executorch.targets import python_instead, python_needed, runs_python

        reasons = (
            python_needed(program, calls_of(program).calls)
            for program in programs
            if program.is_file() and self.holds(program)
        )
        needed = next((python_reason for python_reason in reasons if python_reason), None)
        if needed is None or target_name.runner or runs_python(target_name):
            return self.target(target_name)
        if target_name.kind is AUTO:
            return python_instead(needed)
        hint = f"`opscope profile --target {LOCAL.name}` measures it"
        raise UsageError(f"only the Python bindings run it: {needed}", where=target_name.text, hint=hint)

    def target_here(self) -> RunTarget:
        """Return the Python bindings of the installed package as a target."""
        from opscope.runtimes.executorch.runners.python import python_here

        return python_here()

    def build(
        self,
        target_name: TargetName,
        runner: Path | None = None,
        arguments: Sequence[str] = (),
        program: Path | None = None,
    ) -> RunTarget:
        """Return the target of a build of executor_runner."""
        from opscope.runtimes.executorch.targets import build_named

        return build_named(target_name, runner, arguments, program)

    def version(self) -> str:
        """Return the version of the installed package."""
        from opscope.runtimes.executorch.installed import installed_runtime

        return installed_runtime().version

    def checks(self) -> list[Check]:
        """Check what runs programs and what exports models."""
        from opscope.runtimes.executorch.targets import readiness

        return readiness()

    def program(self, model: str, models: Path | None) -> Path | None:
        """Return a program that a user named; None for a model to export.

        Raises TraceFormatError for a damaged program.
        """
        from opscope.runtimes.executorch.export.sources import source_of
        from opscope.runtimes.executorch.pte import is_bundled, read_executable

        path = Path(model)
        if path.is_file() and is_bundled(path):
            return path
        if path.suffix == self.suffix or (path.is_file() and path.suffix != ".py"):
            read_executable(path)
            return path
        source_of(model, models)
        return None

    def check_registered(self, program: Path, libraries: Sequence[Path], where: str) -> None:
        """Raise an error for a program that calls unregistered operators or backends."""
        from opscope.runtimes.executorch.kernel_libraries import check_registered

        check_registered(program, libraries, where)

    def unpacked(self, program: Path, work: Path) -> tuple[Path, Mapping[str, Sequence[InputValue]]]:
        """Write the program of a .bpte to ``work``.

        Return its path and the inputs of its first test cases, by method.
        """
        from opscope.core.writing import write_atomically
        from opscope.runtimes.executorch.program_files import read_bundled
        from opscope.runtimes.executorch.pte import is_bundled

        if not is_bundled(program):
            return program, {}
        (content, inputs), program_path = read_bundled(program), work / f"{program.stem}{self.suffix}"
        write_atomically(program_path, content)
        return program_path, inputs

    def files(self, program: Path, data: Path | None) -> list[Path]:
        """Return the program, the records beside it if there are any, and its weights if they are separate."""
        from opscope.runtimes.executorch.program_files import program_files

        return program_files(program, data)

    def kept_files(self, files: Sequence[Path], work: Path) -> list[Path]:
        """Return the files for a bundle, with records replaced by copies without weights."""
        from opscope.runtimes.executorch.program_files import kept_files

        return kept_files(files, work)

    def described(self, model: str, source: Path | None, files: Sequence[Path], home: str) -> Model:
        """Describe a model for the manifest, with facts from its plan and its record."""
        from opscope.runtimes.executorch.program_files import DATA_SUFFIX, with_facts

        weights = [file for file in files if file.suffix == DATA_SUFFIX]
        return with_facts(super().described(model, source, [files[0], *weights], home), source, files, home)

    def methods(self, program: Path) -> list[str]:
        """Return the names of the methods that run anything."""
        from opscope.runtimes.executorch.pte import read_executable

        executable = read_executable(program)
        return [plan.name for plan in executable.running or executable.plans]

    def inputs(self, program: Path, calls: Sequence[str]) -> Mapping[str, Sequence[NamedValue]]:
        """Return the inputs of the called methods; without calls, those of the only method, else of ``forward``.

        Inputs have names only for phases of a language model.
        """
        from opscope.runtimes.executorch.program_files import inputs_of

        phases = self._called_language(program, calls) is not None
        return super().inputs(program, calls) if phases else inputs_of(program, calls)

    def language(self, program: Path) -> LanguageModel | None:
        """Return the language model that a program with one method and a position input is; None for others."""
        from opscope.runtimes.executorch.language import pte_language_model

        return pte_language_model(program)

    def open_inputs(self, inputs: Sequence[NamedValue]) -> list[NamedValue]:  # noqa: ARG002 - whatever they are
        """Return no open inputs: a program states the maximum of every size."""
        return []

    def calls(self, program: Path, texts: Sequence[str], *, phases: bool = True) -> list[str]:
        """Return the calls of a generation loop: by phases of the one method, or by the record of the export."""
        from opscope.runtimes.executorch.program_files import planned_calls

        return self._phase_calls(program, texts, phases=phases) or planned_calls(program, texts)

    def phases(self, program: Path) -> Mapping[str, Phase]:
        """Return the phases of the methods, from the record beside the program."""
        from opscope.runtimes.executorch.program_files import phases_of

        return phases_of(program)

    def is_program(self, head: bytes) -> bool:
        """Return whether a file has the identifier of a program."""
        from opscope.runtimes.executorch.pte import is_program

        return is_program(head)

    def read(self, program: Path, record: Path | None, *, delegated: bool) -> ProgramModel:  # noqa: ARG002 - it states it
        """Read the program with the graphs of its delegates, if it has their payloads, and with its record."""
        from opscope.program.model import ProgramModel
        from opscope.runtimes.executorch.etrecord import read_etrecord
        from opscope.runtimes.executorch.pte import read_executable
        from opscope.runtimes.executorch.xnnpack import read_xnn_graphs

        executable = read_executable(program)
        has_payloads = all(delegate.data for plan in executable.plans for delegate in plan.delegates)
        graphs = read_xnn_graphs(program) if has_payloads else ()
        return ProgramModel(executable, graphs, read_etrecord(record) if record else None)

    def tuning_space(self, cpus: int) -> TuningSpace:
        """Return thread counts: ExecuTorch's own default is the number of fast cores."""
        from opscope.analysis.tuning import DEFAULT, TuningCandidate, TuningSpace, thread_candidates

        line = "executorch::extension::threadpool::get_threadpool()->_unsafe_reset_threadpool({threads});"
        return TuningSpace(TuningCandidate(DEFAULT), thread_candidates(cpus, 0, line))

    def summary(self, path: Path, head: bytes) -> ProgramSummary | RecordSummary | None:
        """Summarise a program or the record of an export; None for other files."""
        from opscope.analysis.preflight.contents import summarise_record
        from opscope.core.files import sha256_of
        from opscope.runtimes.executorch.etrecord import is_etrecord, read_etrecord

        if is_etrecord(head):
            return summarise_record(read_etrecord(path), str(path), sha256_of(path))
        return super().summary(path, head)

    def check_record(self, path: Path) -> None:
        """Raise an error for an .etrecord that cannot be read."""
        from opscope.runtimes.executorch.etrecord import read_etrecord

        read_etrecord(path)

    def names_model(self, text: str, models: Path | None) -> bool:
        """Return whether a text that is no path of a measurement names a .bpte, or a model to export."""
        from opscope.core.errors import OpscopeError
        from opscope.runtimes.executorch.export.sources import source_of
        from opscope.runtimes.executorch.pte import is_bundled

        path = Path(text)
        if path.is_file() and path.suffix != ".py":
            return is_bundled(path)
        try:
            source_of(text, models)
        except OpscopeError:
            return False
        return True

    def known_models(self, models: Path | None) -> KnownModels:
        """Return the models that can be named, without importing any; ``models`` is the user's directory."""
        from opscope.runtimes.executorch.export.packaged_models import BUILT_HERE, NEEDS
        from opscope.runtimes.executorch.export.registry import MODELS, user_models
        from opscope.runtimes.executorch.export.sources import models_directory

        directory = models_directory(models)
        elsewhere = [
            f"executorch:NAME, from ExecuTorch's example registry: {', '.join(BUILT_HERE)}",
            *(f"  with {needed}: {', '.join(names)}" for needed, names in NEEDS.items()),
            "transformers:CONFIGCLASS, such as transformers:BertConfig: small, random weights, no download",
            "MODULE:CALLABLE or FILE.py:CALLABLE: your own function; opscope init --model writes one",
        ]
        return KnownModels([(row.name, row.summary) for row in MODELS], directory, user_models(directory), elsewhere)

    def write_model(self, models: Path | None, name: str) -> Path:
        """Write a template for a model into the user's directory of models, and return its path."""
        from opscope.runtimes.executorch.export.registry import write_model
        from opscope.runtimes.executorch.export.sources import models_directory

        return write_model(models_directory(models), name)

    def export_stem(self, model: str, choice: Choice, models: Path | None) -> str:
        """Return the name of the files of an export without their suffixes."""
        from opscope.runtimes.executorch.export.sources import source_of

        return choice.stem(source_of(model, models).name)

    def check_exporter(self) -> None:
        """Raise MissingDependencyError if torch or executorch is missing; neither is imported."""
        from opscope.runtimes.executorch.export.process import check_installed

        check_installed()

    def export(
        self,
        model: str,
        choice: Choice,
        directory: Path,
        models: Path | None,
        tolerance: float | None,
        progress: StepProgress,
    ) -> ExportRecord:
        """Export a model into an existing directory, check the result, and write the record."""
        from opscope.runtimes.executorch.export.checked import checked
        from opscope.runtimes.executorch.export.process import export_into

        exported = export_into(model, choice, directory, models=models, progress=progress)
        progress("checking what was written")
        return checked(self, exported, model, choice, tolerance)

    def export_live(self, module: object, inputs: object, dtype: str, directory: Path) -> Path:
        """Export a copy of a module of this process into an existing directory; return its program."""
        from opscope.runtimes.executorch.export.checked import export_live

        return export_live(module, inputs, dtype, directory)

    def slim_export(self, record: ExportRecord, directory: Path) -> ExportRecord:
        """Remove the weights from an export's .etrecord, and return the new record."""
        from opscope.runtimes.executorch.export.checked import with_slim_record

        return with_slim_record(record, directory)
