"""Measuring ceilings: the sampling on faked time, the process and its proof, and what a bundle keeps of it.

Tests with the real library look at structure only: which kernels ran, that figures are there, what was refused.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from fakes import FakeClock, FakeTarget, round_ceilings
from job_variants import run_as
from opscope.api import Settings, analyze, profile
from opscope.bundle.bundle import Bundle
from opscope.bundle.manifest import Status
from opscope.core.errors import BundleError, FeatureError, InvalidBundleError, OpscopeError, RunError
from opscope.experiment.protocol import CeilingsAnswer, CeilingsRequest, ChildAnswer
from opscope.experiment.target import RunTarget
from opscope.machine import isa
from opscope.program.ceilings import (
    Ceilings,
    KernelClass,
    MacCeiling,
    MeasuredCeiling,
    NoCeilings,
    Pattern,
    kernel_use,
)
from opscope.runtimes.ceilings.probes import (
    LEAST_RUNS,
    PASSES,
    PATIENCE,
    Probe,
    ProbeCandidate,
    RefusedError,
    measure,
)
from opscope.runtimes.executorch.runners.python import PythonTarget, python_here
from programs import write_tiny_program
from texts import LOADED_BEFORE, NOT_THE_MEASURED_FILE

SMALL = Settings(rounds=2, runs=2, warmup=0)
RUNS = PASSES * (LEAST_RUNS - 1)


class Ticks:
    """A clock in nanoseconds that moves when a graph runs."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        """Nanoseconds so far."""
        return self.now


class Graph:
    """A compiled graph that takes a known time.

    Args:
        ticks: moved on by each run.
        durations: of the runs in their order; the last one again and again.
        operators: what it says that it ran.
    """

    def __init__(self, ticks: Ticks, durations: Sequence[int], operators: Sequence[str] = ("Add (ND)",)) -> None:
        self._ticks, self._durations, self.operators = ticks, list(durations), operators
        self.runs = 0
        self.deleted = False

    def invoke(self) -> None:
        """Take the next time."""
        self._ticks.now += self._durations[min(self.runs, len(self._durations) - 1)]
        self.runs += 1

    def delete(self) -> None:
        """Be gone."""
        self.deleted = True


def sampled(
    graphs: dict[str, Graph | RefusedError], ticks: Ticks, *, seconds: float = 1e-6, probes: int = 1
) -> list[MeasuredCeiling]:
    """The ceilings of probes whose candidates are these graphs, each of 1000 units of work."""
    candidates = [
        ProbeCandidate(MacCeiling(dtype="f32", kernel=KernelClass.GEMM, shape=name), 1000, _nothing) for name in graphs
    ]

    def compiled(candidate: ProbeCandidate) -> Graph:
        assert isinstance(candidate.ceiling, MacCeiling)
        graph = graphs[candidate.ceiling.shape]
        if isinstance(graph, RefusedError):
            raise graph
        return graph

    found = measure([Probe(candidates, lambda name: name == "Add (ND)")] * probes, compiled, seconds, ticks)
    assert all(isinstance(ceiling, MacCeiling) for ceiling in found)
    return found


def _nothing(_: object) -> None:
    """A graph that is never built."""


def test_the_shortest_run_is_the_ceiling_and_the_spread_is_kept() -> None:
    """Runs of 100, 200 and 400 ns count besides the first of each pass: 10 units a ns at best."""
    ticks = Ticks()
    durations = [999, 100, 999, 200, 999, 400]
    (ceiling,) = sampled({"a": Graph(ticks, durations)}, ticks)
    assert ceiling.rate is not None
    assert (ceiling.rate.best, ceiling.rate.median, ceiling.rate.n) == (10_000_000_000, 5_000_000_000, RUNS)
    assert ceiling.rate.spread == pytest.approx((300 - 150) / 200)
    assert (ceiling.operators, ceiling.unsupported) == (["Add (ND)"], None)


def test_the_fastest_candidate_counts() -> None:
    """Of three shapes the one that takes 50 ns; one that is refused does not matter."""
    ticks = Ticks()
    graphs = {"a": Graph(ticks, [80]), "b": RefusedError("f", "no"), "c": Graph(ticks, [50]), "d": Graph(ticks, [90])}
    (ceiling,) = sampled(graphs, ticks)
    assert isinstance(ceiling, MacCeiling)
    assert ceiling.shape == "c"


def test_runs_go_on_as_long_as_there_is_time() -> None:
    """In 30 us a graph of 100 ns runs 100 times a pass."""
    ticks = Ticks()
    graph = Graph(ticks, [100])
    (ceiling,) = sampled({"a": graph}, ticks, seconds=30e-6)
    assert ceiling.rate is not None
    assert (graph.runs, ceiling.rate.n) == (300, 297)


@pytest.mark.parametrize(
    ("graph", "reason"),
    [
        (RefusedError("xnn_create_runtime_v2", "unsupported hardware"), "xnn_create_runtime_v2: unsupported hardware"),
        (("Convert (NC)", "Add (ND)", "Convert (NC)"), "no separate kernel: runs as Convert (NC), Add (ND)"),
    ],
)
def test_what_the_library_does_not_have_is_a_ceiling_without_a_rate(
    graph: RefusedError | tuple[str, ...], reason: str
) -> None:
    """It refuses, or runs something else than was meant: then the other kernel's rate is not taken for this one's."""
    ticks = Ticks()
    made = graph if isinstance(graph, RefusedError) else Graph(ticks, [100], graph)
    (ceiling,) = sampled({"a": made}, ticks)
    assert (ceiling.rate, ceiling.unsupported) == (None, reason)
    assert isinstance(made, RefusedError) or made.deleted


def test_a_slow_processor_does_not_take_for_ever() -> None:
    """When the time was up long ago, what has not begun is left out with its reason."""
    ticks = Ticks()
    found = sampled({"a": Graph(ticks, [600])}, ticks, seconds=1e-6, probes=PATIENCE + 2)
    assert found[0].rate is not None
    assert found[-1].unsupported is not None
    assert "time" in found[-1].unsupported


CHILD = "import json, pathlib, os, signal, sys\nrequest = json.load(open(sys.argv[1]))\n"
ANSWER = "pathlib.Path(request['answer']).write_text({!r})\n"


def failing(script: str) -> PythonTarget:
    """A target whose process runs this script instead of measuring."""
    return python_here(ceilings_child=[sys.executable, "-c", CHILD + script])


def answered(answer: CeilingsAnswer) -> str:
    """A script that gives this answer."""
    return ANSWER.format(msgspec.json.encode(answer).decode())


@pytest.mark.parametrize(
    ("script", "kind", "message"),
    [
        ("os.kill(os.getpid(), signal.SIGILL)", RunError, "SIGILL"),
        ("print('no such thing'); sys.exit(3)", RunError, "code 3.*no such thing"),
        ("pass", RunError, "no answer"),
        (ANSWER.format("nonsense"), RunError, "answer is damaged"),
        (answered(ChildAnswer(error="the mask does not hold", kind="mask")), FeatureError, "mask does not hold"),
        (answered(ChildAnswer(error="OSError: gone")), RunError, "OSError: gone"),
        (answered(ChildAnswer((round_ceilings(), None))), RunError, "no result"),
    ],
)
def test_a_process_that_fails_is_an_error_with_its_reason(script: str, kind: type[OpscopeError], message: str) -> None:
    """Crash, error, silence, nonsense, refusal, and figures without a proof."""
    with pytest.raises(kind, match=message):
        failing(script).ceilings(run_as([]))


def test_ceilings_of_other_features_than_asked_are_refused() -> None:
    """A proof for nothing is not proof for what was asked."""
    proof = {"cleared": [], "backend_loaded_before": False, "same_symbol": True, "struct_size": 85}
    answer = json.dumps({"result": [json.loads(msgspec.json.encode(round_ceilings())), proof]})
    with pytest.raises(FeatureError, match="features or threads other than requested"):
        failing(ANSWER.format(answer)).ceilings(run_as(["avx512f"]))
    assert failing(ANSWER.format(answer)).ceilings(run_as([])) == round_ceilings()


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    """A finished bundle with ceilings."""
    target = FakeTarget()
    program = write_tiny_program(tmp_path)
    profile(str(program), settings=SMALL, out=tmp_path / "out", target=target, clock=FakeClock())
    return Bundle.open(tmp_path / "out")


def test_every_variant_keeps_the_ceilings_of_its_own_features(bundle: Bundle) -> None:
    """Measured after the repetitions, with the cleared fields and threads of the variant."""
    for variant in bundle.manifest.variants:
        ceilings = bundle.ceilings(variant.name)
        assert isinstance(ceilings, Ceilings)
        assert (ceilings.cleared, ceilings.threads) == (variant.cleared, variant.threads)
    assert bundle.ceilings("no-such-variant") is None


def test_what_is_measured_is_not_measured_again(bundle: Bundle) -> None:
    """Resuming a complete bundle asks for nothing; when one file is missing, only for that."""
    target = FakeTarget()
    resume(bundle, target)
    assert target.ceilings_asked == []
    (bundle.path / "variants" / "baseline" / "ceilings.json").unlink()
    resume(bundle, target)
    assert target.ceilings_asked == [(("avx512f", "avx512bw"), 1)]


def test_a_damaged_file_is_told_and_measured_again(bundle: Bundle) -> None:
    """Reading says so; resuming heals it."""
    file = bundle.path / "variants" / "accelerated" / "ceilings.json"
    file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(BundleError, match="damaged") as caught:
        bundle.ceilings("accelerated")
    assert "--resume" in (caught.value.hint or "")
    resume(bundle, FakeTarget())
    assert isinstance(bundle.ceilings("accelerated"), Ceilings)


def test_ceilings_of_a_newer_opscope_are_refused(bundle: Bundle) -> None:
    """With the advice to upgrade."""
    file = bundle.path / "variants" / "accelerated" / "ceilings.json"
    file.write_text(file.read_text().replace("opscope.ceilings/1", "opscope.ceilings/2"))
    with pytest.raises(BundleError, match="ceilings/2") as caught:
        bundle.ceilings("accelerated")
    assert caught.value.hint == "upgrade opscope"


def test_ceilings_of_another_variant_are_refused(bundle: Bundle) -> None:
    """A copied file is not taken for this variant's."""
    variants = bundle.path / "variants"
    (variants / "accelerated" / "ceilings.json").write_bytes((variants / "baseline" / "ceilings.json").read_bytes())
    with pytest.raises(BundleError, match="other features or threads"):
        bundle.ceilings("accelerated")


