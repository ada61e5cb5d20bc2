"""Measuring ceilings: the process that does it, and what a bundle keeps of them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from fakes import FakeClock, FakeTarget, round_ceilings
from job_variants import run_as
from opscope.api import Settings, analyze, profile
from opscope.bundle.bundle import Bundle
from opscope.bundle.manifest import Status
from opscope.core.errors import BundleError, FeatureError, InvalidBundleError, OpscopeError, RunError
from opscope.experiment.protocol import CeilingsAnswer, ChildAnswer
from opscope.program.ceilings import (
    Ceilings,
    NoCeilings,
)
from opscope.runtimes.executorch.runners.python import PythonTarget, python_here
from programs import write_tiny_program
from texts import NOT_THE_MEASURED_FILE

SMALL = Settings(rounds=2, runs=2, warmup=0)

CHILD = "import json, pathlib, os, signal, sys\nrequest = json.load(open(sys.argv[1]))\n"
ANSWER = "pathlib.Path(request['answer']).write_text({!r})\n"


def failing(script: str) -> PythonTarget:
    """A target whose process runs this script instead of measuring."""
    return python_here(ceilings_child=[sys.executable, "-c", CHILD + script])


def _answer(answer: CeilingsAnswer) -> str:
    return ANSWER.format(msgspec.json.encode(answer).decode())


@pytest.mark.parametrize(
    ("script", "kind", "message"),
    [
        ("os.kill(os.getpid(), signal.SIGILL)", RunError, "SIGILL"),
        ("print('no such thing'); sys.exit(3)", RunError, "code 3.*no such thing"),
        ("pass", RunError, "no answer"),
        (ANSWER.format("nonsense"), RunError, "answer is damaged"),
        (
            _answer(ChildAnswer(error="the mask does not hold", kind="mask")),
            FeatureError,
            "mask does not hold",
        ),
        (_answer(ChildAnswer(error="OSError: gone")), RunError, "OSError: gone"),
        (_answer(ChildAnswer()), RunError, "no result"),
    ],
)
def test_a_process_that_fails_is_an_error_with_its_reason(script: str, kind: type[OpscopeError], message: str) -> None:
    """Crash, error, silence, nonsense, refusal, and an answer without figures."""
    with pytest.raises(kind, match=message):
        failing(script).ceilings(run_as([]))


def test_ceilings_of_other_features_than_asked_are_refused() -> None:
    """They would stand beside operators that ran without those features."""
    answer = _answer(ChildAnswer(round_ceilings()))
    with pytest.raises(FeatureError, match="features or threads other than requested"):
        failing(answer).ceilings(run_as(["avx512f"]))
    assert failing(answer).ceilings(run_as([])) == round_ceilings()


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    """A finished bundle with ceilings."""
    target = FakeTarget()
    program = write_tiny_program(tmp_path)
    profile(str(program), settings=SMALL, out=tmp_path / "out", target=target, clock=FakeClock())
    return Bundle.open(tmp_path / "out")


def test_every_variant_keeps_the_ceilings_of_its_own_features(bundle: Bundle) -> None:
    """With its cleared fields and threads. What is measured is not measured again: only a file that is missing."""
    for variant in bundle.manifest.variants:
        ceilings = bundle.ceilings(variant.name)
        assert (ceilings.cleared, ceilings.threads) == (variant.cleared, variant.threads)
    assert bundle.ceilings("no-such-variant") is None
    target = FakeTarget()
    _resume(bundle, target)
    assert target.ceilings_asked == []
    (bundle.path / "variants" / "baseline" / "ceilings.json").unlink()
    _resume(bundle, target)
    assert target.ceilings_asked == [(("avx512f", "avx512bw"), 1)]


@pytest.mark.parametrize(
    ("damage", "words", "hint"),
    [
        (lambda own, _: own[:200], "damaged", "--resume"),
        (lambda own, _: own.replace(b"opscope.ceilings/2", b"opscope.ceilings/3"), "ceilings/3", "upgrade opscope"),
        (lambda _, other: other, "other features or threads", ""),
    ],
    ids=["cut", "of a newer opscope", "of another variant"],
)
def test_a_damaged_file_is_told_and_measured_again(
    damage: Callable[[bytes, bytes], bytes], words: str, hint: str, bundle: Bundle
) -> None:
    """Reading says so; resuming heals it."""
    own, other = (bundle.path / "variants" / name / "ceilings.json" for name in ("accelerated", "baseline"))
    own.write_bytes(damage(own.read_bytes(), other.read_bytes()))
    with pytest.raises(BundleError, match=words) as caught:
        bundle.ceilings("accelerated")
    assert hint in (caught.value.hint or "")
    if words == "damaged":
        _resume(bundle, FakeTarget())
        assert isinstance(bundle.ceilings("accelerated"), Ceilings)


def test_edited_ceilings_are_refused_and_measured_again(bundle: Bundle) -> None:
    """Operators would stand under ceilings that nobody measured; deleting the file is fine."""
    file = bundle.path / "variants" / "accelerated" / "ceilings.json"
    document = json.loads(file.read_text())
    document["seconds"] += 1
    file.write_text(json.dumps(document))
    with pytest.raises(InvalidBundleError, match=NOT_THE_MEASURED_FILE) as caught:
        analyze(bundle.path)
    assert caught.value.where == str(file)
    _resume(bundle, FakeTarget())
    assert analyze(bundle.path).trace.files
    file.unlink()
    assert analyze(bundle.path).trace.files


def _resume(bundle: Bundle, target: FakeTarget) -> None:
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
    _resume(bundle, FakeTarget())
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
