"""The live ``cpuinfo_isa`` of the runtime's libraries: reading it, checking its layout, clearing features.

Runs in a process of its own: what is cleared stays cleared for the life of the process, and must be cleared before
the library of the XNNPACK backend is loaded, whose static constructor takes its copy.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from opscope.bundle.manifest import MaskProof
from opscope.errors import FeatureError, MissingDependencyError
from opscope.run import isa
from opscope.run.elf import symbol_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_SYMBOL = "cpuinfo_isa"
BACKEND = "libexecutorch_backend_xnnpack"
THREADPOOL = "libexecutorch_threadpool"
INSTALL_HINT = "install them with: pip install 'opscope[executorch]'"
_REFUSED = "features are not switched when that cannot be proved; report this with the output of `opscope doctor`"


def library_directory() -> Path:
    """Where the installed executorch package keeps its libraries; the package is not imported.

    Raises:
        MissingDependencyError: executorch is not installed, or is too old to be switched and traced.
    """
    spec = find_spec("executorch")
    for place in (spec.submodule_search_locations or []) if spec else []:
        directory = Path(place) / "lib"
        if library_path(directory, THREADPOOL).exists():
            return directory
    if spec:
        problem = "executorch is too old: its libraries cannot be traced or switched"
        raise MissingDependencyError(problem, hint="pip install executorch==1.5.1")
    raise MissingDependencyError("executorch is not installed", hint=INSTALL_HINT)


def library_path(directory: Path, name: str) -> Path:
    """File of one of the runtime's libraries."""
    return directory / f"{name}.{'dylib' if sys.platform == 'darwin' else 'so'}"


class CpuInfo:
    """``cpuinfo_isa`` in this process.

    Attributes:
        arch: architecture, as in ``opscope.run.isa``.
        struct_size: as the symbol table states it, None where it states none (macOS).
    """

    def __init__(self, directory: Path) -> None:
        self.arch = isa.architecture(platform.machine())
        self._layout = isa.LAYOUTS[self.arch]
        self._directory = directory
        path = library_path(directory, THREADPOOL)
        self._library = ctypes.CDLL(str(path))
        self._library.cpuinfo_initialize.restype = ctypes.c_bool
        if not self._library.cpuinfo_initialize():
            raise FeatureError("the runtime cannot read this CPU's features", where=path, hint=_REFUSED)
        self.struct_size = None if sys.platform == "darwin" else symbol_size(path, _SYMBOL)
        self._check_size(path)
        self._bytes = (ctypes.c_uint8 * self._layout.size).in_dll(self._library, _SYMBOL)

    def _check_size(self, path: Path) -> None:
        if self.struct_size != self._layout.size and sys.platform != "darwin":
            problem = f"cpuinfo_isa is {self.struct_size} bytes, {self._layout.size} are known"
            raise FeatureError(problem, where=path, hint=_REFUSED)

    def fields(self) -> frozenset[str]:
        """Fields that are set."""
        return frozenset(name for name, offset in self._layout.offsets.items() if self._bytes[offset])

    def check_layout(self, system: frozenset[str]) -> None:
        """Check known fields against the operating system's own list, see :func:`checked_fields`.

        Args:
            system: features as the operating system names them; see :func:`system_features`.

        Raises:
            FeatureError: the layout is not the known one.
        """
        checked_fields(self.arch, list(self._bytes), system)

    def clear(self, fields: Iterable[str]) -> None:
        """Switch fields off for the rest of this process."""
        for field in fields:
            self._bytes[self._layout.offsets[field]] = 0

    def backend_loaded(self) -> bool:
        """Whether the library of the XNNPACK backend is already in this process."""
        path = library_path(self._directory, BACKEND)
        try:
            # RTLD_NOLOAD opens a library only when it is there already.
            ctypes.CDLL(str(path), mode=_RTLD_NOLOAD)
        except OSError:
            return False
        return True

    def backend_shares_symbol(self) -> bool:
        """Whether the loaded backend's ``cpuinfo_isa`` is the one that was cleared, and no other is in its way."""
        backend = ctypes.CDLL(str(library_path(self._directory, BACKEND)), mode=_RTLD_NOLOAD)
        mine = ctypes.addressof(self._bytes)
        return _address(backend) == mine and _address(ctypes.CDLL(None)) in (mine, None)

    def prove(self, cleared: list[str], *, loaded_before: bool) -> MaskProof:
        """The proof that the backend, loaded by now, saw the cleared features, or a refusal.

        Args:
            cleared: fields that were cleared.
            loaded_before: whether the backend was there before they were.

        Raises:
            FeatureError: one of the conditions does not hold.
        """
        still_set = sorted(self.fields() & set(cleared))
        same_symbol = self.backend_loaded() and self.backend_shares_symbol()
        if loaded_before:
            raise FeatureError("the XNNPACK backend was loaded before features were cleared: it has already chosen")
        if still_set:
            raise FeatureError(f"features were switched on again while the runtime was loaded: {', '.join(still_set)}")
        if not same_symbol:
            raise FeatureError("the XNNPACK backend does not read the cpuinfo_isa that was cleared")
        return MaskProof(cleared, loaded_before, same_symbol, self.struct_size)


