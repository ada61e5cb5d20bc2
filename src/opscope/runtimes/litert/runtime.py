"""LiteRT as a runtime."""

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
    """Runs a .tflite, with the XNNPACK delegate or with its own kernels."""

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

    def target(self, named: TargetName) -> RunTarget:
        """Its native runner, or Python on this machine."""
        from opscope.core.system.pythons import python_at
        from opscope.hosts.target_kinds import LOCAL
        from opscope.runtimes.litert.native import NativeLitertTarget
        from opscope.runtimes.litert.target import interpreter_here, litert_here

        if named.kind is LOCAL and named.address:
            return interpreter_here("all releases have it", python_at(named.address))
        return NativeLitertTarget.named(named, litert_here)

    def target_for(self, named: TargetName, programs: Sequence[Path], asked: Callable[[Path], AskedCalls]) -> RunTarget:
        """The Interpreter, where one of them needs it, or where the compiled-model API of the release is not known."""
        from opscope.core.errors import UsageError
        from opscope.hosts.target_kinds import AUTO, LOCAL
        from opscope.runtimes.litert.target import interpreter_here, interpreter_needed

        here = named.kind in {AUTO, LOCAL} and not named.address
        target = None if here else self.target(named)
        needed = next((why for program in programs if (why := interpreter_needed(program, asked(program)))), None)
        if needed and not here:
            problem = f"only LiteRT's Interpreter runs it, from Python: {needed}"
            hint = f"leave out --target: {AUTO.name} and {LOCAL.name} run it on this machine"
            raise UsageError(problem, where=named.text, hint=hint)
        why = needed or self._unknown() if here else None
        return interpreter_here(why) if why else target or self.target(named)

    def _unknown(self) -> str | None:
        """That the compiled-model API of the installed release is not known; None where it is."""
        from opscope.runtimes.litert.installed import KNOWN, has_compiled_models, installed_interpreter

        if has_compiled_models():
            return None
        library = installed_interpreter()
        return (
            f"the compiled-model API is supported for {', '.join(KNOWN)}, but {library.package} {library.version} is "
            "installed"
        )

    def target_here(self) -> RunTarget:
        """The installed package."""
        from opscope.runtimes.litert.target import interpreter_here, litert_here

        unknown = self._unknown()
        return interpreter_here(unknown) if unknown else litert_here()

    def package(self) -> str:
        """Of the wheel, which is not called as the runtime is."""
        from opscope.runtimes.litert.installed import INTERPRETERS, MODULE

        return INTERPRETERS[next((module for module in INTERPRETERS if find_spec(module)), MODULE)]

    def is_installed(self) -> bool:
        """Likewise of its module."""
        from opscope.runtimes.litert.installed import INTERPRETERS

        return any(find_spec(module) for module in INTERPRETERS)

    def version(self) -> str:
        """Of the installed package."""
        from opscope.runtimes.litert.installed import installed_interpreter

        return installed_interpreter().version

    def loaded(self) -> str:
        """The library with the compiled-model API, else the module of the Interpreter."""
        from opscope.runtimes.litert.installed import has_compiled_models, installed_litert, interpreter_module

        return str(installed_litert().library) if has_compiled_models() else interpreter_module()

    def check(self, path: Path) -> None:
        """Refuse inputs that cannot be given."""
        from opscope.runtimes.litert.signatures import check_callable, read_callable

        check_callable(read_callable(path), path)

    def check_without_delegate(self, path: Path) -> None:
        """Refuse operators that only the delegate runs."""
        from opscope.runtimes.litert.signatures import check_without_delegate

        check_without_delegate(path)

    def signatures(self, program: Path) -> Sequence[Signature]:
        """Those of the model, or the one that LiteRT makes of it."""
        from opscope.runtimes.litert.signatures import read_callable

        return read_callable(program).signatures

    def calls(self, program: Path, asked: Sequence[str], *, phases: bool = True) -> list[str]:
        """Of a language model as a loop that makes tokens does."""
        from opscope.runtimes.language import looped

        usual = looped(self.phases(program)) if phases and not asked else []
        return usual or super().calls(program, asked)

    def phases(self, program: Path) -> Mapping[str, Phase]:
        """By the inputs of its signatures."""
        from opscope.runtimes.language import declared_phases

        return declared_phases(
            {one.name: [(tensor.name, tensor) for tensor in one.inputs] for one in self.signatures(program)}
        )

    def fills(self, program: Path, calls: Sequence[str]) -> Sequence[str | None]:
        """Of the signatures of a language model."""
        from opscope.runtimes.language import phase_fill
        from opscope.runtimes.litert.signatures import table_rows

        rows = table_rows(program)
        phases, inputs = self.phases(program), self.inputs(program, calls)
        if not set(inputs) <= set(phases):
            return ()
        return [phase_fill(one, value, phases[name], rows) for name, own in inputs.items() for one, value in own]

    def tensor_names(self, program: Path) -> tuple[list[str], list[str]]:
        """Of the tensors that the arguments of a signature stand for."""
        from opscope.runtimes.litert.tflite import read_tflite

        model, method = read_tflite(program), self.signatures(program)[0].name
        named = next((one for one in model.signatures if one.key == method), None)
        graph = model.subgraphs[named.subgraph if named else 0]
        sides = [[number for _, number in side] for side in (named.inputs, named.outputs)] if named else []
        inputs, outputs = sides or (list(graph.inputs), list(graph.outputs))
        return [graph.tensors[number].name for number in inputs], [graph.tensors[number].name for number in outputs]

    def is_program(self, head: bytes) -> bool:
        """By the identifier of its FlatBuffer."""
        from opscope.runtimes.litert.tflite import is_tflite_program

        return is_tflite_program(head)

    def read(self, program: Path, record: Path | None, *, delegated: bool) -> ProgramModel:  # noqa: ARG002 - it has none
        """As LiteRT and its delegate lower it."""
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
        """Its traces count the parts that a delegate took, and do not say where in the graph they are."""
        from opscope.program.structure.plan import InstructionKind

        if side.format not in self.readers:
            return {}
        kinds = {name: [step.kind for step in own.plan.chains[0].steps] for name, own in model.methods.items()}
        called = InstructionKind.DELEGATE
        return {name: own.index(called) for name, own in kinds.items() if called in own}
