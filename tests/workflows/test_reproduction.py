"""The command that a report prints runs the same experiment again: it is run, and the manifests are compared."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from command_line import opscope
from fakes import FakeClock, FakeTarget
from opscope.api import Settings, profile
from opscope.bundle.bundle import Bundle
from opscope.bundle.manifest import Manifest
from opscope.reports.sections.metadata import reproduction
from programs import write_tiny_program
from qemu import use_emulator
from runners import write_runner

SHORT = "--rounds 1 --runs 2 --warmup 1 --no-ceilings"
_OPSCOPE = f'#!/bin/sh\nexec "{sys.executable}" -m opscope "$@"\n'


def printed(bundle: Path) -> str:
    """The command in a bundle's report.md, which is the one in report.html, too."""
    text = (bundle / "report.md").read_text()
    found = re.search(r"^## How to Reproduce\n+(`{3,})sh\n(.*?)\n\1$", text, re.DOTALL | re.MULTILINE)
    assert found, text
    page = re.search(r'<code class="command">(.*?)</code>', (bundle / "report.html").read_text(), re.DOTALL)
    assert page
    assert html.unescape(page[1]) == found[2]
    return found[2]


def run_again(bundle: Path, directory: Path) -> Path:
    """Run what a report prints as it is, in a shell, and find the one bundle that came of it."""
    shim = directory / "bin" / "opscope"
    shim.parent.mkdir(exist_ok=True)
    shim.write_text(_OPSCOPE)
    shim.chmod(0o755)
    before = set(directory.rglob("manifest.json"))
    environment = os.environ | {"PATH": f"{shim.parent}{os.pathsep}{os.environ['PATH']}"}
    command = ["sh", "-c", printed(bundle)]
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{printed(bundle)}\n{done.stderr}"
    (manifest,) = set(directory.rglob("manifest.json")) - before
    return manifest.parent


def experiment(bundle: Path) -> dict[str, Any]:
    """What a manifest says of the experiment; what is new each time, times and where the file lay, left out."""
    manifest: Manifest = Bundle.open(bundle).manifest
    kept = ("model", "plan", "variants", "target", "left_out")
    told = {name: msgspec.to_builtins(getattr(manifest, name)) for name in kept}
    request = msgspec.to_builtins(manifest.request)
    # What `auto` and the strongest feature stand for is printed as what it was.
    said = {name: value for name, value in request.items() if name not in {"target", "ablate", "config", "ladder"}}
    return told | {"request": said}


def check_repeated(directory: Path, *words: str | Path, first: str = "first") -> Path:
    """Run a command, and what its report prints: two bundles of one experiment; return the second."""
    done = opscope(*words, "-q", cwd=directory)
    if "no C++ compiler" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    first_bundle = directory / first
    second = run_again(first_bundle, directory)
    assert experiment(second) == experiment(first_bundle)
    assert len(Bundle.open(second).manifest.planned()) == len(Bundle.open(first_bundle).manifest.planned())
    return second


@pytest.mark.runtime
@pytest.mark.parametrize(
    "options",
    [
        "--target local --threads 2,1 --oversubscribe --seed 7",
        "--target native --ladder",
        "--ablate none --traced-only --timeout 90 --cooldown-seconds 0.01",
        "--input float32[1,3,64,64]=ones --min-seconds 60 --max-rounds 2",
        "--inputs my.npz --until 0.0001 --max-rounds 2",
    ],
)
def test_a_profile_is_repeated_by_its_command(options: str, toy_program: Path, tmp_path: Path) -> None:
    """Target, features, threads, inputs, effort and pacing; the path has a space and what a shell would take."""
    program = tmp_path / "it's $HOME; a (model).pte"
    shutil.copyfile(toy_program, program)
    np.savez(tmp_path / "my.npz", np.ones((1, 3, 64, 64), np.float32))
    check_repeated(tmp_path, "profile", program.name, *SHORT.split(), *options.split(), "--out", "first")


