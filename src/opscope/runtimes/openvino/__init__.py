"""Support for OpenVINO: its IR, and models of other runtimes, on its CPU plugin."""
