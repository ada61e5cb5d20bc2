"""``opscope features``: the former name of ``opscope doctor --features``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.cli.output import JsonOption, say, write_json

if TYPE_CHECKING:
    from opscope.api import FeatureReport


def command(json: JsonOption = None) -> None:
    """Show the CPU features that can be switched off; the same as `opscope doctor --features`.

    Example: opscope features
    """
    tell_features(json)


def tell_features(json: str | None) -> None:
    """Show what this CPU has, what can be switched off, and the ladder."""
    from opscope.api import features

    found = features()
    write_json(found, json)
    if json != "-":
        _tell(found)


def _tell(found: FeatureReport) -> None:
    say(f"{found.arch}, as the ExecuTorch runtime on this machine sees it")
    say()
    for group in found.groups:
        say(f"{group.name:<8} {'yes' if group.present else 'no':<4} {group.meaning}")
    say()
    say(f"default of --ablate: {found.default or 'nothing can be switched off'}")
    steps = " -> ".join(["all on", *(f"without {name}" for name in found.ladder)])
    say(f"--ladder: {steps}")
    for state in found.mechanisms:
        say(f"--switch {state.name}: {'can be used' if state.available else f'no: {state.reason}'}")
