"""Marks of tests that need a package which opscope works without, and whose reasons say how to install it."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


def _needs_package(module: str, package: str, extra: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(find_spec(module) is None, reason=f"needs {package}: pip install 'opscope[{extra}]'")


needs_executorch = _needs_package("executorch", "executorch", "executorch")
needs_litert = _needs_package("ai_edge_litert", "ai-edge-litert", "litert")
needs_onnxruntime = _needs_package("onnxruntime", "onnxruntime", "onnxruntime")
needs_openvino = _needs_package("openvino", "openvino", "openvino")
