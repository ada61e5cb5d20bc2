"""ONNX Runtime without Python in the process."""
