"""Rule: its name, what it looks for, its thresholds, how severe its findings are, and the pages that help."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from opscope.analysis.findings.message import not_checked
from opscope.core.parts import explained
from opscope.program.partition.verdicts import Cause

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from opscope.analysis.findings.message import Message, Severity

    Subject = TypeVar("Subject")
    Check = TypeVar("Check", bound=Callable[[Any], object])

ACTIVATIONS = "activations"
ATTENTION_MASKS = "attention-masks"
CHANNELS_LAST_INPUTS = "channels-last-inputs"
DYNAMIC_INT8 = "dynamic-int8"
LAYER_NORM = "layer-norm"
PADDING_AND_NORMS = "padding-and-norms"
RECURRENT_LAYERS = "recurrent-layers"
SPATIAL_MEAN = "spatial-mean"
SPLIT_AND_CAT = "split-and-cat"
PORTABLE = (ACTIVATIONS, LAYER_NORM, PADDING_AND_NORMS, SPATIAL_MEAN, SPLIT_AND_CAT)
"""Pages about operators that no delegate took."""

_BY_OPERATOR = {
    "_native_batch_norm_legit.no_stats_out": PADDING_AND_NORMS,
    "elu.out": ACTIVATIONS,
    "index.Tensor_out": PADDING_AND_NORMS,
    "log1p.out": ACTIVATIONS,
    "mean.out": SPATIAL_MEAN,
    "native_layer_norm.out": LAYER_NORM,
    "select_copy.int_out": SPLIT_AND_CAT,
    "split_copy.Tensor_out": SPLIT_AND_CAT,
    "split_with_sizes_copy.out": SPLIT_AND_CAT,
    "squeeze_copy.dims_out": SPLIT_AND_CAT,
    "unbind_copy.int_out": SPLIT_AND_CAT,
}


class Rule(NamedTuple):
    """Declaration of a rule."""

    name: str  # stable identifier, which its messages bear
    looks_for: str  # what the rule looks for, in words
    # that its findings can have, the highest first; empty for a check of a measurement, which limits the grade
    severities: tuple[Severity, ...] = ()
    # constants that decide, by name; a pair is a limit for each grade
    thresholds: Mapping[str, float | tuple[float, ...]] = {}
    recipes: tuple[str, ...] = ()  # names of pages that its findings can give, with code before and after the next step


_RULES: dict[Callable[[Any], object], Rule] = {}


def declare_rule(
    *severities: Severity, recipes: tuple[str, ...] = (), **thresholds: float | tuple[float, ...]
) -> Callable[[Check], Check]:
    """Declare that a function is a rule, under its own name; it looks for what its docstring says."""

    def declared(check: Check) -> Check:
        _RULES[check] = Rule(check.__name__, " ".join((check.__doc__ or "").split()), severities, thresholds, recipes)
        return check

    return declared


def rule_of(check: Callable[[Any], object]) -> Rule:
    """Return the declaration of a rule's function."""
    return _RULES[check]


def ask_rules(checks: Iterable[Callable[[Subject], Message]], subject: Subject) -> list[Message]:
    """Return the messages of rules on a subject; a rule with a bug counts as not checked."""
    return [_ask_rule(check, subject) for check in checks]


def _ask_rule(check: Callable[[Subject], Message], subject: Subject) -> Message:
    name = rule_of(check).name
    return explained(f"the rule {name}", lambda: check(subject), lambda failure: not_checked(name, failure.because))


def recipe_of(operator: str, cause: Cause) -> str | None:
    """Return the page about an operator that no delegate took; None if there is none."""
    name = operator.removeprefix("native_call_").rpartition("::")[2]
    return _BY_OPERATOR.get(name) if cause in {Cause.NO_RULE, Cause.OPTION} else None
