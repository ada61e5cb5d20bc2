"""Support for ONNX Runtime and its files."""
