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


def delegate_by_names(names: Collection[str]) -> str:
    """The delegate that names its operators like this: XNNPACK when every name has its form, else not known."""
    return XNNPACK if names and all(_XNNPACK_NAME.match(name) for name in names) else UNNAMED_DELEGATE
