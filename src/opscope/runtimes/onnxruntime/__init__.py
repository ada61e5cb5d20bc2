"""ONNX Runtime: its files."""
