"""One list of targets: what the command line, a configuration, their help and the published schema say is the same."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from fakes import FakeClock, FakeTarget
from opscope.cli.main import app
from opscope.core.errors import NotFoundError, OpscopeError, UsageError
from opscope.experiment.config import Config
from opscope.experiment.target_names import parse_target
from opscope.hosts.target_kinds import KINDS, forms
from opscope.workflows.measure.experiments import Means
from opscope.workflows.measure.running import read_experiments, run
from opscope.workflows.measure.targets import target_running
from programs import write_tiny_program

WRITTEN = ("auto", "native[:PYTHON]", "local[:PYTHON]", "runner:PATH", "ssh:HOST", "adb[:SERIAL]", "qemu-aarch64")
GOOD = (
    "auto",
    "native",
    "local",
    "local:/opt/other/bin/python",
    "ssh:pi@board:2222",
    "adb",
    "adb:R5CT30ABCDE?power=boost",
    "qemu-aarch64",
)
BAD = (
    "lokal",
    "auto:x",
    "qemu-aarch64:x",
    "ssh",
    "ssh:-oProxy",
    "adb:x?power=full",
    "moon:x",
    "runner:",
    "",
)


def configured(target: str, directory: Path) -> str:
    """The target of a configuration's only experiment."""
    file = directory / "some.toml"
    file.write_text(f'model = "toy_cnn"\ntarget = "{target}"')
    (experiment,) = read_experiments(file).experiments
    return experiment.target


def test_kinds_are_written_as_the_help_shows_them() -> None:
    """What must stand behind the colon, and what may."""
    assert tuple(kind.form for kind in KINDS) == WRITTEN
    assert forms(KINDS) == "auto, native[:PYTHON], local[:PYTHON], runner:PATH, ssh:HOST, adb[:SERIAL] or qemu-aarch64"


@pytest.mark.parametrize("name", GOOD)
def test_a_configuration_takes_what_profile_takes(name: str, tmp_path: Path) -> None:
    """Auto is a target of a file as of the command line."""
    parsed = parse_target(name)
    assert (parsed.text, configured(name, tmp_path)) == (name, name)


@pytest.mark.parametrize("name", [name for name in BAD if name])
def test_a_configuration_refuses_what_profile_refuses(name: str, tmp_path: Path) -> None:
    """With the same words, and its own place."""
    with pytest.raises(UsageError) as typed:
        target_running("model.pte", name)
    with pytest.raises(UsageError) as written:
        configured(name, tmp_path)
    assert (typed.value.problem, typed.value.hint) == (written.value.problem, written.value.hint)
    assert written.value.where == f"{tmp_path / 'some.toml'}: target"


def test_only_a_file_may_leave_the_runner_to_its_variants(tmp_path: Path) -> None:
    """The target ``runner`` alone, where each variant names its build."""
    with pytest.raises(UsageError, match="needs a runner"):
        parse_target("runner")
    file = tmp_path / "some.toml"
    file.write_text('model = "toy_cnn"\ntarget = "runner"\nvariants = [{name = "a", runner = "x"}]')
    assert read_experiments(file).experiments[0].target == "runner"


def test_the_help_of_every_command_names_the_targets_that_it_takes() -> None:
    """From the one list."""
    chosen = {
        "profile": KINDS,
        "run": [kind for kind in KINDS if kind.android],
        "doctor": [kind for kind in KINDS if kind.remote or kind.emulated],
    }
    for command, kinds in chosen.items():
        done = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb"})
        assert re.sub(r"\s", "", forms(kinds)) in re.sub(r"\s", "", done.output), command


def test_init_names_the_kinds_that_have_a_template() -> None:
    """Without what follows their names, which the file says."""
    done = CliRunner().invoke(app, ["init", "--help"], env={"COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb"})
    assert "native, local or runner" in re.sub(r"\s+", " ", done.output)


def test_the_published_schema_names_every_target() -> None:
    """Where a configuration says it."""
    schema = msgspec.json.schema(Config)
    told = schema["$defs"]["Config"]["properties"]["target"]
    assert all(kind.form in str(told) for kind in KINDS)


def test_an_experiment_on_auto_is_finished_where_it_began(tmp_path: Path) -> None:
    """Another target, which auto may mean by now, would put figures of two runtimes beside each other."""
    file = tmp_path / "some.toml"
    program = write_tiny_program(tmp_path)
    file.write_text(
        f'model = "{program.name}"\ntarget = "auto"\nrounds = 1\nruns = 2\nwarmup = 0\nceilings = false\nout = "out"'
    )
    means = Means(lambda *_: None, target=FakeTarget(), clock=FakeClock())
    (done,) = run(file, means=means).experiments
    assert (done.name, done.error) == (f"{program.stem}-auto", None)
    with pytest.raises(OpscopeError, match=r"no target .fake"):
        run(file, resume=True)


def test_a_runner_that_is_missing_is_not_found(tmp_path: Path) -> None:
    """Its name is one of a target all the same."""
    with pytest.raises(NotFoundError):
        target_running("model.pte", f"runner:{tmp_path / 'none'}")
