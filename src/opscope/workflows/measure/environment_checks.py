"""What around opscope limits it, although it works: where its cache is, and the C library of its Python."""

from __future__ import annotations

from opscope.core.errors import OpscopeError
from opscope.core.system.c_library import other_c_library
from opscope.core.system.cache import VARIABLE, find_cache
from opscope.experiment.checks import Check, State


def environment_checks() -> list[Check]:
    """What `opscope doctor` says of them; nothing where nothing is limited."""
    return [*_cache(), *_c_library()]


def temporary_cache() -> str | None:
    """That what was built will have to be built again, and why; None for a cache that lasts, or that is not there."""
    try:
        found = find_cache()
    except OpscopeError:
        return None
    if found.temporary is None:
        return None
    return f"{found.temporary}: the cache is {found.directory} until this machine restarts; {_ACTION}"


_ACTION = f"name a directory that lasts in {VARIABLE}"


def _cache() -> list[Check]:
    try:
        found = find_cache()
    except OpscopeError as error:
        return [Check("cache", State.PROBLEM, str(error), error.hint or "")]
    if found.temporary is None:
        return []
    return [Check("cache", State.NOTE, f"{found.directory}, a temporary one: {found.temporary}", _ACTION)]


def _c_library() -> list[Check]:
    other = other_c_library()
    if other is None:
        return []
    found = f"this Python {other}: the runtime's wheels are for glibc, so traces can be analysed, models not run"
    return [Check("C library", State.NOTE, found, "use a Python of a system with glibc")]
