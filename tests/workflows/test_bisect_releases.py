"""Releases as pip has them: real wheels in environments of their own, kept, measured and counted."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opscope
from onnx_models import body, model, node
from opscope.api import Settings
from opscope.core.errors import MissingDependencyError, NotFoundError, UsageError
from opscope.core.system.cache import cache_directory, is_whole
from opscope.core.system.pythons import HERE
from opscope.workflows.bisect.releases import (
    GIB,
    Release,
    installed_pythons,
    list_releases,
    obtain_environment,
    select_releases,
    select_releases_between,
)
from texts import NO_SUCH_PROGRAM

PACKAGE = "onnxruntime"
ENDS = {"good": "1.20.0", "bad": "1.21.0"}
LISTED = [Release(f"1.{number}.0", (HERE,)) for number in range(9, 21)]


def test_ends_are_found_in_the_order_of_versions() -> None:
    """Order versions, not texts, and backwards where the bad one is the older one; refuse what is no release."""
    names = [one.version for one in select_releases_between(PACKAGE, LISTED, "1.9", "1.12.0")]
    assert names == ["1.9.0", "1.10.0", "1.11.0", "1.12.0"]
    assert [one.version for one in select_releases_between(PACKAGE, LISTED, "1.11.0", "1.9.0")] == [
        "1.11.0",
        "1.10.0",
        "1.9.0",
    ]
    assert [one.version for one in select_releases(PACKAGE, LISTED, ["1.20.0", "1.9.0"])] == ["1.20.0", "1.9.0"]
    for good, bad, error, said in (
        ("fast", "1.12.0", UsageError, "'fast' is not a version"),
        ("1.9.0", "1.99.0", NotFoundError, r"no Python here can install onnxruntime 1\.99\.0"),
        ("1.9.0", "1.9", UsageError, "are the same"),
    ):
        with pytest.raises(error, match=said) as refused:
            select_releases_between(PACKAGE, LISTED, good, bad)
        assert bad != "1.99.0" or "from 1.9.0 to 1.20.0" in str(refused.value.hint)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({}, "name both ends"),
        ({"good": "1.20.0", "versions": ["1.20.0"]}, "exclude each other"),
        ({"good": "runner:old"}, "needs both builds"),
        ({**ENDS, "settings": Settings(runtime="litert")}, "LiteRT does not run"),
        ({**ENDS, "settings": Settings(runtime="torch")}, "no runtime 'torch'"),
        ({**ENDS, "settings": Settings(threads=(1, 2))}, "one thread count"),
        ({**ENDS, "disk": "much"}, "not a usable size"),
    ],
)
def test_ways_to_ask_exclude_each_other(words: dict[str, Any], said: str, tmp_path: Path) -> None:
    """Refuse them before anything is listed or installed."""
    file = tmp_path / "net.onnx"
    file.write_bytes(product())
    with pytest.raises(UsageError, match=said):
        opscope.bisect(file, out=tmp_path / "out", **words)
    with pytest.raises(NotFoundError, match=NO_SUCH_PROGRAM):
        opscope.bisect(tmp_path / "none.onnx", **ENDS)
    assert not (tmp_path / "out").exists()


def product() -> bytes:
    """A product of whole numbers, between two operators that copy."""
    nodes = [
        node("Concat", "x", "copied", "before", axis=0),
        node("MatMul", "copied w", "found", "product"),
        node("Concat", "found found", "y", "after", axis=0),
    ]
    weights = {"w": np.arange(64 * 32, dtype=np.int64).reshape(64, 32)}
    return model(body(nodes, {"x": ("int64", [48, 64])}, {"y": ("int64", [96, 32])}, weights))


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's own index, which other tests do without."""
    monkeypatch.delenv("PIP_NO_INDEX", raising=False)


@pytest.mark.nightly
@pytest.mark.usefixtures("index")
def test_an_index_that_is_not_reached_says_so() -> None:
    """Of a package that there is not."""
    with pytest.raises(MissingDependencyError, match="pip finds no release of opscope-no-such-package"):
        list_releases("opscope-no-such-package", [HERE])


@pytest.mark.nightly
@pytest.mark.usefixtures("index")
def test_environments_are_made_once_and_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the hash of their wheel; a run leaves nothing there; those not used for longest go."""
    monkeypatch.setenv("OPSCOPE_CACHE", str(tmp_path / "cache"))
    every = list_releases(PACKAGE, installed_pythons())
    first, second = select_releases(PACKAGE, every, ["1.20.1", "1.21.0"])
    made = obtain_environment(PACKAGE, first, PACKAGE, 10 * GIB)
    assert made.wheel.startswith("onnxruntime-1.20.1-")
    assert made.sha256[:12] in made.home.name
    assert made.python.version(PACKAGE) == "1.20.1"
    file = tmp_path / "net.onnx"
    file.write_bytes(product())
    settings = Settings(target=f"local:{made.home}", rounds=1, runs=3, warmup=1, ablate=("none",), ceilings=False)
    done = opscope.profile(file, settings=settings, out=tmp_path / "out")
    assert done.content.manifest.environment.versions[PACKAGE] == "1.20.1"
    assert done.content.manifest.target.address == made.python.executable
    assert is_whole(made.home)
    assert obtain_environment(PACKAGE, first, PACKAGE, 10 * GIB) == made
    other = obtain_environment(PACKAGE, second, PACKAGE, 1)
    assert made.home.exists()  # it may be in use
    os.utime(made.home, (1.0, 1.0))
    assert obtain_environment(PACKAGE, second, PACKAGE, 1) == other
    assert other.home.exists()
    assert not made.home.exists()
    assert len(list((cache_directory() / "environments").iterdir())) == 2


@pytest.mark.nightly
@pytest.mark.usefixtures("index")
def test_a_release_that_does_more_work_is_found(tmp_path: Path) -> None:
    """Products of whole numbers execute twice as much from 1.21.0 on (issue 27153 of ONNX Runtime)."""
    file = tmp_path / "net.onnx"
    file.write_bytes(product())
    found = opscope.bisect(
        file, versions=["1.20.1", "1.21.0"], settings=Settings(rounds=6, runs=20), out=tmp_path / "out"
    )
    before, after = found.states
    assert (before.instructions or 0) * 1.5 < (after.instructions or 0)
    assert after.outputs_agree
    assert (before.operators, after.operators) == (3, 3)
    assert all(one.wheel and one.sha256 and one.python for one in found.states)
    assert (tmp_path / "out" / "report.html").exists()
