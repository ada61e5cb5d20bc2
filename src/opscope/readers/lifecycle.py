"""Events of the runtime's own life, by name, and the names of XNNPACK's: the same in every format that holds them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from opscope.core.table.scope import Scope

if TYPE_CHECKING:
    from collections.abc import Collection

PORTABLE = "portable"
XNNPACK = "XNNPACK"
UNNAMED_DELEGATE = "delegate"

FRAMEWORK = {
    "Method::execute": Scope.EXECUTE,
    "Program::load_method": Scope.LOAD,
    "Method::init": Scope.INIT,
    "DELEGATE_CALL": Scope.DELEGATE_CALL,
    "OPERATOR_CALL": Scope.OPERATOR_CALL,
    "MOVE_CALL": Scope.CONTROL,
    "JF_CALL": Scope.CONTROL,
    "FREE_CALL": Scope.CONTROL,
}
"""Names of the framework's events; everything else is an operator."""

_XNNPACK_NAME = re.compile(r"(Invalid (Unary|Binary) Op|[A-Za-z0-9 ]+ \([A-Z0-9/, _]+\)( [A-Za-z0-9 ]+)?) #\d+\Z")


_MARKS = {
    "QNN": ("QNN ", "Number of HVX", "OpId_"),
    "Vulkan": ("ETVK_",),
    "VGF": ("VGF_",),
    "Ethos-U": ("EthosU",),
}
"""What names of events contain that only one delegate of ExecuTorch writes."""


def is_xnnpack_name(name: str) -> bool:
    """Return whether an operator is named as XNNPACK names its operators: ``Clamp (NC) #3``."""
    return _XNNPACK_NAME.match(name) is not None


def delegate_by_names(operators: Collection[str], events: Collection[str] = ()) -> str:
    """Return the delegate that names its operators like this; ``delegate`` when that cannot be told.

    Args:
        operators: names that a delegate gave its operators; XNNPACK is told by the form of all of them.
        events: names of all other events, in which delegates other than XNNPACK leave their marks.
    """
    for delegate, marks in _MARKS.items():
        if any(mark in name for name in (*operators, *events) for mark in marks):
            return delegate
    return XNNPACK if operators and all(map(_XNNPACK_NAME.match, operators)) else UNNAMED_DELEGATE
