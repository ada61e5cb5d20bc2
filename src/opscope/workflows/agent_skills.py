"""Agent skills: instructions that an AI coding assistant, or a person, follows step by step; and recipes.

A skill is a directory with a file ``SKILL.md`` whose front matter gives its name and says when to use it; see
https://agentskills.io/specification.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from opscope.core.errors import BundleError, NotFoundError, OverwriteError, TraceFormatError, did_you_mean
from opscope.core.files import storage_errors
from opscope.core.outputs import write_outputs

if TYPE_CHECKING:
    from collections.abc import Sequence

SKILL_FILE = "SKILL.md"
_FENCE = "---"


class Skill(NamedTuple):
    """A skill of this package.

    Attributes:
        name: of the skill and of its directory.
        description: what it does and when to use it, in one line.
        text: the whole file.
    """

    name: str
    description: str
    text: str


def skills() -> list[Skill]:
    """The skills of this package, in the order of a first project.

    >>> from opscope.api import skills
    >>> skills()[0].name
    'opscope-setup-workspace'
    """
    found = [
        parsed(entry.joinpath(SKILL_FILE).read_text(encoding="utf-8"))
        for entry in files("opscope").joinpath("skills").iterdir()
        if entry.joinpath(SKILL_FILE).is_file()
    ]
    return sorted(found, key=lambda skill: _ORDER.index(skill.name) if skill.name in _ORDER else len(_ORDER))


_ORDER = tuple(
    f"opscope-{name}"
    for name in (
        "setup-workspace native-runners export-model run-profiling analyse-results generate-report validate-workflow "
        "onboard-model analyse-npu-trace profile-language-model tune-settings gate-in-ci"
    ).split()
)


def parsed(text: str) -> Skill:
    """A skill from its file."""
    lines = text.splitlines()
    if lines[:1] != [_FENCE] or _FENCE not in lines[1:]:
        raise TraceFormatError("a skill must begin with front matter between --- lines", where=SKILL_FILE)
    head = lines[1 : lines.index(_FENCE, 1)]
    fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in head)}
    missing = [name for name in ("name", "description") if not fields.get(name)]
    if missing:
        raise TraceFormatError(f"the front matter has no {' and no '.join(missing)}", where=SKILL_FILE)
    return Skill(fields["name"], fields["description"], text)


def read_guide(name: str) -> str:
    """Return the text of a skill, or of a recipe that a finding names.

    Raises:
        NotFoundError: there is neither.
    """
    texts = {skill.name: skill.text for skill in skills()}
    pages = {page.stem: page for page in _recipe_directory().glob("*.md") if page.stem != "index"}
    texts |= {stem: page.read_text(encoding="utf-8") for stem, page in pages.items()}
    if name not in texts:
        raise NotFoundError(f"unknown skill or recipe {name!r}", hint=did_you_mean(name, texts))
    return texts[name]


def _recipe_directory() -> Path:
    """Return the directory of recipes: that of the installed package, or of the checkout."""
    package = Path(__file__).parents[1]
    installed = package / "recipes"
    return installed if installed.is_dir() else package.parents[1] / "docs" / "recipes"


def install_skills(directory: str | Path, names: Sequence[str] = (), *, overwrite: bool = False) -> list[Path]:
    """Write skills into a directory, each as ``NAME/SKILL.md``; a skill that is there as it is stays.

    Args:
        directory: made when it is missing.
        names: which; empty for all.
        overwrite: replace files that differ.

    Returns:
        The files, in the order of the skills.

    Raises:
        NotFoundError: there is no such skill.
        BundleError: a file is there already and differs; nothing is written then.
        OverwriteError: a skill's file or directory is a link, and what it leads to would be replaced.
        StorageError: the directory cannot be written.
    """
    known = {skill.name: skill for skill in skills()}
    for name in names:
        if name not in known:
            raise NotFoundError(f"unknown skill {name!r}", hint=did_you_mean(name, known))
    chosen = [skill for skill in known.values() if not names or skill.name in names]
    places = {Path(directory) / skill.name / SKILL_FILE: skill.text for skill in chosen}
    for place in places:
        for path in (place.parent, place):
            if path.is_symlink():
                problem = "a link, and the skill would replace a file elsewhere"
                raise OverwriteError(problem, where=path, hint="remove the link, or name another directory")
    if not overwrite:
        _check_unchanged(places)
    return write_outputs({place: text.encode() for place, text in places.items()})


def _check_unchanged(places: dict[Path, str]) -> None:
    for place, text in places.items():
        with storage_errors(place):
            differs = place.exists() and place.read_bytes() != text.encode()
        if differs:
            hint = "save your changes elsewhere, or replace it with --overwrite"
            raise BundleError("the skill already exists and differs", where=place, hint=hint)
