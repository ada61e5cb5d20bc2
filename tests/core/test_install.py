"""The command that adds extras: from where opscope was installed, as pip records it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from opscope.core.install import install_command

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
ASKED = "from opscope.core.install import install_command; print(install_command('litert', 'store'))"


@pytest.fixture(autouse=True)
def _anew() -> Iterator[None]:
    install_command.cache_clear()
    yield
    install_command.cache_clear()


def installed_as(place: Path, recorded: object, prefix: Path | None = None) -> str:
    """The command in an environment whose record of the installation is this one; None for no record.

    It is asked for by `opscope profile 'a b.pte'`.
    """
    info = place / "opscope-0.2.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: opscope\nVersion: 0.2.0\n")
    if recorded is not None:
        (info / "direct_url.json").write_text(recorded if isinstance(recorded, str) else json.dumps(recorded))
    path = (
        f"import sys; sys.path[:0] = [{str(place)!r}, {str(ROOT / 'src')!r}]; sys.argv[1:] = ['profile', 'a b.pte']; "
    )
    path += f"sys.prefix = {str(prefix)!r}; " if prefix else ""
    done = subprocess.run([sys.executable, "-c", path + ASKED], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("recorded", "command"),
    [
        (
            {"url": "file:///a%20b/opscope", "dir_info": {"editable": True}},
            "pip install -e '/a b/opscope[litert,store]'",
        ),
        ({"url": "file:///x/opscope", "dir_info": {}}, "pip install '/x/opscope[litert,store]'"),
        ({"url": "file:///x/o-1.whl", "archive_info": {}}, "pip install '/x/o-1.whl[litert,store]'"),
        (
            {"url": "https://h/o.git", "vcs_info": {"vcs": "git", "commit_id": "1"}},
            "pip install 'opscope[litert,store] @ git+https://h/o.git'",
        ),
        (None, "pip install 'opscope[litert,store]'"),
        ("not json", "pip install 'opscope[litert,store]'"),
        ([1], "pip install 'opscope[litert,store]'"),
        ({"url": 5}, "pip install 'opscope[litert,store]'"),
    ],
)
def test_extras_come_from_where_the_installation_did(tmp_path: Path, recorded: object, command: str) -> None:
    """Checkout, directory, wheel, repository; an index where nothing else is recorded."""
    assert installed_as(tmp_path / "site", recorded) == command


@pytest.mark.parametrize(
    ("environment", "files", "command"),
    [
        (
            "archive-v0/f2a",
            {"pyvenv.cfg": "uv = 0.13.9"},
            "uvx --from '/x/o-1.whl[litert,store]' opscope profile 'a b.pte'",
        ),
        (
            "pipx/748e",
            {"pipx_metadata.json": "{}"},
            "pipx run --spec '/x/o-1.whl[litert,store]' opscope profile 'a b.pte'",
        ),
        ("venvs/opscope", {"pipx_metadata.json": "{}"}, "pipx install --force '/x/o-1.whl[litert,store]'"),
        ("tools/opscope", {"uv-receipt.toml": ""}, "uv tool install '/x/o-1.whl[litert,store]'"),
        (".venv", {"pyvenv.cfg": "home = /usr/bin\nuv = 0.13.9\n"}, "uv pip install '/x/o-1.whl[litert,store]'"),
        (".venv", {"pyvenv.cfg": "home = /usr/bin\n"}, "pip install '/x/o-1.whl[litert,store]'"),
        (
            ".venv",
            {"pyvenv.cfg": "home = /usr/bin\nuv = 0.13.9\n", "lib/python3.11/site-packages/pip/__init__.py": ""},
            "pip install '/x/o-1.whl[litert,store]'",
        ),
    ],
)
def test_extras_go_into_the_environment_that_runs(
    tmp_path: Path, environment: str, files: dict[str, str], command: str
) -> None:
    """As uv and pipx lay out theirs, which have no pip; what they made for one run is run again with the extras."""
    prefix = tmp_path / environment
    for name, content in files.items():
        (prefix / name).parent.mkdir(parents=True, exist_ok=True)
        (prefix / name).write_text(content)
    assert installed_as(tmp_path / "site", {"url": "file:///x/o-1.whl", "archive_info": {}}, prefix) == command


ASKING = re.compile(
    r"\b(?:pip3? +(?:install|download)|pipx +(?:install|run)|uvx|uv +(?:pip +install|tool +(?:install|run)|add))"
    r" (?P<words>[^\n;|&#`]*)"
)
"""Commands that install, and what they are given."""


def from_an_index(text: str) -> list[str]:
    """The commands of a text that ask an index for opscope, by its name alone."""
    return [
        found.group()
        for found in ASKING.finditer(text)
        if not re.search(r"--(?:from|spec)\b", found["words"])
        and re.search(r"(?<!\S)['\"]?opscope(?=['\"\s\[=<>~!]|$)", found["words"])
    ]


def test_nothing_names_an_index_that_does_not_have_opscope() -> None:
    """Until it is published: the address of the project in the metadata is a placeholder as long as it is not.

    Pages, skills, hints and what runs in CI; only for what was installed by that name is it given again.
    """
    address = distribution("opscope").metadata.get_all("Project-URL")
    if not any(".invalid" in one for one in address):
        pytest.skip("opscope has a public address")
    files = [*ROOT.glob("*.md"), *ROOT.glob("*.yml"), ROOT / "Makefile", ROOT / "Containerfile"]
    for folder, pattern in (("docs", "*.md"), ("src", "*.md"), ("src", "*.py"), ("src", "*.j2"), (".github", "*.yml")):
        files += (ROOT / folder).rglob(pattern)
    asked = {str(path.relative_to(ROOT)): from_an_index(path.read_text(encoding="utf-8")) for path in files}
    assert {name: found for name, found in asked.items() if found} == {}


@pytest.mark.parametrize(
    "words",
    [
        "pip install opscope",
        "pip install -U 'opscope[store]'",
        "python3 -m pip install --index-url https://index.example opscope",
        "uvx opscope doctor",
        "uvx --python 3.12 opscope doctor",
        "uv tool install opscope==0.2",
        "uv pip install opscope",
        "pipx run opscope doctor",
        "pipx install opscope",
    ],
)
def test_a_name_alone_is_found(words: str) -> None:
    """With and without options, extras and a version."""
    assert from_an_index(words)


@pytest.mark.parametrize(
    "words",
    [
        "uvx --from . opscope doctor",
        "uvx --from './opscope[runtime]' opscope profile model.pte",
        "pipx run --spec dist/opscope-0.2.0-py3-none-any.whl opscope doctor",
        "pipx install ./opscope",
        "pip install -e '.[executorch]'",
        "pip install dist/opscope-0.2.0-py3-none-any.whl",
        "uv tool install .",
    ],
)
def test_a_checkout_or_a_wheel_is_not_found(words: str) -> None:
    """What names a place asks that place."""
    assert from_an_index(words) == []
