"""The network of ``tests/data/tflite/images.tflite`` as a .pte: one network for two runtimes."""

from __future__ import annotations

from pathlib import Path

from opscope.runtimes.executorch.export.process import export_model
from session_files import made_once


def paired_program() -> Path:
    """The program, with the same weights; exported once in a session."""
    source = Path(__file__).with_name("paired_cnn.py")
    place = made_once("programs/paired_cnn", lambda place: export_model(str(source), "fp32", place))
    return next(place.glob("*.pte"))
