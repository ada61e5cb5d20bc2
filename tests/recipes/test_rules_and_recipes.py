"""Rules and recipes: a finding either names a page that exists, or its next step is no change of the model's code."""

from __future__ import annotations

import pytest

from opscope.analysis.findings import rule as pages
from opscope.analysis.findings.rule import recipe_of
from opscope.program.partition.verdicts import Cause, advice
from opscope.workflows.rules import AREAS
from recipe_pages import recipes

NAMED = {value for name, value in vars(pages).items() if name.isupper() and isinstance(value, str)}
MEASURING = "measure, run or read it otherwise; opscope's options and commands do that"
BUILDING = "build or load the program otherwise: an option of the exporter, the runner or the application"
MODEL = "the model must be changed or trained again, in a way for which there is no ready code"
OTHERWISE = {
    **dict.fromkeys(("nothing_delegated", "compiled_regions", "runner_build", "slow_first_inference"), BUILDING),
    **dict.fromkeys(
        ("weaker_kernel", "other_purpose", "slow_loading", "not_loadable", "not_eligible", "sme_number_types"), BUILDING
    ),
    **dict.fromkeys(("layout_churn", "unfused_operators", "costly_activations", "headroom", "layout_changes"), MODEL),
    **dict.fromkeys(
        ("framework_time", "tracer_cost", "uneven_split", "unresolved_operators", "device_wait"), MEASURING
    ),
    **dict.fromkeys(("outputs_agree", "acceleration_unused", "acceleration_effect", "thread_count"), MEASURING),
    **dict.fromkeys(("unhelped_operators", "slowed_operators", "below_expectation"), MEASURING),
    **dict.fromkeys(
        ("single_row", "single_row_products", "unread", "other_backend", "dynamic", "branches", "unknown_work"),
        MEASURING,
    ),
}
"""Rules on models without a recipe, and what their next step is instead."""
ON_MODELS = list(AREAS.values())[:4]


def test_every_rule_on_models_has_a_recipe_or_a_reason() -> None:
    """A new rule needs one of them; one that got a recipe loses its reason."""
    rules = [rule for area in ON_MODELS for rule in area]
    with_recipe = {rule.name for rule in rules if rule.recipes}
    assert {rule.name for rule in rules} - with_recipe == OTHERWISE.keys() - with_recipe
    assert with_recipe & OTHERWISE.keys() == set()


def test_every_recipe_that_a_rule_names_is_a_page() -> None:
    """And every page is named by a rule."""
    told = {page for area in AREAS.values() for rule in area for page in rule.recipes}
    assert told == NAMED
    assert told == {recipe.name for recipe in recipes()}


@pytest.mark.parametrize(
    ("operator", "page"),
    [
        ("aten::native_layer_norm.out", pages.LAYER_NORM),
        ("native_call_aten::mean.out", pages.SPATIAL_MEAN),
        ("aten::split_with_sizes_copy.out", pages.SPLIT_AND_CAT),
        ("aten::elu.out", pages.ACTIVATIONS),
        ("aten::index.Tensor_out", pages.PADDING_AND_NORMS),
        ("aten::erf.out", None),
    ],
)
def test_portable_operators_lead_to_their_page(operator: str, page: str | None) -> None:
    """By name, where a rule is missing; not where the number type is the reason."""
    assert recipe_of(operator, Cause.NO_RULE) == page
    assert recipe_of(operator, Cause.NUMBER_TYPE) is None


def test_the_name_of_a_traced_kernel_leads_there_too() -> None:
    """A trace has no namespace."""
    assert recipe_of("native_call_native_layer_norm.out", Cause.NO_RULE) == pages.LAYER_NORM
    assert "opscope.patterns.ELU" in advice("native_call_elu.out", Cause.NO_RULE, None)
