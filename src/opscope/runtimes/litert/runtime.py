"""LiteRT as a runtime of opscope."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, ClassVar

from opscope.runtimes.runtime import NO_DELEGATE, Runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from opscope.analysis.tuning import TuningSpace
    from opscope.experiment.target import RunTarget
    from opscope.experiment.target_names import TargetName
    from opscope.program.model import ProgramModel
    from opscope.program.phases import Phase
    from opscope.program.structure.exported import Signature
    from opscope.runtimes.attribution import AttributedSide
    from opscope.runtimes.runtime import AskedCalls
    from opscope.runtimes.side import Side


class LiteRt(Runtime):
    """Runs a .tflite, with the XNNPACK delegate or with LiteRT's own kernels."""

    name = "litert"
    title = "LiteRT"
    suffixes = (".tflite",)
    readers: ClassVar = {
        "litert-trace": ("opscope.runtimes.litert.trace", "LitertTraceReader"),
        "litert-benchmark": ("opscope.runtimes.litert.benchmark_text", "BenchmarkTextReader"),
    }
    program_hint = "--program MODEL.tflite adds shapes, and why operators stayed outside of the delegate"
    importable = "ai_edge_litert.interpreter"
    chooses_delegate = True

    def target(self, target_name: TargetName) -> RunTarget:
        """Return the native runner, or Python on this machine, as the target's name asks."""
        from opscope.core.system.pythons import python_at
        from opscope.hosts.target_kinds import LOCAL
        from opscope.runtimes.litert.native import NativeLitertTarget
        from opscope.runtimes.litert.target import interpreter_here, litert_here

        if target_name.kind is LOCAL and target_name.address:
            return interpreter_here("all releases have it", python_at(target_name.address))
        return NativeLitertTarget.named(target_name, litert_here)

    def target_for(
        self, target_name: TargetName, programs: Sequence[Path], calls_of: Callable[[Path], AskedCalls]
    ) -> RunTarget:
        """Return the Interpreter if a program or the installed release needs it, else the result of ``target``."""
        from opscope.core.errors import UsageError
        from opscope.hosts.target_kinds import AUTO, LOCAL
        from opscope.runtimes.litert.target import interpreter_here, interpreter_needed

        here = target_name.kind in {AUTO, LOCAL} and not target_name.address
        target = None if here else self.target(target_name)
        needed = next(
            (reason for program in programs if (reason := interpreter_needed(program, calls_of(program)))), None
        )
        if needed and not here:
            problem = f"only LiteRT's Interpreter runs it, from Python: {needed}"
            hint = f"leave out --target: {AUTO.name} and {LOCAL.name} run it on this machine"
            raise UsageError(problem, where=target_name.text, hint=hint)
        reason = needed or self._unknown_api_text() if here else None
        return interpreter_here(reason) if reason else target or self.target(target_name)

    def _unknown_api_text(self) -> str | None:
        """Return the sentence that the compiled-model API of the installed release is unknown.

        None if it is known.
        """
        from opscope.runtimes.litert.installed import KNOWN, has_compiled_models, installed_interpreter

        if has_compiled_models():
            return None
        library = installed_interpreter()
        return (
            f"the compiled-model API is supported for {', '.join(KNOWN)}, but {library.package} {library.version} is "
            "installed"
        )

    def target_here(self) -> RunTarget:
        """Return the target of the installed package."""
        from opscope.runtimes.litert.target import interpreter_here, litert_here

        unknown = self._unknown_api_text()
        return interpreter_here(unknown) if unknown else litert_here()

    def package(self) -> str:
        """Return the name of the wheel, which differs from the runtime's."""
        from opscope.runtimes.litert.installed import INTERPRETERS, MODULE

        return INTERPRETERS[next((module for module in INTERPRETERS if find_spec(module)), MODULE)]

    def is_installed(self) -> bool:
        """Return whether one of the modules with an Interpreter is installed."""
        from opscope.runtimes.litert.installed import INTERPRETERS

        return any(find_spec(module) for module in INTERPRETERS)

    def version(self) -> str:
        """Return the version of the installed package."""
        from opscope.runtimes.litert.installed import installed_interpreter

        return installed_interpreter().version

    def loaded(self) -> str:
        """Return the library with the compiled-model API, else the module of the Interpreter."""
        from opscope.runtimes.litert.installed import has_compiled_models, installed_litert, interpreter_module

        return str(installed_litert().library) if has_compiled_models() else interpreter_module()

    def check(self, path: Path) -> None:
        """Raise UsageError for inputs that cannot be given, and for operators that the wheel cannot run."""
        from opscope.runtimes.litert.signatures import check_callable, read_callable

        check_callable(read_callable(path), path)

    def check_without_delegate(self, path: Path) -> None:
        """Raise UsageError for operators that only the delegate runs."""
        from opscope.runtimes.litert.signatures import check_without_delegate

        check_without_delegate(path)

    def signatures(self, program: Path) -> Sequence[Signature]:
        """Return the signatures of the model, or the one that LiteRT makes for a model without any."""
        from opscope.runtimes.litert.signatures import read_callable

        return read_callable(program).signatures

    def calls(self, program: Path, texts: Sequence[str], *, phases: bool = True) -> list[str]:
        """Return the calls of a process; for a language model, those of a generation loop."""
        from opscope.runtimes.language import looped

        usual = looped(self.phases(program)) if phases and not texts else []
        return usual or super().calls(program, texts)

    def phases(self, program: Path) -> Mapping[str, Phase]:
        """Return the phase of a language model that each signature computes, by the signatures' inputs."""
        from opscope.runtimes.language import declared_phases

        return declared_phases(
            {
                signature.name: [(tensor.name, tensor) for tensor in signature.inputs]
                for signature in self.signatures(program)
            }
        )

    def fills(self, program: Path, calls: Sequence[str]) -> Sequence[str | None]:
        """Return how the inputs of a language model's signatures are filled; empty for any other program."""
        from opscope.runtimes.language import phase_fill
        from opscope.runtimes.litert.signatures import table_rows

        rows = table_rows(program)
        phases, inputs = self.phases(program), self.inputs(program, calls)
        if not set(inputs) <= set(phases):
            return ()
        return [
            phase_fill(input_name, value, phases[name], rows)
            for name, values in inputs.items()
            for input_name, value in values
        ]

    def tensor_names(self, program: Path) -> tuple[list[str], list[str]]:
        """Return the names of the tensors behind the arguments of the first signature."""
        from opscope.runtimes.litert.tflite import read_tflite

        model, method = read_tflite(program), self.signatures(program)[0].name
        method_signature = next((candidate for candidate in model.signatures if candidate.key == method), None)
        graph = model.subgraphs[method_signature.subgraph if method_signature else 0]
        sides = (
            [[number for _, number in side] for side in (method_signature.inputs, method_signature.outputs)]
            if method_signature
            else []
        )
        inputs, outputs = sides or (list(graph.inputs), list(graph.outputs))
        return [graph.tensors[number].name for number in inputs], [graph.tensors[number].name for number in outputs]

    def is_program(self, head: bytes) -> bool:
        """Return whether a file starts with the identifier of a .tflite."""
        from opscope.runtimes.litert.tflite import is_tflite_program

        return is_tflite_program(head)

    def read(self, program: Path, record: Path | None, *, delegated: bool) -> ProgramModel:  # noqa: ARG002 - it has none
        """Read the model as LiteRT and its delegate lower it."""
        from opscope.runtimes.litert.lowering import read_tflite_model

        return read_tflite_model(program, delegated=delegated)

    def tuning_space(self, cpus: int) -> TuningSpace:
        """Return thread counts: LiteRT's own default is one."""
        from opscope.analysis.tuning import DEFAULT, TuningCandidate, TuningSpace, thread_candidates

        threads = thread_candidates(cpus, 1, 'Interpreter("model.tflite", num_threads={threads})')
        return TuningSpace(TuningCandidate(DEFAULT, 1), threads)

    def attributed(self, side: Side, program: Path, record: Path | None) -> AttributedSide:
        """Attribute the operators of a side; with an open batch they have the sizes of the batch that ran."""
        from opscope.runtimes.attribution import attributed_by_model, recorded_inputs
        from opscope.runtimes.litert.batches import find_batch, fix_batch
        from opscope.runtimes.litert.lowering import lowered
        from opscope.runtimes.litert.tflite import read_tflite

        delegated = side.variant is None or side.variant.delegate != NO_DELEGATE
        model = self.model(program, delegated=delegated)
        batch = find_batch(model, recorded_inputs(side, model))
        fixed = fix_batch(read_tflite(program), batch) if batch is not None else None
        if fixed is None:
            return super().attributed(side, program, record)
        model = lowered(fixed, delegated=delegated)
        return attributed_by_model(side, model, self.first_calls(side, model))

    def first_calls(self, side: Side, model: ProgramModel) -> dict[str, int]:
        """Return the first instruction that is a delegate call, by method: traces of LiteRT only count these calls."""
        from opscope.program.structure.plan import InstructionKind

        if side.format not in self.readers:
            return {}
        kinds = {name: [step.kind for step in method.plan.chains[0].steps] for name, method in model.methods.items()}
        delegate_kind = InstructionKind.DELEGATE
        return {name: steps.index(delegate_kind) for name, steps in kinds.items() if delegate_kind in steps}
