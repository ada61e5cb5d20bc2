"""Files that are not those whose hashes the manifest states are refused, by name, wherever figures rest on them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import opscope
from bundle_damage import flip, swap
from command_line import opscope as command_line
from opscope.core.errors import InvalidBundleError
from texts import NOT_THE_MEASURED_FILE

SEED = Path(__file__).parents[1] / "data" / "bundles" / "with-ceilings"
ACCELERATED, BASELINE = "variants/accelerated", "variants/baseline"
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
    """They would turn every table round."""
    swap(TRACE, f"{BASELINE}/round-00/trace.etdump")(bundle)
    with pytest.raises(InvalidBundleError, match=f"{NOT_THE_MEASURED_FILE}: its SHA-256 is ") as told:
        READING[does](bundle)
    assert str(told.value.where).endswith("round-00/trace.etdump")
    assert f"opscope validate {bundle}" in str(told.value.hint)
    assert not (bundle / "elsewhere").exists()


@pytest.mark.parametrize("command", COMMANDS)
def test_the_command_says_so_by_its_exit_code(command: str, bundle: Path) -> None:
    """15, as `opscope validate` says it; the file is named."""
    swap(TRACE, f"{BASELINE}/round-00/trace.etdump")(bundle)
    done = command_line(*COMMANDS[command].format(bundle=bundle, good=SEED).split())
    assert done.returncode == 15
    assert f"round-00/trace.etdump: {NOT_THE_MEASURED_FILE}" in done.stderr


@pytest.mark.parametrize("file", [f"{MODEL}.pte", f"{MODEL}.etrecord"])
def test_another_program_or_record_is_refused(file: str, bundle: Path) -> None:
    """Operators would get the names, shapes and costs of another model."""
    flip(file, -1)(bundle)
    with pytest.raises(InvalidBundleError, match=NOT_THE_MEASURED_FILE) as told:
        opscope.analyze(bundle)
    assert told.value.where == str(bundle / file)


def test_a_program_that_is_not_there_is_a_warning(bundle: Path) -> None:
    """As one may leave it out to save space: operators are known by name."""
    (bundle / f"{MODEL}.pte").unlink()
    found = opscope.analyze(bundle)
    assert "program_unusable" in {warning.code for warning in found.trace.warnings}


def test_other_outputs_are_refused(bundle: Path) -> None:
    """Whether the variants agree would be told of values that nobody computed."""
    import numpy as np

    file = bundle / BASELINE / "round-00/outputs.npz"
    np.savez(file, *(array + 1 for array in np.load(file).values()))
    with pytest.raises(InvalidBundleError, match=NOT_THE_MEASURED_FILE) as told:
        opscope.compare(f"{bundle}#baseline", f"{bundle}#accelerated")
    assert told.value.where == str(file)


def test_what_an_earlier_manifest_has_no_hash_for_is_used(bundle: Path) -> None:
    """The hash of the record came later than bundles did."""
    manifest = json.loads((bundle / "manifest.json").read_text())
    del manifest["model"]["etrecord_sha256"]
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    assert opscope.analyze(bundle).program is not None
    check = opscope.validate(bundle).check("program")
    assert check is not None
    assert check.status.value == "passed"
    assert check.message.endswith("; the manifest has no hash for model/toy_cnn_xnnpack_fp32.etrecord")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_bundle_without_hashes_of_its_times_is_a_note(command: str, bundle: Path) -> None:
    """It is used as it is; what cannot be told is said beside the result."""
    done = command_line(*COMMANDS[command].format(bundle=bundle, good=SEED.parent / "flat-rooms").split())
    assert done.returncode in {0, 1, 14}
    assert f"note:  {bundle}: written before opscope hashed untraced times" in done.stderr
