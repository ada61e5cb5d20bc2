"""Who is compared with whom where a file of the kit does not say so: names with ``on`` and ``off``, or the user."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from opscope.bundle.manifest import Role
from opscope.core.errors import UsageError
from opscope.kit.config import read_kit_config
from opscope.machine.pair_names import declared_features
from opscope.workflows.measure.running import run


def config(*names: str) -> dict[str, object]:
    """Return a configuration as the kit's template has it: experiments, and nothing to compare."""
    experiments = [{"name": name, "runner_path": "runner", "threads": [1, 2]} for name in names]
    return {"model": "toy.pte", "experiments": experiments, "analysis": {"compare_pairs": []}}


def test_the_unchanged_template_compares_off_with_on_at_each_thread_count() -> None:
    """The note says that the roles are taken from the names, and how to name others."""
    read = read_kit_config(config("mac_sme2_on", "mac_sme2_off"), Path("mac.json"))
    (experiment,) = read.experiments
    assert {variant.group: variant.role for variant in experiment.variants} == {
        "mac_sme2_on": Role.CANDIDATE,
        "mac_sme2_off": Role.BASELINE,
    }
    assert [(pair.baseline[1], pair.candidate[1]) for pair in read.comparisons] == [
        ("mac_sme2_off_t1", "mac_sme2_on_t1"),
        ("mac_sme2_off_t2", "mac_sme2_on_t2"),
    ]
    assert any("--baseline NAME" in note for note in read.notes)


@pytest.mark.parametrize("names", [("mac_on", "linux_off"), ("sme2_on", "sme2_office"), ("alpha", "beta")])
def test_names_that_differ_in_more_propose_nothing(names: tuple[str, str]) -> None:
    """A guess would call a run of another machine the baseline."""
    assert read_kit_config(config(*names), Path("mac.json")).comparisons == ()


@pytest.mark.parametrize(
    ("baseline", "candidate", "features"),
    [
        ("mac_sme2_off_t1", "mac_sme2_on_t1", ("sme2",)),
        ("SME2-off", "SME2-on", ("sme2",)),
        ("quant_off", "quant_on", ()),
        ("sme2_on", "sme2_off", ()),
        ("sme2_off", "other_on", ()),
    ],
)
def test_names_declare_what_was_switched(baseline: str, candidate: str, features: tuple[str, ...]) -> None:
    """A foreign runner tells nothing of its features; the names of the pair may."""
    assert declared_features(baseline, candidate) == features


@pytest.mark.parametrize(
    ("sides", "option"),
    [
        (("mac_sme2_on", None), "--candidate"),
        ((None, "mac_sme2_on"), "--baseline"),
        (("nobody", "mac_sme2_on"), "--baseline"),
        (("mac_sme2_on", "mac_sme2_on"), "--candidate"),
    ],
)
def test_sides_that_cannot_be_compared_are_refused_before_anything_runs(
    sides: tuple[str | None, str | None], option: str, tmp_path: Path
) -> None:
    """Neither the model nor a runner is there."""
    file = tmp_path / "mac.json"
    file.write_text(json.dumps(config("mac_sme2_on", "mac_sme2_off")))
    with pytest.raises(UsageError) as refused:
        run(file, baseline=sides[0], candidate=sides[1])
    assert refused.value.where == option
