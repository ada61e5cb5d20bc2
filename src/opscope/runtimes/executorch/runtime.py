"""ExecuTorch as a runtime: the one for which models are exported."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from opscope.runtimes.runtime import Runtime

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opscope.analysis.preflight.contents import ProgramSummary, RecordSummary
    from opscope.analysis.preflight.exported import ExportRecord
    from opscope.bundle.manifest import Model
    from opscope.core.system.stages import StepProgress
    from opscope.experiment.checks import Check
    from opscope.experiment.inputs import InputValue
    from opscope.experiment.target import RunTarget
    from opscope.experiment.target_names import TargetName
    from opscope.program.model import ProgramModel
    from opscope.runtimes.export_choices import Choice
    from opscope.runtimes.runtime import KnownModels, NamedValue


class ExecuTorch(Runtime):
    """Runs a .pte, or a .bpte that holds one with its inputs."""

    name = "executorch"
    title = "ExecuTorch"
    suffixes = (".pte", ".bpte")
    readers: ClassVar = {"etdump": ("opscope.runtimes.executorch.etdump.etdump", "EtdumpReader")}
    program_hint = "--program MODEL.pte adds shapes, --etrecord adds layers"
    takes_data = True

    def target(self, named: TargetName) -> RunTarget:
        """On each kind of host, or with a build of the user's there."""
        from opscope.runtimes.executorch.targets import target_named

        return target_named(named)

    def target_here(self) -> RunTarget:
        """The Python bindings of the installed package."""
        from opscope.runtimes.executorch.runners.python import python_here

        return python_here()

    def build(
        self,
        named: TargetName,
        runner: Path | None = None,
        arguments: Sequence[str] = (),
        program: Path | None = None,
    ) -> RunTarget:
        """A build of executor_runner."""
        from opscope.runtimes.executorch.targets import build_named

        return build_named(named, runner, arguments, program)

    def checks(self) -> list[Check]:
        """What exports models and what runs programs, too."""
        from opscope.runtimes.executorch.readiness import readiness

        return readiness()

    def program(self, model: str, models: Path | None) -> Path | None:
        """A file that is no Python, unless it is damaged; else None for what can be exported."""
        from opscope.runtimes.executorch.bundled import is_bundled
        from opscope.runtimes.executorch.export.sources import source_of
        from opscope.runtimes.executorch.pte import read_program

        path = Path(model)
        if path.is_file() and is_bundled(path):
            return path
        if path.suffix == self.suffix or (path.is_file() and path.suffix != ".py"):
            read_program(path)
            return path
        source_of(model, models)
        return None

    def check_registered(self, program: Path, libraries: Sequence[Path], where: str) -> None:
        """By the operators and backends that it calls."""
        from opscope.runtimes.executorch.kernel_libraries import check_registered

        check_registered(program, libraries, where)

    def unpacked(self, program: Path, work: Path) -> tuple[Path, Mapping[str, Sequence[InputValue]]]:
        """The program of a .bpte, and the inputs of its first test cases."""
        from opscope.core.files import write_atomically
        from opscope.runtimes.executorch.bundled import is_bundled, read_bundled

        if not is_bundled(program):
            return program, {}
        bundled, alone = read_bundled(program), work / f"{program.stem}{self.suffix}"
        write_atomically(alone, bundled.program)
        return alone, bundled.inputs

    def files(self, program: Path, data: Path | None) -> list[Path]:
        """The program, the records beside it when there are any, and its weights when they are apart."""
        from opscope.runtimes.executorch.program_files import program_files

        return program_files(program, data)

    def kept_files(self, files: Sequence[Path], work: Path) -> list[Path]:
        """Records are kept without weights."""
        from opscope.runtimes.executorch.program_files import kept_files

        return kept_files(files, work)

    def described(self, model: str, source: Path | None, files: Sequence[Path], home: str) -> Model:
        """With what its plan and its record tell."""
        from opscope.runtimes.executorch.program_files import described_model

        return described_model(model, source, files, home)

    def inputs(self, program: Path, calls: Sequence[str]) -> Mapping[str, Sequence[NamedValue]]:
        """Without names; of no calls, those of the only method, else of ``forward``."""
        from opscope.runtimes.executorch.calls import inputs_of

        return inputs_of(program, calls)

    def open_inputs(self, inputs: Sequence[NamedValue]) -> list[NamedValue]:  # noqa: ARG002 - whatever they are
        """None: a program states the largest sizes."""
        return []

    def calls(self, program: Path, asked: Sequence[str]) -> list[str]:
        """As a decode loop does, where the record of the export tells of one."""
        from opscope.runtimes.executorch.calls import planned_calls

        return planned_calls(program, asked)

    def is_program(self, head: bytes) -> bool:
        """By the identifier of its FlatBuffer."""
        from opscope.runtimes.executorch.pte import is_program

        return is_program(head)

    def read(self, program: Path, record: Path | None, *, delegated: bool) -> ProgramModel:  # noqa: ARG002 - it states it
        """With the graphs of its delegates, unless it is kept without their payloads, and with its record."""
        from opscope.program.model import ProgramModel
        from opscope.runtimes.executorch.etrecord.etrecord import read_etrecord
        from opscope.runtimes.executorch.pte import read_executable
        from opscope.runtimes.executorch.xnnpack.payload import read_xnn_graphs

        executable = read_executable(program)
        whole = all(delegate.data for plan in executable.plans for delegate in plan.delegates)
        graphs = read_xnn_graphs(program) if whole else ()
        return ProgramModel(executable, graphs, read_etrecord(record) if record else None)

    def summary(self, path: Path, head: bytes) -> ProgramSummary | RecordSummary | None:
        """Of records of exports, too."""
        from opscope.analysis.preflight.contents import summarise_record
        from opscope.core.files import sha256_of
        from opscope.runtimes.executorch.etrecord.etrecord import is_etrecord, read_etrecord

        if is_etrecord(head):
            return summarise_record(read_etrecord(path), str(path), sha256_of(path))
        return super().summary(path, head)

    def check_record(self, path: Path) -> None:
        """Refuse an .etrecord that cannot be read."""
        from opscope.runtimes.executorch.etrecord.etrecord import read_etrecord

        read_etrecord(path)

    def names_model(self, text: str, models: Path | None) -> bool:
        """A .bpte by its content, or what can be exported."""
        from opscope.core.errors import OpscopeError
        from opscope.runtimes.executorch.bundled import is_bundled
        from opscope.runtimes.executorch.export.sources import source_of

        path = Path(text)
        if path.is_file() and path.suffix != ".py":
            return is_bundled(path)
        try:
            source_of(text, models)
        except OpscopeError:
            return False
        return True

    def known_models(self, models: Path | None) -> KnownModels:
        """Those of opscope, of the user, of ExecuTorch's registry and of transformers."""
        from opscope.runtimes.executorch.export.known_models import known_models

        return known_models(models)

    def write_model(self, models: Path | None, name: str) -> Path:
        """With a function that builds a network of PyTorch."""
        from opscope.runtimes.executorch.export.sources import models_directory
        from opscope.runtimes.executorch.export.user_models import write_model

        return write_model(models_directory(models), name)

    def export_stem(self, model: str, choice: Choice, models: Path | None) -> str:
        """By the model, the backend and the number type."""
        from opscope.runtimes.executorch.export.sources import source_of

        return choice.stem(source_of(model, models).name)

    def export(
        self,
        model: str,
        choice: Choice,
        directory: Path,
        models: Path | None,
        tolerance: float | None,
        heard: StepProgress,
    ) -> ExportRecord:
        """In a process of its own."""
        from opscope.runtimes.executorch.export.checked import checked
        from opscope.runtimes.executorch.export.process import export_into

        done = export_into(model, choice, directory, models=models, heard=heard)
        heard("checking what was written")
        return checked(self, done, model, choice, tolerance)

    def export_live(self, module: object, inputs: object, dtype: str, directory: Path) -> Path:
        """From a copy of a module of PyTorch."""
        from opscope.runtimes.executorch.export.live import export_live

        return export_live(module, inputs, dtype, directory)

    def slim_export(self, record: ExportRecord, directory: Path) -> ExportRecord:
        """Of its .etrecord."""
        from opscope.runtimes.executorch.export.checked import with_slim_record

        return with_slim_record(record, directory)
