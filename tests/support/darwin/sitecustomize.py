"""A Python that takes this machine for a Mac, as far as that goes: a directory to put on PYTHONPATH.

``sys.platform`` and what ``platform`` tells are a Mac's, files below /proc and /sys are absent, functions of Linux's
scheduler are missing, and the kernel's values come from a table. Programs that macOS brings are absent, too.
"""

import builtins
import ctypes
import io
import os
import platform
import re
import sys
import sysconfig
import types
from pathlib import PurePath

VALUES = {
    "machdep.cpu.brand_string": b"Apple M4\0",
    "hw.memsize": (16 << 30).to_bytes(8, "little"),
    "sysctl.proc_translated": bytes(4),
    **dict.fromkeys(
        ("hw.optional.arm.FEAT_SME", "hw.optional.arm.FEAT_SME2", "hw.optional.arm.FEAT_DotProd"), b"\1\0\0\0"
    ),
}
"""Of a Mac with an M4; names as its kernel has them."""
UUID = bytes(range(16))
HIDDEN = re.compile(r"/(?:proc|sys)/(?!(?:self|\d+)(?:/fd(?:/.*)?)?$)")
"""All but what /dev/fd leads to on Linux; macOS has that directory, too."""


def _is_hidden(path):
    return isinstance(path, (str, bytes, PurePath)) and HIDDEN.match(os.fsdecode(path))


def _hide_files(function):
    """Answer as for a file that does not exist."""

    def hiding(path, *arguments, **named):
        if _is_hidden(path):
            raise FileNotFoundError(2, "No such file or directory", os.fsdecode(path))
        return function(path, *arguments, **named)

    return hiding


class _Library(ctypes.CDLL):
    """The C library with two functions of Darwin's."""

    def sysctlbyname(self, name, value, size, _new, _new_size):
        known = VALUES.get(name.decode())
        if known is None:
            return -1
        if value is not None:
            ctypes.memmove(value, known, len(known))
        size._obj.value = len(known)
        return 0

    def gethostuuid(self, value, _wait):
        ctypes.memmove(value, UUID, len(UUID))
        return 0


builtins.open = io.open = _hide_files(io.open)
for name in ("stat", "lstat", "open", "listdir", "scandir", "readlink"):
    setattr(os, name, _hide_files(getattr(os, name)))
for name in [name for name in dir(os) if name.startswith("sched_")]:
    delattr(os, name)
ctypes.CDLL = _Library
sysconfig.get_config_vars()  # it reads a file that is named after the platform
platform.system, platform.machine = lambda: "Darwin", lambda: "arm64"
platform.processor, platform.release = lambda: "arm", lambda: "25.0.0"
proxies = types.ModuleType("_scproxy")
proxies._get_proxy_settings = proxies._get_proxies = dict
sys.modules["_scproxy"] = proxies
sys.platform = "darwin"
os.environ["POLARS_SKIP_CPU_CHECK"] = "1"  # it is built for this CPU, whatever the platform is said to be
