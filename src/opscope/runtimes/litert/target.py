"""Targets of LiteRT on this machine, from Python: the wheel's compiled-model API, and the Interpreter of any release.

Source of the reasons why only the Interpreter runs a .tflite, as far as its file shows it:
``litert/core/model/model_load.cc`` of LiteRT 2.3.0 for variable tensors; the buffers of outputs are made before
a call, by ``litert/c/litert_compiled_model.h``.
"""

from __future__ import annotations

import re
import tempfile
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opscope.bundle.manifest import FailureKind
from opscope.core.errors import MissingDependencyError
from opscope.core.files import storage_errors
from opscope.core.system.pythons import HERE
from opscope.experiment.protocol import AS_IT_IS, Job
from opscope.hosts.process import LAST_WORDS, question_seconds
from opscope.runtimes.litert.installed import PACKAGE, has_compiled_models, installed_interpreter, installed_litert
from opscope.runtimes.litert.interpreter.recorder import recorder_library
from opscope.runtimes.litert.tflite import read_tflite
from opscope.runtimes.litert.trace import TRACE
from opscope.runtimes.package_target import PackageModules, PackageTarget

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from opscope.bundle.manifest import Mechanism
    from opscope.core.system.pythons import Python
    from opscope.experiment.target import Capabilities, SwitchOffer
    from opscope.runtimes.litert.tflite import TfliteModel, TfliteSubgraph
    from opscope.runtimes.runtime import AskedCalls


MODULES = PackageModules(
    "opscope.runtimes.litert.child",
    frozenset({"affinity", "calls", "inputs", "values", "delegate"}),
)


def litert_here(stand_in: str | None = None, python: Python = HERE) -> PackageTarget:
    """Return the target of the installed LiteRT."""
    library, versions = installed_litert(python), {PACKAGE: installed_litert(python).version}
    return PackageTarget(MODULES, TRACE, lambda: library.library, lambda: versions, stand_in, python=python)


_Sides = tuple["TfliteSubgraph", "Sequence[int]", "Sequence[int]"]


def unsupported(model: TfliteModel) -> str | None:
    """Return why the compiled-model API cannot run a model, as a sentence; None if the file shows no reason."""
    variables = [tensor.name for graph in model.subgraphs for tensor in graph.tensors if tensor.variable]
    if variables:
        example = next((f", such as {name}" for name in variables if name), "")
        return f"the compiled-model API supports no variable tensors{example}"
    for graph, inputs, outputs in _callable_graphs(model):
        if any(graph.tensors[number].open_axes for number in inputs):
            continue  # sizes of outputs follow from those of the inputs, which are given
        open_output = next((graph.tensors[number].name for number in outputs if graph.tensors[number].open_axes), None)
        if open_output is not None:
            return (
                f"the compiled-model API does not support outputs, such as {open_output}, whose sizes are known only "
                "after a call"
            )
    return None


def is_settled(model: TfliteModel) -> bool:
    """Return whether the file has no open sizes and no custom operators, with which the compiled-model API may fail."""
    tensors = [tensor for graph in model.subgraphs for tensor in graph.tensors]
    custom = any(operator.custom for graph in model.subgraphs for operator in graph.operators)
    outputs = [
        graph.tensors[number] for graph, _, output_numbers in _callable_graphs(model) for number in output_numbers
    ]
    return not (custom or any(tensor.open_axes for tensor in tensors)) and all(tensor.shape for tensor in outputs)


def _callable_graphs(model: TfliteModel) -> Iterator[_Sides]:
    """Yield the graphs that a caller can name, with their inputs and outputs."""
    for signature in model.signatures:
        sides = [[number for _, number in side] for side in (signature.inputs, signature.outputs)]
        yield model.subgraphs[signature.subgraph], sides[0], sides[1]
    if not model.signatures:
        graph = model.subgraphs[0]
        yield graph, graph.inputs, graph.outputs


INTERPRETER_MODULES = PackageModules(
    "opscope.runtimes.litert.interpreter.child",
    frozenset({"affinity", "calls", "inputs", "values", "delegate"}),
)


class InterpreterTarget(PackageTarget):
    """Runs .tflite models in the Interpreter.

    ``reason``: why the Interpreter runs them, as one sentence. ``python``: the environment that has it.
    """

    def __init__(self, reason: str, python: Python = HERE) -> None:
        library = installed_interpreter(python)
        versions = {library.package: library.version}
        super().__init__(INTERPRETER_MODULES, TRACE, lambda: library.library, lambda: versions, reason, python=python)

    def capabilities(self) -> Capabilities:
        """Return the target's capabilities; operators can only be timed if a library can be built here."""
        untraceable = None
        try:
            _ = self._recorder_path
        except MissingDependencyError as error:
            untraceable = f"LiteRT's Interpreter has no profiler, so operators cannot be timed: {error.problem}"
        return super().capabilities()._replace(untraceable=untraceable)

    def offer(self, mechanism: Mechanism) -> SwitchOffer:
        """Return the offer of a mechanism for the library. Raises FeatureError if the library cannot be switched."""
        offer = super().offer(mechanism)
        with tempfile.TemporaryDirectory(prefix="opscope-") as directory:
            self._library_switch().prepared_with(mechanism, [], Path(directory))
        return offer

    @cached_property
    def _recorder_path(self) -> str:
        return str(recorder_library())

    def _request_fields(self, job: Job) -> dict[str, Any]:
        return {"recorder": self._recorder_path if job.traced else None}


def interpreter_here(why: str, python: Python = HERE) -> InterpreterTarget:
    """Return the target of the installed Interpreter; ``why`` says what the compiled-model API lacks."""
    return InterpreterTarget(f"LiteRT's Interpreter ran it from Python: {why}", python)


def interpreter_needed(program: Path, asked_calls: AskedCalls) -> str | None:
    """Return why the compiled-model API cannot run a program, as a sentence; None for one that it runs.

    If the file does not show it, the program is run once.
    """
    model = read_tflite(program)
    known = unsupported(model)
    return (
        known
        if known or is_settled(model) or not has_compiled_models()
        else _find_refusal_by_running(program, asked_calls)
    )


def _find_refusal_by_running(program: Path, asked_calls: AskedCalls) -> str | None:
    """Return why calls fail through the compiled-model API and not in the Interpreter; None otherwise.

    Every call is made twice, since the API may refuse the second one: the first has shown then that sizes of
    outputs change.
    """
    calls, inputs = tuple(asked_calls.calls), tuple(asked_calls.inputs)
    count = 2 * max(1, len(calls))
    job = Job(str(program), AS_IT_IS, count, 0, question_seconds(_SECONDS), traced=False, calls=calls, inputs=inputs)
    with tempfile.TemporaryDirectory(prefix="opscope-") as directory, storage_errors(Path(directory)):
        failed = litert_here().execute(job, Path(directory)).failure
        if failed is None or failed.kind not in {FailureKind.EXIT, FailureKind.SIGNAL}:
            return None
        if interpreter_here("").execute(job, Path(directory)).failure is not None:
            return None
    if failed.signal:
        return f"the compiled-model API crashes on it ({failed.signal})"
    words = failed.message.partition(LAST_WORDS)[2] or failed.message
    return f"the compiled-model API rejects it ({_PLACE.sub('', words)})"


_SECONDS = 600.0
_PLACE = re.compile(r"^ERROR: (\[[^]]*\] )?")
