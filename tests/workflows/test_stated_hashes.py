"""Files that are not those whose hashes the manifest states are refused, by name, wherever figures rest on them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest

import opscope
from bundle_damage import edit, flip, swap
from opscope.core.errors import InvalidBundleError
from texts import NOT_THE_MEASURED_FILE

SEED = Path(__file__).parents[1] / "data" / "bundles" / "with-ceilings"
ACCELERATED, BASELINE = "variants/accelerated", "variants/baseline"
Run: TypeAlias = Callable[..., tuple[int, str]]
TRACE = f"{ACCELERATED}/round-00/trace.etdump"
MODEL = "model/toy_cnn_xnnpack_fp32"

READING: dict[str, Callable[[Path], object]] = {
    "analyze": opscope.analyze,
    "read": opscope.read,
    "compare": lambda bundle: opscope.compare(f"{bundle}#baseline", f"{bundle}#accelerated"),
    "compare with another": lambda bundle: opscope.compare(SEED, bundle),
    "check": lambda bundle: opscope.check(bundle, SEED),
    "check against": lambda bundle: opscope.check(SEED, bundle),
    "report": lambda bundle: opscope.report(bundle, out=bundle / "elsewhere"),
}
COMMANDS = {
    "analyze": "analyze {bundle}",
    "compare": "compare {bundle}#baseline {bundle}#accelerated",
    "check": "check {bundle} --against {good} --force",
    "report": "report {bundle}",
}


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A bundle of a real program."""
    return Path(shutil.copytree(SEED, tmp_path / "out"))


@pytest.mark.parametrize("does", READING)
def test_exchanged_traces_are_refused(does: str, bundle: Path) -> None:
    """Refuse what would turn every table round."""
    swap(TRACE, f"{BASELINE}/round-00/trace.etdump")(bundle)
    with pytest.raises(InvalidBundleError, match=f"{NOT_THE_MEASURED_FILE}: its SHA-256 is ") as told:
        READING[does](bundle)
    assert str(told.value.where).endswith("round-00/trace.etdump")
    assert f"opscope validate {bundle}" in str(told.value.hint)
    assert not (bundle / "elsewhere").exists()


def without_hashes(bundle: Path) -> None:
    """Leave out the hashes of the times: a check that a missing hash ends could be switched off."""
    edit("manifest.json", lambda document: [one.pop("record_sha256") for one in document["repetitions"]])(bundle)


@pytest.mark.parametrize(
    ("damage", "good", "told"),
    [
        (
            swap(TRACE, f"{BASELINE}/round-00/trace.etdump"),
            SEED,
            f"round-00/trace.etdump: {NOT_THE_MEASURED_FILE}",
        ),
        (without_hashes, SEED.parent / "flat-rooms", "has no record_sha256"),
    ],
    ids=["exchanged traces", "no hashes"],
)
@pytest.mark.parametrize("command", COMMANDS)
def test_the_command_says_so_by_its_exit_code(
    command: str, damage: Callable[[Path], object], good: Path, told: str, bundle: Path, run: Run
) -> None:
    """Name the file, with the code of `opscope validate`."""
    damage(bundle)
    code, said = run(*COMMANDS[command].format(bundle=bundle, good=good).split())
    assert (code, told in said) == (15, True), said


@pytest.mark.parametrize("file", [f"{MODEL}.pte", f"{MODEL}.etrecord"])
def test_another_program_or_record_is_refused(file: str, bundle: Path) -> None:
    """Operators would get the names, shapes and costs of another model."""
    flip(file, -1)(bundle)
    with pytest.raises(InvalidBundleError, match=NOT_THE_MEASURED_FILE) as told:
        opscope.analyze(bundle)
    assert told.value.where == str(bundle / file)


def test_other_outputs_are_refused(bundle: Path) -> None:
    """Tell nothing of values that nobody computed."""
    file = bundle / BASELINE / "round-00/outputs.npz"
    np.savez(file, *(array + 1 for array in np.load(file).values()))
    with pytest.raises(InvalidBundleError, match=NOT_THE_MEASURED_FILE) as told:
        opscope.compare(f"{bundle}#baseline", f"{bundle}#accelerated")
    assert told.value.where == str(file)


def test_what_an_earlier_manifest_has_no_hash_for_is_used(bundle: Path) -> None:
    """Use a record whose hash is not stated, as it came later than bundles did.

    A program that is not there, left out to save space, is a warning: operators are known by name.
    """
    edit("manifest.json", lambda document: document["model"].pop("etrecord_sha256"))(bundle)
    assert opscope.analyze(bundle).program is not None
    check = opscope.validate(bundle).check("hashes")
    assert check.status.value == "passed"
    assert check.message.endswith("; the manifest has no hash for model/toy_cnn_xnnpack_fp32.etrecord")
    (bundle / f"{MODEL}.pte").unlink()
    assert "program_unusable" in {warning.code for warning in opscope.analyze(bundle).trace.warnings}
