"""The project's own workflows and files for its host: their steps run here by bash, as far as one machine can.

Actions are folders of this machine, and docker a program that notes what it is asked for.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from opscope.core.version import __version__
from workflow_steps import ROOT, Job, document, run_job

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TEST, RELEASE = (ROOT / ".github" / "workflows" / name for name in ("test.yml", "release.yml"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
DOCKER = '#!/bin/sh\necho "$@" >>"$DOCKER_LOG"\n[ "$1" != save ] || echo image\n[ "$1" != load ] || cat >/dev/null\n'


def steps(path: Path) -> list[dict[str, Any]]:
    """The steps of all jobs of a workflow."""
    return [step for job in document(path)["jobs"].values() for step in job["steps"]]


def job(place: Path, tag: str, tools: Path) -> Job:
    """A job at a tag, in a directory where checkout and Python are there already."""
    kept = place.parent / "artifacts"

    def upload(given: dict[str, str], _: dict[str, str]) -> tuple[int, dict[str, str]]:
        source, target = place / given["path"], kept / given.get("name", "site")
        target.mkdir(parents=True)
        files = [path for path in ([source] if source.is_file() else sorted(source.iterdir())) if path.is_file()]
        for path in files:
            shutil.copy(path, target)
        return int(not files), {}

    def download(given: dict[str, str], _: dict[str, str]) -> tuple[int, dict[str, str]]:
        shutil.copytree(kept / given["name"], place / given["path"], dirs_exist_ok=True)
        return 0, {}

    ready = dict.fromkeys(("actions/checkout", "actions/setup-python", "docker/login-action"), lambda _, __: (0, {}))
    storing = dict.fromkeys(("actions/upload-artifact", "actions/upload-pages-artifact"), upload)
    runner = place.parent / "runner"
    for directory in (place, runner):
        directory.mkdir(parents=True, exist_ok=True)
    path = f"{tools}:{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
    environment = {"PATH": path, "DOCKER_LOG": str(place.parent / "docker.log")}
    variables = {"secrets": {}, "vars": {"IMAGE_REGISTRY": "images.example", "IMAGE_NAME": "team/opscope"}}
    uses = ready | storing | {"actions/download-artifact": download}
    return Job(place, runner, {"ref_name": tag}, environment, uses, variables)


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A directory with docker."""
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "docker").write_text(DOCKER)
    (tmp_path / "tools" / "docker").chmod(0o755)
    return tmp_path / "tools"


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_steps_are_sound(path: Path, tmp_path: Path) -> None:
    """Bash can read them, nothing of an event is pasted into them, actions have versions, permissions are few."""
    assert document(path)["permissions"] == {"contents": "read"}
    for step in steps(path):
        assert ("uses" in step) != ("run" in step), step
        assert re.fullmatch(r"[\w.-]+/[\w.-]+@[\w./-]+", step.get("uses", "an/action@v1"))
        assert "${{" not in step.get("run", "")
        (tmp_path / "step.sh").write_text(step.get("run", ""))
        done = subprocess.run(["bash", "-n", tmp_path / "step.sh"], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


def test_no_name_of_a_registry_is_in_them() -> None:
    """Where things are published is the host's to say."""
    for path in (*WORKFLOWS, ROOT / "Containerfile"):
        assert (
            re.findall(r"(?:https?://|\b(?:pypi\.org|ghcr\.io|docker\.io|quay\.io))\S*", path.read_text("utf-8")) == []
        )


def test_every_promised_python_is_tried() -> None:
    """Those of pyproject.toml."""
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    promised = re.findall(r"Python :: (3\.\d+)\"", project)
    assert document(TEST)["jobs"]["python"]["strategy"]["matrix"]["python"] == promised


def test_the_tests_job_calls_make(tmp_path: Path, tools: Path) -> None:
    """With a target and a variable that the Makefile has; make says what it would do."""
    place = tmp_path / "work"
    place.mkdir()
    shutil.copy(ROOT / "Makefile", place)
    (place / "pyproject.toml").touch()
    found = job(place, "main", tools)
    found.environment["MAKEFLAGS"] = "n"
    found.contexts["vars"] = {"TORCH_INDEX_URL": "https://index.example"}
    assert run_job(found, TEST, "tests").code == 0
    assert "--index-url https://index.example" in "\n".join(found.logs)
    assert '-m "not nightly"' in "\n".join(found.logs)


@pytest.mark.parametrize(("tag", "code"), [(f"v{__version__}", 0), (__version__, 1), ("v9.9.9", 1)])
def test_a_tag_is_the_version(tag: str, code: int) -> None:
    """With the letter v before it."""
    done = subprocess.run([ROOT / ".ci" / "release", tag], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_forms_of_issues_can_be_filled_in(path: Path) -> None:
    """Each part has a type, a label and an identifier of its own."""
    form = document(path)
    if path.stem == "config":
        return
    assert set(form) == {"name", "description", "labels", "body"}
    identifiers = [part["id"] for part in form["body"]]
    assert len(identifiers) == len(set(identifiers))
    assert all(part["type"] == "textarea" and part["attributes"]["label"] for part in form["body"])


def test_hooks_are_tools_of_the_environment() -> None:
    """Nothing is downloaded before a commit, and each hook is a gate of make check."""
    hooks = document(ROOT / ".pre-commit-config.yaml")["repos"]
    assert [one["repo"] for one in hooks] == ["local"]
    gates = re.findall(
        r"^\t\$\(BIN\)/(.*?)(?: \.)?(?: --check \.)?$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE
    )
    for hook in hooks[0]["hooks"]:
        assert hook["language"] == "system"
        assert hook["entry"].removeprefix(".venv/bin/").removesuffix(" --force-exclude") in gates


@pytest.mark.nightly
def test_a_release_is_built_and_published(tmp_path: Path, tools: Path) -> None:
    """Distributions, site and image of a clone of this checkout; what is published is what was built."""
    if not (ROOT / ".git").exists():
        pytest.skip("needs a clone: a release is built from one")
    place = tmp_path / "work"
    subprocess.run(["git", "clone", "--quiet", ROOT, place], check=True)
    environment = place / ".venv"
    environment.mkdir()
    for part in Path(sys.prefix).iterdir():
        if part.suffix != ".stamp":
            (environment / part.name).symlink_to(part)
    for stamp in ("torch.stamp", "dev.stamp"):  # the environment is there: make installs nothing
        (environment / stamp).touch()
    building = job(place, f"v{__version__}", tools)
    assert run_job(building, RELEASE, "build").code == 0, "\n".join(building.logs)
    names = {path.name for path in (tmp_path / "artifacts" / "dist").iterdir()}
    assert names == {f"opscope-{__version__}.tar.gz", f"opscope-{__version__}-py3-none-any.whl"}
    assert (tmp_path / "artifacts" / "site" / "index.html").exists()
    assert "is a placeholder: https://" in "\n".join(building.logs)
    publishing = job(tmp_path / "image", f"v{__version__}", tools)
    assert run_job(publishing, RELEASE, "image").code == 0, "\n".join(publishing.logs)
    asked = (tmp_path / "docker.log").read_text().splitlines()
    assert asked[-1] == f"push images.example/team/opscope:{__version__}"
