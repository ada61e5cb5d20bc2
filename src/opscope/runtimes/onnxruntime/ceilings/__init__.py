"""Ceilings of ONNX Runtime's kernels, from small models that are made for it."""
