"""A runtime that is registered runs, is read, attributed, reported and looked at by doctor: nothing else knows it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import opscope
from fakes import FakeClock
from made_runtime import NANOSECONDS, TRACE, MadeRuntime
from opscope.api import Settings, doctor
from opscope.bundle.bundle import Bundle
from opscope.bundle.manifest import Role
from opscope.core.errors import TraceFormatError, UsageError
from opscope.readers.compressed import inflated
from opscope.runtimes.registry import RUNTIMES
from opscope.workflows.measure.experiments import Means

OPERATORS = ["Relu", "Softmax", "Neg", "Relu"]


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    """The runtime beside the others."""
    made = MadeRuntime()
    RUNTIMES.append(made)
    yield
    RUNTIMES.remove(made)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """Four operators on sixteen numbers."""
    file = tmp_path / "net.made"
    file.write_text(json.dumps({"sizes": [1, 16], "operators": OPERATORS}))
    return file


def test_its_program_is_profiled_analysed_and_reported(program: Path, tmp_path: Path) -> None:
    """Every operator has its place in the program, and its time; doctor tells its version."""
    out = tmp_path / "out"
    opscope.profile(program, settings=Settings(rounds=3, runs=4, warmup=1), out=out, clock=FakeClock())
    found = opscope.analyze(out)
    assert found.trace.format == "made-trace"
    own = [one for one in found.operators if one.kind != "framework"]
    assert [(one.instruction, one.name, one.time_ns, one.shape) for one in own] == [
        (number, f"{name}: {number}", NANOSECONDS[name], (1, 16)) for number, name in enumerate(OPERATORS)
    ]
    assert {one.attribution for one in own} == {"exact"}
    assert "Softmax: 1" in (out / "report.md").read_text()
    assert opscope.validate(out).valid
    assert ("made", "1") in [(check.name, check.found) for check in doctor()]
    kept = next(out.rglob(f"{TRACE}.zst"))
    assert opscope.analyze(kept).program is None
    trace = tmp_path / TRACE
    trace.write_bytes(inflated(kept.read_bytes(), kept))
    assert opscope.analyze(trace, program=program).program is not None
    trace.write_text(trace.read_text()[:-3])
    with pytest.raises(TraceFormatError, match="not a made trace"):
        opscope.analyze(trace)


@pytest.mark.parametrize(
    ("settings", "said", "hint"),
    [
        (Settings(target="ssh:board"), "Made models run on this machine only", ""),
        (Settings(delegate="none"), "only a LiteRT model", ""),
        (Settings(data="w.ptd"), "a .made names its own weights file", ""),
        (Settings(runtime="litert"), r"LiteRT does not run .*net\.made", "it takes .tflite; leave it out for Made"),
        (Settings(runtime="mede"), "there is no runtime 'mede'", "did you mean made"),
    ],
)
def test_what_it_does_not_do_is_refused(
    settings: Settings, said: str, hint: str, program: Path, tmp_path: Path
) -> None:
    """In words that name it, or what takes the program, or a name that is near."""
    with pytest.raises(UsageError, match=said) as raised:
        opscope.profile(program, settings=settings, out=tmp_path / "out")
    assert hint in str(raised.value.hint)


class _OtherRuntime(MadeRuntime):
    """Runs the programs of the made runtime, too, where it is asked for."""

    name, title, suffixes, takes = "other", "Other", (".other",), (".made",)


@pytest.fixture
def other() -> Iterator[None]:
    """A second runtime for the same programs."""
    made = _OtherRuntime()
    RUNTIMES.append(made)
    yield
    RUNTIMES.remove(made)


@pytest.mark.usefixtures("other", "program")
def test_one_program_in_two_runtimes_is_one_bundle(tmp_path: Path) -> None:
    """Two variants that take turns; the manifest and the command that repeats it say which runtime ran each."""
    text = "\n".join(
        ['model = "net.made"', 'target = "local"', "rounds = 2", "runs = 3", "warmup = 1", 'out = "out"']
        + [f'[[variants]]\nname = "{name}"\nruntime = "{name}"' for name in ("made", "other")]
    )
    (tmp_path / "two.toml").write_text(text)
    (result,) = opscope.run(tmp_path / "two.toml", means=Means(lock="warn", clock=FakeClock())).experiments
    assert result.error is None, result.error
    manifest = Bundle.open(Path(result.path)).manifest
    assert [(one.name, one.runtime, one.role) for one in manifest.variants] == [
        ("made", "made", Role.BASELINE),
        ("other", "other", Role.CANDIDATE),
    ]
    assert manifest.model.sha256 == manifest.programs["other"].sha256
    assert opscope.validate(result.path).valid
    found = opscope.compare(f"{result.path}#made", f"{result.path}#other")
    assert found.end_to_end.baseline_ns == found.end_to_end.candidate_ns
    assert "in other" in (Path(result.path) / "report.md").read_text()


@pytest.mark.usefixtures("other")
def test_the_runtime_of_a_profile_is_kept(program: Path, tmp_path: Path) -> None:
    """It is among what a reproduction says, and a bundle is finished with no other."""
    out = tmp_path / "out"
    settings = Settings(runtime="other", rounds=1, runs=2, warmup=0)
    opscope.profile(program, settings=settings, out=out, clock=FakeClock())
    assert "--runtime other" in (out / "report.md").read_text()
    asked = Settings(runtime="made", rounds=1, runs=2, warmup=0)
    with pytest.raises(UsageError, match="was begun with other, not with made"):
        opscope.profile(program, settings=asked, out=out, resume=True, named={"--runtime"}, clock=FakeClock())
