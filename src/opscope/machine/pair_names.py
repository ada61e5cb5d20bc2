"""Pairs of variants by their names, as the Arm kit's templates name them: ``mac_sme2_off`` beside ``mac_sme2_on``."""

from __future__ import annotations

import re

from opscope.machine.isa import GROUPS

_OFF = re.compile(r"(?<![A-Za-z0-9])off(?![A-Za-z0-9])")
_FEATURE = re.compile(r"([A-Za-z0-9]+)[-_.]off(?![A-Za-z0-9])")
_FEATURES = frozenset(group.name for groups in GROUPS.values() for group in groups)


def accelerated_name(name: str) -> str | None:
    """Return the name with ``on`` in place of the word ``off``. None if it has no such word."""
    on = _OFF.sub("on", name)
    return None if on == name else on


def declared_features(baseline: str, candidate: str) -> tuple[str, ...]:
    """Return the CPU features that two names declare as off in the first and on in the second.

    Empty unless the names differ in ``off`` and ``on`` alone and the word before ``off`` is a group of features.
    """
    if accelerated_name(baseline) != candidate:
        return ()
    return tuple(word.lower() for word in _FEATURE.findall(baseline) if word.lower() in _FEATURES)