def checked_fields(arch: str, content: Sequence[int], system: frozenset[str]) -> frozenset[str]:
    """Fields of ``cpuinfo_isa`` that are set, when they agree with the operating system's own list.

    A field may be off though the system lists it; a field that is on must be listed, and every byte of a flag must be
    0 or 1. Otherwise the offsets are not those of the library.

    Args:
        arch: architecture, as in ``opscope.run.isa``.
        content: bytes of the struct.
        system: features as the operating system names them.

    Raises:
        FeatureError: the layout is not the known one.
    """
    layout = isa.LAYOUTS[arch]
    if len(content) != layout.size:
        problem = f"cpuinfo_isa is {len(content)} bytes, {layout.size} are known"
        raise FeatureError(problem, hint=_REFUSED)
    fields = frozenset(name for name, offset in layout.offsets.items() if content[offset])
    told = layout.system_names
    wrong = sorted(field for field in fields & told.keys() if told[field] not in system)
    strange = sorted(name for name, offset in layout.offsets.items() if content[offset] > 1)
    if wrong or strange or not fields & told.keys():
        what = ", ".join(wrong or strange) or "no feature"
        problem = f"cpuinfo_isa has another layout than the known one: {what} does not agree with the system's list"
        raise FeatureError(problem, hint=_REFUSED)
    return fields


_RTLD_NOLOAD = 0x10 if sys.platform == "darwin" else 0x4


def _address(library: ctypes.CDLL) -> int | None:
    try:
        return ctypes.addressof(ctypes.c_uint8.in_dll(library, _SYMBOL))
    except ValueError:
        return None


def system_features() -> frozenset[str]:
    """CPU features by the operating system's own names; empty where it lists none."""
    if sys.platform == "darwin":
        return _sysctl_features()
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return frozenset()
    lines = (line.partition(":") for line in text.splitlines())
    return frozenset(word for key, _, value in lines if key.strip() in {"flags", "Features"} for word in value.split())


# macOS has one sysctl a feature; translated to Linux's names, which the tables use.
_SYSCTLS = {
    "FEAT_LSE": "atomics",
    "FEAT_BF16": "bf16",
    "FEAT_I8MM": "i8mm",
    "FEAT_SME": "sme",
    "FEAT_SME2": "sme2",
    "FEAT_RDM": "asimdrdm",
    "FEAT_FP16": "asimdhp",
    "FEAT_DotProd": "asimddp",
    "FEAT_AES": "aes",
    "FEAT_SHA1": "sha1",
    "FEAT_SHA256": "sha2",
    "FEAT_PMULL": "pmull",
    "FEAT_CRC32": "crc32",
}


def _sysctl_features() -> frozenset[str]:
    libc = ctypes.CDLL(None)
    return frozenset(name for feature, name in _SYSCTLS.items() if _sysctl(libc, f"hw.optional.arm.{feature}"))


def _sysctl(libc: ctypes.CDLL, name: str) -> bool:
    value, size = ctypes.c_int(0), ctypes.c_size_t(4)
    found = libc.sysctlbyname(name.encode(), ctypes.byref(value), ctypes.byref(size), None, 0)
    return found == 0 and bool(value.value)
