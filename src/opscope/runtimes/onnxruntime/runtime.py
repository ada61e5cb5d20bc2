"""ONNX Runtime as a runtime."""

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

    def target(self, named: TargetName) -> RunTarget:
        """Python on this machine unless another place is named, else its native runner."""
        from opscope.hosts.target_kinds import AUTO
        from opscope.runtimes.onnxruntime.target import NativeOnnxTarget, onnxruntime_here

        if named.kind is AUTO:
            return self.target_here()
        return NativeOnnxTarget.named(named, lambda _, python: onnxruntime_here(python))

    def target_here(self) -> RunTarget:
        """The installed package."""
        from opscope.runtimes.onnxruntime.target import onnxruntime_here

        return onnxruntime_here()

    def version(self) -> str:
        """Of the installed package."""
        from opscope.runtimes.onnxruntime.installed import installed_onnxruntime

        return installed_onnxruntime().version

    def holds(self, path: Path) -> bool:
        """By its first bytes."""
        from opscope.runtimes.onnxruntime.onnx_file import is_onnx

        return is_onnx(path)

    def program_in(self, folder: Path) -> Path | None:
        """Of a folder that its generative library reads."""
        from opscope.runtimes.onnxruntime.language import program_in

        return program_in(folder)

    def program(self, model: str, models: Path | None) -> Path | None:
        """The program, or that of the folder."""
        named = Path(model)
        return super().program(str((named.is_dir() and self.program_in(named)) or named), models)

    def check(self, path: Path) -> None:
        """Refuse a model that no session can be made of."""
        from opscope.runtimes.onnxruntime.signatures import check_runnable

        check_runnable(path)

    def check_options(self, options: Mapping[str, str] | None) -> None:
        """Refuse options that no session has."""
        from opscope.runtimes.onnxruntime.options import session_choice

        session_choice(options)

    def files(self, program: Path, data: Path | None) -> list[Path]:  # noqa: ARG002 - the program names its weights
        """The program, the files with its weights, and what a generative library calls it with."""
        from opscope.runtimes.onnxruntime.language import CONFIG
        from opscope.runtimes.onnxruntime.onnx_file import external_paths, read_onnx

        beside = program.with_name(CONFIG)
        return [program, *external_paths(read_onnx(program), program), *([beside] if beside.is_file() else [])]

    def described(self, model: str, source: Path | None, files: Sequence[Path], home: str) -> Model:
        """The weights are what a manifest has beside the program."""
        import msgspec

        from opscope.runtimes.onnxruntime.language import CONFIG

        told = super().described(model, source, [one for one in files if one.name != CONFIG], home)
        if source is None or not source.with_name(CONFIG).is_file():
            return told
        # The file of such a folder is always called `model.onnx`.
        return msgspec.structs.replace(told, name=source.resolve().parent.name)

    def signatures(self, program: Path) -> Sequence[Signature]:
        """The one function of the model."""
        from opscope.runtimes.onnxruntime.signatures import read_signature

        return (read_signature(program),)

    def language(self, program: Path) -> LanguageModel | None:
        """By its inputs, and by the configuration of the generative library."""
        from opscope.runtimes.onnxruntime.language import onnx_language_model

        return onnx_language_model(program)

    def index_limits(self, program: Path) -> Mapping[str, int]:
        """By the tables that the graph gathers from."""
        from opscope.runtimes.onnxruntime.signatures import index_limits

        return index_limits(program)

    def weight_bits(self, program: Path) -> frozenset[int]:
        """Of its graph; 8 also where a graph that keeps wider ones quantises."""
        from opscope.program.structure.dtypes import used_bits
        from opscope.runtimes.onnxruntime.onnx_file import read_onnx

        graph = read_onnx(program).graph
        stored = used_bits(weight.dtype for weight in graph.all_weights() if len(weight.shape) > 1)
        return stored | {8} if any(node.op in _QUANTISING for node in graph.all_nodes()) else stored

    def preflight(self, program: Path, record: Path | None, cpu: Cpu | None) -> Preflight:  # noqa: ARG002 - it has none
        """By a session of it, where the package is installed."""
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
        """As the runner left it beside the profile."""
        from opscope.runtimes.onnxruntime.graph import GRAPH, read_session_graph

        return read_session_graph(trace.with_name(GRAPH)).started_ns

    def attributed(self, side: Side, program: Path, record: Path | None) -> AttributedSide:  # noqa: ARG002 - it has none
        """By the graph that the sessions ran, which is kept beside their traces."""
        from opscope.runtimes.onnxruntime.attribution import session_graph_of, with_nodes

        return with_nodes(side, program, session_graph_of(side))