def test_edited_ceilings_are_refused_and_measured_again(bundle: Bundle) -> None:
    """Operators would stand under ceilings that nobody measured; deleting the file is fine."""
    file = bundle.path / "variants" / "accelerated" / "ceilings.json"
    document = json.loads(file.read_text())
    document["seconds"] += 1
    file.write_text(json.dumps(document))
    with pytest.raises(InvalidBundleError, match=NOT_THE_MEASURED_FILE) as caught:
        analyze(bundle.path)
    assert caught.value.where == str(file)
    resume(bundle, FakeTarget())
    assert analyze(bundle.path).trace.files
    file.unlink()
    assert analyze(bundle.path).trace.files


def resume(bundle: Bundle, target: FakeTarget) -> None:
    """Run what is missing."""
    model = bundle.manifest.model.source
    profile(model, out=bundle.path, resume=True, target=target, clock=FakeClock())


def test_a_failure_is_kept_as_a_reason_and_never_loses_the_run(tmp_path: Path) -> None:
    """The run is complete, the bundle says why there are no ceilings, and resuming tries again."""
    program, out = write_tiny_program(tmp_path), tmp_path / "out"
    target = FakeTarget(no_ceilings=RunError("measuring ceilings failed: the process was killed by SIGILL"))
    profile(str(program), settings=SMALL, out=out, target=target, clock=FakeClock())
    bundle = Bundle.open(out)
    assert bundle.manifest.status is Status.COMPLETE
    assert bundle.ceilings("baseline") == NoCeilings("measuring ceilings failed: the process was killed by SIGILL")
    resume(bundle, FakeTarget())
    assert isinstance(bundle.ceilings("baseline"), Ceilings)


