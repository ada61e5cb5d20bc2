"""ONNX Runtime as a runtime of opscope."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from opscope.runtimes.runtime import Runtime

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opscope.analysis.preflight.preflight import Preflight
    from opscope.analysis.tuning import TuningSpace
    from opscope.bundle.manifest import Model
    from opscope.experiment.target import RunTarget
    from opscope.experiment.target_names import TargetName
    from opscope.program.kernels.cpu import Cpu
    from opscope.program.structure.exported import Signature
    from opscope.runtimes.attribution import AttributedSide
    from opscope.runtimes.language import LanguageModel
    from opscope.runtimes.side import Side

_QUANTISING = {"QuantizeLinear", "DynamicQuantizeLinear"}


class OnnxRuntime(Runtime):
    """Runs an .onnx in a session."""

    name = "onnxruntime"
    title = "ONNX Runtime"
    suffixes = (".onnx",)
    readers: ClassVar = {"onnxruntime-json": ("opscope.runtimes.onnxruntime.profile", "OnnxRuntimeProfileReader")}
    program_hint = "--program MODEL.onnx adds layers and shapes"
    importable = "onnxruntime"
    has_options = True
    channels_last = False
    has_delegates = False
    has_model = False
    writes_texts = True
    preflight_runs = True

    def target(self, target_name: TargetName) -> RunTarget:
        """Return Python on this machine by default, else the native runner on the target of that name."""
        from opscope.hosts.target_kinds import AUTO
        from opscope.runtimes.onnxruntime.target import NativeOnnxTarget, onnxruntime_here

        if target_name.kind is AUTO:
            return self.target_here()
        return NativeOnnxTarget.named(target_name, lambda _, python: onnxruntime_here(python))

    def target_here(self) -> RunTarget:
        """Return the target of the installed package."""
        from opscope.runtimes.onnxruntime.target import onnxruntime_here

        return onnxruntime_here()

    def version(self) -> str:
        """Return the version of the installed package."""
        from opscope.runtimes.onnxruntime.installed import installed_onnxruntime

        return installed_onnxruntime().version

    def holds(self, path: Path) -> bool:
        """Return whether a file is an ONNX program, by its first bytes."""
        from opscope.runtimes.onnxruntime.onnx_file import is_onnx

        return is_onnx(path)

    def program_in(self, folder: Path) -> Path | None:
        """Return the program in a folder that the generative library of ONNX Runtime reads; None for other folders."""
        from opscope.runtimes.onnxruntime.language import program_in

        return program_in(folder)

    def program(self, model: str, models: Path | None) -> Path | None:
        """Return the program that a user named, or the one in the folder."""
        path = Path(model)
        return super().program(str((path.is_dir() and self.program_in(path)) or path), models)

    def check(self, path: Path) -> None:
        """Raise UsageError for a model that no session can be made of."""
        from opscope.runtimes.onnxruntime.signatures import check_runnable

        check_runnable(path)

    def check_options(self, options: Mapping[str, str] | None) -> None:
        """Raise UsageError for options that no session has."""
        from opscope.runtimes.onnxruntime.options import session_choice

        session_choice(options)

    def files(self, program: Path, data: Path | None) -> list[Path]:  # noqa: ARG002 - the program names its weights
        """Return the program, the files with its weights, and the configuration of the generative library."""
        from opscope.runtimes.onnxruntime.language import CONFIG
        from opscope.runtimes.onnxruntime.onnx_file import external_paths, read_onnx

        beside = program.with_name(CONFIG)
        return [program, *external_paths(read_onnx(program), program), *([beside] if beside.is_file() else [])]

    def described(self, model: str, source: Path | None, files: Sequence[Path], home: str) -> Model:
        """Describe a model for the manifest; its weights are listed beside the program."""
        import msgspec

        from opscope.runtimes.onnxruntime.language import CONFIG

        model_entry = super().described(model, source, [file for file in files if file.name != CONFIG], home)
        if source is None or not source.with_name(CONFIG).is_file():
            return model_entry
        # The file of such a folder is always called `model.onnx`.
        return msgspec.structs.replace(model_entry, name=source.resolve().parent.name)

    def signatures(self, program: Path) -> Sequence[Signature]:
        """Return the single function of the model."""
        from opscope.runtimes.onnxruntime.signatures import read_signature

        return (read_signature(program),)

    def language(self, program: Path) -> LanguageModel | None:
        """Return the language model that a program is, by its inputs and the generative library's configuration."""
        from opscope.runtimes.onnxruntime.language import onnx_language_model

        return onnx_language_model(program)

    def index_limits(self, program: Path) -> Mapping[str, int]:
        """Return the number of rows of the tables that inputs index, from the graph's gather operators."""
        from opscope.runtimes.onnxruntime.signatures import index_limits

        return index_limits(program)

    def weight_bits(self, program: Path) -> frozenset[int]:
        """Return the bit widths of the graph's weights; 8 is included if the graph quantises wider ones itself."""
        from opscope.program.structure.dtypes import used_bits
        from opscope.runtimes.onnxruntime.onnx_file import read_onnx

        graph = read_onnx(program).graph
        stored = used_bits(weight.dtype for weight in graph.all_weights() if len(weight.shape) > 1)
        return stored | {8} if any(node.op in _QUANTISING for node in graph.all_nodes()) else stored

    def preflight(self, program: Path, record: Path | None, cpu: Cpu | None) -> Preflight:  # noqa: ARG002 - it has none
        """Predict what a processor will accelerate, with a run of the model if the package is installed."""
        from opscope.runtimes.onnxruntime.preflight import onnx_preflight

        return onnx_preflight(program, installed=self.is_installed(), cpu=cpu)

    def tuning_space(self, cpus: int) -> TuningSpace:
        """Return thread counts, and no spinning, which saves CPU time; both change no number."""
        from opscope.analysis.tuning import DEFAULT, TuningCandidate, TuningSpace, join_candidates, thread_candidates

        threads = thread_candidates(cpus, 0, "options.intra_op_num_threads = {threads}")
        entry = "session.intra_op.allow_spinning"
        line = f'options.add_session_config_entry("{entry}", "0")'
        still = TuningCandidate("no spinning", options={entry: "0"}, lines=[line])
        several = [candidate for candidate in threads if candidate.threads > 1]
        return TuningSpace(TuningCandidate(DEFAULT), [*threads, still, *join_candidates(several, [still])])

    def clock_start(self, trace: Path) -> int:
        """Return when the session's clock started, in ns, read from the graph file beside the profile."""
        from opscope.runtimes.onnxruntime.graph import GRAPH, read_session_graph

        return read_session_graph(trace.with_name(GRAPH)).started_ns

    def attributed(self, side: Side, program: Path, record: Path | None) -> AttributedSide:  # noqa: ARG002 - it has none
        """Attribute the operators of a side to the model, through the graph that is kept beside the traces."""
        from opscope.runtimes.onnxruntime.attribution import session_graph_of, with_nodes

        return with_nodes(side, program, session_graph_of(side))
