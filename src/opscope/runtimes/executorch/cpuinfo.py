"""Read the live ``cpuinfo_isa`` of the runtime's libraries, prove its layout, and clear features in it.

Runs in its own process: what is cleared stays cleared for the life of the process, and must be cleared before
the library of the XNNPACK backend is loaded, whose static constructor takes its copy.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from opscope.bundle.manifest import MaskProof
from opscope.core.errors import FeatureError
from opscope.core.system.elf import symbol_size
from opscope.machine import isa
from opscope.machine.isa import WITHOUT_SWITCH, known_layout, proved_layout
from opscope.machine.processor import read_processor
from opscope.machine.switch.switch import proof

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from opscope.runtimes.executorch.installed import InstalledRuntime

_SYMBOL = "cpuinfo_isa"


class CpuInfo:
    """The ``cpuinfo_isa`` in this process. Raises FeatureError if its layout cannot be proved."""

    def __init__(self, runtime: InstalledRuntime) -> None:
        self.arch = isa.architecture(platform.machine())
        self._runtime = runtime
        path = runtime.features
        self._bytes, self.struct_size = _read_sized_struct(path, self.arch)
        try:
            self.layout = proved_layout(self.arch, list(self._bytes), self.struct_size, read_processor())
        except FeatureError as error:
            raise FeatureError(error.problem, where=path, hint=error.hint) from None

    def fields(self) -> frozenset[str]:
        """Return the names of the set fields."""
        return frozenset(name for name, offset in self.layout.offsets.items() if self._bytes[offset])

    def clear(self, fields: Iterable[str]) -> None:
        """Clear fields for the rest of this process. Raises FeatureError for an unknown field."""
        for field in fields:
            if field not in self.layout.offsets:
                raise FeatureError(f"cpuinfo_isa has no field {field}")
            self._bytes[self.layout.offsets[field]] = 0

    def backend_loaded(self) -> bool:
        """Return whether the library with the XNNPACK backend is already in this process."""
        try:
            # RTLD_NOLOAD opens a library only when it is there already.
            ctypes.CDLL(str(self._runtime.backend), mode=_RTLD_NOLOAD)
        except OSError:
            return False
        return True

    def backend_shares_symbol(self) -> bool:
        """Return whether the loaded backend uses the ``cpuinfo_isa`` that was cleared, and no other copy hides it."""
        backend = ctypes.CDLL(str(self._runtime.backend), mode=_RTLD_NOLOAD)
        mine = ctypes.addressof(self._bytes)
        return _symbol_address(backend) == mine and _symbol_address(ctypes.CDLL(None)) in (mine, None)

    def prove(self, cleared: list[str], *, loaded_before: bool) -> MaskProof:
        """Return the proof that the backend, loaded by now, saw the cleared features.

        Raises FeatureError if it did not.
        """
        still_set = sorted(self.fields() & set(cleared))
        same_symbol = self.backend_loaded() and self.backend_shares_symbol()
        if loaded_before:
            raise FeatureError("the XNNPACK backend loaded and chose its kernels before features were cleared")
        if still_set:
            raise FeatureError(f"loading the runtime switched features back on: {', '.join(still_set)}")
        if not same_symbol:
            raise FeatureError("the XNNPACK backend does not read the cpuinfo_isa that was cleared")
        return MaskProof(cleared, loaded_before, same_symbol, self.struct_size)


_RTLD_NOLOAD = 0x10 if sys.platform == "darwin" else 0x4


def _symbol_address(library: ctypes.CDLL) -> int | None:
    try:
        return ctypes.addressof(ctypes.c_uint8.in_dll(library, _SYMBOL))
    except ValueError:
        return None


def switched_off(
    runtime: InstalledRuntime, fields: list[str] | None, record: str | None = None
) -> Callable[[], MaskProof | None]:
    """Clear fields for the rest of this process, before the backend is loaded.

    Returns a function that gives the proof once the backend has been loaded; it raises FeatureError if there is
    none.
    """
    if fields is None:
        return lambda: None
    if record is not None:
        return lambda: _prove_external_switch(runtime, fields, Path(record))
    cpu = CpuInfo(runtime)
    loaded_before = cpu.backend_loaded()
    cpu.clear(fields)
    return lambda: cpu.prove(fields, loaded_before=loaded_before)


def switched_libraries(runtime: InstalledRuntime) -> list[Path]:
    """Return the libraries that ask the CPU for the features by which kernels are chosen."""
    return list(dict.fromkeys([runtime.features, runtime.backend]))


def _prove_external_switch(runtime: InstalledRuntime, fields: list[str], record: Path) -> MaskProof:
    """Return the proof of a switch that the process was started with.

    Fields are read back if the layout of the struct is known.
    """
    arch, path = isa.architecture(platform.machine()), runtime.features
    size = None if sys.platform == "darwin" else symbol_size(path, _SYMBOL)
    layout = isa.LAYOUTS[arch].get(size or 0)
    content = _initialised_struct(ctypes.CDLL(str(path)), layout.size, path) if layout else ()
    proved = proof(record)
    offsets = layout.offsets if layout else {}
    still_set = [field for field in fields if field in offsets and content[offsets[field]]]
    if still_set:
        raise FeatureError(f"features are still on: {', '.join(still_set)}", where=path)
    return msgspec.structs.replace(proved, struct_size=size)


def _read_sized_struct(path: Path, arch: str) -> tuple[ctypes.Array[ctypes.c_uint8], int | None]:
    """Return the initialised struct in the library, and its size as the symbol table states it."""
    size = None if sys.platform == "darwin" else symbol_size(path, _SYMBOL)
    content = _initialised_struct(ctypes.CDLL(str(path)), max(isa.LAYOUTS[arch]) if size is None else size, path)
    if size is not None:
        known_layout(arch, size)
    return content, size


def _initialised_struct(library: ctypes.CDLL, size: int, path: Path) -> ctypes.Array[ctypes.c_uint8]:
    """Return the struct of that size in a library, initialised. Raises FeatureError if there is none."""
    try:
        initialize = library.cpuinfo_initialize
        content = (ctypes.c_uint8 * size).in_dll(library, _SYMBOL)
    except (AttributeError, ValueError):
        raise FeatureError("the runtime exports no cpuinfo_isa", where=path, hint=WITHOUT_SWITCH) from None
    initialize.restype = ctypes.c_bool
    if not initialize():
        raise FeatureError("the runtime cannot read this CPU's features", where=path, hint=WITHOUT_SWITCH)
    return content