def test_ceilings_can_be_left_out(tmp_path: Path) -> None:
    """Then nobody asks for them and nothing is written."""
    target = FakeTarget()
    settings = msgspec.structs.replace(SMALL, ceilings=False)
    profile(
        str(write_tiny_program(tmp_path)), settings=settings, out=tmp_path / "out", target=target, clock=FakeClock()
    )
    assert target.ceilings_asked == []
    assert not list((tmp_path / "out").rglob("ceilings.json"))


@pytest.fixture(scope="module")
def strongest() -> list[str]:
    """Fields of the strongest group of this CPU that half precision does not survive the loss of."""
    probed = python_here().probe()
    fields = frozenset(probed.fields)
    names = {group.name for group in isa.present(probed.arch, fields)}
    wanted = next((name for name in ("avx2", "fp16") if name in names), None)
    if wanted is None:
        pytest.skip("this CPU has no half precision to switch off")
    return isa.cleared_fields(probed.arch, [wanted], fields)


@pytest.fixture(scope="module")
def real(strongest: list[str]) -> tuple[Ceilings, Ceilings]:
    """Ceilings of this machine as it is, and without half precision."""
    target = python_here()
    return target.ceilings(run_as([])), target.ceilings(run_as(strongest))


@pytest.mark.runtime
def test_every_ceiling_names_the_kernels_that_ran(real: tuple[Ceilings, Ceilings]) -> None:
    """A rate comes with its kernels and its spread, no rate with a reason; they are of the class that was meant."""
    for ceilings in real:
        assert {(ceiling.dtype, ceiling.kernel) for ceiling in ceilings.compute} >= {
            (dtype, kernel)
            for dtype in ("f32", "f16", "qs8", "qd8")
            for kernel in (KernelClass.GEMM, KernelClass.IGEMM, KernelClass.SUBCONV)
        }
        for ceiling in (*ceilings.compute, *ceilings.elements, *ceilings.memory, *ceilings.dispatch):
            check(ceiling)


