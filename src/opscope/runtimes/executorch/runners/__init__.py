"""Runners of ExecuTorch: the Python child, the native runner, a user's own build; here and on devices."""