@pytest.mark.runtime
def test_an_emulated_run_is_repeated_where_it_ran(
    toy_program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not on this machine."""
    use_emulator(monkeypatch)
    shutil.copyfile(toy_program, tmp_path / "toy.pte")
    check_repeated(tmp_path, "profile", "toy.pte", *SHORT.split(), "--target", "qemu-aarch64", "--out", "first")
    assert "--target qemu-aarch64" in printed(tmp_path / "first")


@pytest.mark.runtime
def test_an_experiment_of_a_file_is_repeated_by_its_file(toy_program: Path, tmp_path: Path) -> None:
    """Of two models and several variants the ones of the bundle, with their features and CPUs."""
    for name in ("one, two", "other"):
        shutil.copyfile(toy_program, tmp_path / f"{name}.pte")
    (tmp_path / "two models.toml").write_text(
        """
        models = ["one, two.pte", "other.pte"]
        rounds = 1
        runs = 2
        warmup = 1
        ceilings = false
        affinity = [0]
        [[variants]]
        name = "full"
        [[variants]]
        name = "plain"
        ablate = ["avx2"]
        """
    )
    first = "opscope-out/two models/one, two-local"
    check_repeated(tmp_path, "run", "two models.toml", "--only", "one, two-local", first=first)
    text = (tmp_path / first / "report.md").read_text()
    assert "| Config File | two models.toml |" in text
    assert "The bundle keeps the file as it was at measurement time: config.toml" in text


def test_an_experiment_of_the_kits_file_is_repeated_with_its_runners(tmp_path: Path) -> None:
    """Of a file of the Arm kit: the runner, the CPUs and the further arguments of each variant."""
    write_tiny_program(tmp_path)
    known = ("model_path", "num_executions", "cpu_threads", "etdump_path", "method_name", "output_file", "extra")
    for name in ("on", "off"):
        write_runner(tmp_path, known=known, name=name)
    effort = {"runs": 2, "warmup": 1, "threads": [1], "extra_args": ["--extra", "x"]}
    alpha = {"name": "alpha", "runner_path": "off", "cpu_affinity": "0x1", **effort}
    experiments = [alpha, {"name": "beta", "runner_path": "on", **effort}]
    pairs = [{"baseline": {"experiment": "alpha"}, "candidate": {"experiment": "beta"}}]
    kit = {"model": "tiny.pte", "output_root": "out", "rounds": 2, "experiments": experiments}
    (tmp_path / "kit.json").write_text(json.dumps(kit | {"analysis": {"compare_pairs": pairs}}))
    second = check_repeated(tmp_path, "run", "kit.json", first="out/tiny-runner")
    assert [v.affinity for v in Bundle.open(second).manifest.variants] == [[0], []]


def test_a_runner_is_repeated_as_one(tmp_path: Path) -> None:
    """Its path is the target; nothing is said of features, which it does not tell."""
    write_tiny_program(tmp_path)
    write_runner(tmp_path, name="my runner")
    options = ["--rounds", "2", "--runs", "2", "--warmup", "1", "--target", "runner:my runner"]
    check_repeated(tmp_path, "profile", "tiny.pte", *options, "--out", "first")


def test_a_name_with_a_dash_or_backticks_stays_whole(tmp_path: Path) -> None:
    """Put a model that looks like an option last; a fence is longer than the backticks within it.

    Without a record of what was asked for, as of an earlier version, the command is made of plan and variants; that of
    a file is not known.
    """
    source, replace = tmp_path / "````.pte", msgspec.structs.replace
    write_tiny_program(tmp_path).rename(source)
    settings = Settings(rounds=2, runs=2, ceilings=False)
    done = profile(str(source), settings=settings, out=tmp_path / "out", target=FakeTarget(), clock=FakeClock())
    assert f"'{source}'" in printed(tmp_path / "out")
    manifest = done.content.manifest
    told = reproduction(replace(manifest, model=replace(manifest.model, source="-x.pte")))
    assert told[0].endswith(" -- -x.pte")
    earlier = replace(manifest, request=None)
    assert "--ablate avx512" in reproduction(earlier)[0]
    assert reproduction(replace(earlier, variants=[replace(v, name=f"my-{v.name}") for v in earlier.variants])) is None