def check(ceiling: MeasuredCeiling) -> None:
    """A ceiling has a rate with its evidence, or a reason."""
    assert (ceiling.rate is None) is (ceiling.unsupported is not None)
    if ceiling.rate is None:
        return
    assert ceiling.operators
    assert 0 < ceiling.rate.median <= ceiling.rate.best
    assert ceiling.rate.n >= PASSES
    assert ceiling.rate.spread >= 0
    if isinstance(ceiling, MacCeiling):
        rows = 1 if ceiling.kernel is KernelClass.GEMV else None
        uses = [kernel_use(name, rows) for name in ceiling.operators]
        assert {(use.dtype, use.kernel) for use in uses if use} == {(ceiling.dtype, ceiling.kernel)}


@pytest.mark.runtime
def test_cleared_features_are_in_effect(real: tuple[Ceilings, Ceilings], strongest: list[str]) -> None:
    """Without half precision its kernels are gone: what runs instead is named, and is not a ceiling of that type."""
    whole, without = real
    assert (whole.cleared, without.cleared) == ([], strongest)
    assert whole.threads == without.threads == 1
    half = whole.mac_ceiling("f16", KernelClass.GEMM)
    assert half is not None
    if half.rate is None:
        pytest.skip("this CPU has no half precision that XNNPACK uses")
    lost = without.mac_ceiling("f16", KernelClass.GEMM)
    assert lost is not None
    assert lost.rate is None
    assert "runs as" in (lost.unsupported or "")
    assert "F32" in (lost.unsupported or "")


@pytest.mark.runtime
def test_weights_of_one_row_products_have_ceilings_of_their_own(real: tuple[Ceilings, Ceilings]) -> None:
    """From the caches to beyond them, with the kernels that the products of a model run."""
    for ceilings in real:
        own = [ceiling for ceiling in ceilings.memory if ceiling.pattern is Pattern.WEIGHTS]
        assert [ceiling.working_set for ceiling in own][:3] == [1 << 18, 1 << 20, 1 << 22]
        assert all(ceiling.rate for ceiling in own)
        assert {name for ceiling in own for name in ceiling.operators} == {"Fully Connected (NC, F32) GEMM"}


@pytest.mark.runtime
def test_memory_is_measured_from_small_sets_to_large_ones(real: tuple[Ceilings, Ceilings]) -> None:
    """From 32 KiB on, each set twice the one before, in three patterns; and the fixed cost of an operator."""
    for ceilings in real:
        passes = [ceiling for ceiling in ceilings.memory if ceiling.pattern is not Pattern.WEIGHTS]
        sizes = sorted({ceiling.working_set for ceiling in passes})
        assert sizes[0] == 1 << 15
        assert all(second == 2 * first for first, second in itertools.pairwise(sizes))
        assert len(passes) == 3 * len(sizes)
        assert (ceilings.dispatch_ns() or 0) > 0


@pytest.mark.runtime
def test_clearing_after_the_backend_was_loaded_is_refused() -> None:
    """The backend has taken its copy of the features: these would be the ceilings of another variant."""
    script = (
        "import ctypes, runpy, sys\n"
        "from opscope.runtimes.executorch.installed import BACKEND, library_directory, library_path\n"
        "ctypes.CDLL(str(library_path(library_directory(), BACKEND)))\n"
        "runpy.run_module('opscope.runtimes.executorch.ceilings.child', run_name='__main__')\n"
    )
    late = python_here(ceilings_child=[sys.executable, "-c", script])
    with pytest.raises(FeatureError, match=LOADED_BEFORE):
        late.ceilings(run_as([]))


@pytest.mark.runtime
def test_measuring_loads_neither_torch_nor_executorch(tmp_path: Path) -> None:
    """Only the runtime's libraries are opened."""
    request = CeilingsRequest(run_as([]), 0.001, str(tmp_path / "answer.json"))
    (tmp_path / "request.json").write_bytes(msgspec.json.encode(request))
    script = (
        "import sys\nfrom opscope.runtimes.executorch.ceilings.child import main\n"
        f"assert main([{str(tmp_path / 'request.json')!r}]) == 0\n"
        "assert not {'torch', 'executorch'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answer = msgspec.json.decode((tmp_path / "answer.json").read_bytes(), type=CeilingsAnswer)
    assert answer.result[1].same_symbol


@pytest.mark.parametrize(
    "target", [pytest.param(FakeTarget, id="fake"), pytest.param(python_here, id="local", marks=pytest.mark.runtime)]
)
def test_a_target_measures_the_threads_it_was_asked_for(target: Callable[[], RunTarget]) -> None:
    """Two threads come back as two, with the cost of sharing an operator out."""
    ceilings = target().ceilings(run_as([], 2))
    assert ceilings is not None
    assert (ceilings.threads, ceilings.cleared) == (2, [])
    assert (ceilings.dispatch_ns() or 0) > 0
