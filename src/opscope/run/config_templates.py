"""Commented configurations to begin with, one for each kind of target."""

from __future__ import annotations

from importlib.resources import files

from opscope.errors import UsageError, did_you_mean
from opscope.run.target_kinds import KINDS

TARGETS = tuple(kind.name for kind in KINDS if kind.template)


def template(target: str) -> str:
    """The text of a configuration in TOML that runs as it is, once its model and runners are there.

    Args:
        target: ``local``, ``native`` or ``runner``.

    Raises:
        UsageError: there is none for it.
    """
    if target not in TARGETS:
        raise UsageError(f"no template for {target!r}", where="--target", hint=did_you_mean(target, TARGETS))
    return (files("opscope.run") / "templates" / f"{target}.toml").read_text(encoding="utf-8")
