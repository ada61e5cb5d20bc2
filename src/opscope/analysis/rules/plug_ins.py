"""Rules of other packages about one variant: functions of its evidence, by entry points in ``opscope.rules``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from opscope.analysis.findings.message import Message, not_checked
from opscope.core.plug_ins import PlugIn, plug_ins

if TYPE_CHECKING:
    from opscope.analysis.rules.evidence import Evidence

GROUP = "opscope.rules"


def of_plug_ins(evidence: Evidence) -> list[Message]:
    """What the rules of other packages say; each message bears ``PACKAGE:NAME`` as its rule.

    A rule that cannot be loaded, raises, or returns anything but a message was not checked, and why is its message.
    """
    return [_said(rule, evidence) for rule in plug_ins(GROUP)]


def _said(rule: PlugIn, evidence: Evidence) -> Message:
    why_not = rule.problem or evidence.disturbed
    return not_checked(rule.key, why_not) if why_not else _asked(rule, evidence)


def _asked(rule: PlugIn, evidence: Evidence) -> Message:
    own = evidence._replace(
        operators=[*evidence.operators],
        layout=[*evidence.layout],
        portable=[*evidence.portable],
        delegates=[*evidence.delegates],
    )
    try:
        # What others return may have fields of any type, and every report reads them.
        said = msgspec.convert(msgspec.to_builtins(rule.loaded(own)), Message)
    except Exception as error:  # noqa: BLE001 - the code of any package
        return not_checked(rule.key, rule.failed("failed", error))
    return msgspec.structs.replace(said, rule=rule.key)
