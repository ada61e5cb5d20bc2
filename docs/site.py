"""Hooks of the site: pages that stand outside of docs/, the order of the menu, and links that GitHub resolves itself.

MkDocs calls ``on_files`` and ``on_page_markdown``. The pages themselves stay as they are, so that they can be read on
GitHub as well.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from mkdocs.structure.files import File

sys.path.insert(0, str(Path(__file__).resolve().parent))  # MkDocs runs this file by its path
from how_to_groups import grouped_pages

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
SKILLS = Path("src/opscope/skills")
HOW_TO = ROOT / "docs" / "how-to"
FIRST = {
    "recipes": "index layer-norm attention-masks".split(),
    "concepts": "nested-events bottleneck-shift evidence-ladder verdicts roofline".split(),
    "skills": [f"opscope-{name}" for name in "setup-workspace validate-workflow export-model run-profiling".split()],
    "reference": "commands python-api targets columns rules errors".split(),
}
"""Pages that stand first in their section; all others follow by name."""
_SECTIONS = (
    ("How to", "how-to"),
    ("Recipes", "recipes"),
    ("Concepts", "concepts"),
    ("Reference", "reference"),
)
_BELOW = (("Commands", "reference/cli"), ("Python API", "reference/api"), ("Schemas", "reference/schemas"))
"""What stands below the reference, a page each."""
_OUTSIDE = {"README.md": "project/readme.md", "CONTRIBUTING.md": "project/contributing.md"}
_RULES = {"SECURITY.md": "project/security.md", "CODE_OF_CONDUCT.md": "project/code-of-conduct.md"}
_CHANGES = {"CHANGELOG.md": "project/changelog.md", "LICENSE": "project/licence.md"}
_LINK = re.compile(r"(?P<text>\]\()(?P<target>[^)\s#]+)(?P<rest>[^)]*\))")
_FRONT = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)


def outside() -> dict[str, str]:
    """Files of the repository that become pages: path in the repository to path in the site."""
    skills = {
        path.relative_to(ROOT).as_posix(): f"skills/{path.parent.name}.md"
        for path in sorted((ROOT / SKILLS).glob("*/SKILL.md"))
    }
    return _OUTSIDE | _RULES | _CHANGES | skills


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that stand outside of docs/, and set the menu."""
    for source, place in outside().items():
        text = (ROOT / source).read_text(encoding="utf-8")
        body = f"# Licence\n\n```text\n{text}```\n" if source == "LICENSE" else _FRONT.sub("", text)
        files.append(File.generated(config, place, content=body))
    config["nav"] = menu(files)
    return files


def menu(files: Files) -> list[dict[str, object]]:
    """The tutorial, then the sections, each in its order."""
    titles = {file.src_uri: _title(file) for file in files.documentation_pages()}
    sections = [{title: _ordered(titles, directory)} for title, directory in _SECTIONS]
    sections[-1] = {"Reference": [*_ordered(titles, "reference"), *({t: _ordered(titles, d)} for t, d in _BELOW)]}
    sections[0] = {"How to": [{title: _listed(titles, pages)} for title, pages in grouped_pages(HOW_TO).items()]}
    project = [{titles[place]: place} for place in (*_OUTSIDE.values(), *_RULES.values(), *_CHANGES.values())]
    return [
        {"Overview": "index.md"},
        {"Tutorial": "tutorial.md"},
        *sections[:1],
        {"Agent skills": _ordered(titles, "skills")},
        *sections[1:],
        {"Project": project},
    ]


def _listed(titles: dict[str, str], pages: list[Path]) -> list[dict[str, str]]:
    """The pages of a group, each with its title."""
    places = [f"how-to/{page.name}" for page in pages]
    return [{titles[place]: place} for place in places]


def _title(file: File) -> str:
    """The first heading of a page, without code marks; generated pages have a comment before it."""
    heading = re.search(r"^# (.*)$", file.content_string, re.MULTILINE)
    return heading[1].replace("`", "") if heading else file.name


def _ordered(titles: dict[str, str], directory: str) -> list[dict[str, str]]:
    """The pages of a section, each with its title."""
    first = FIRST.get(directory, ())
    own = [page for page in titles if PurePosixPath(page).parent.as_posix() == directory]
    rank = {f"{directory}/{name}.md": number for number, name in enumerate(first)}
    return [{titles[page]: page} for page in sorted(own, key=lambda page: (rank.get(page, len(rank)), page))]


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001 - by name
    """Links to files of the repository lead to the pages that were made of them."""
    return _LINK.sub(lambda match: match["text"] + _moved(match["target"], page) + match["rest"], markdown)


def _moved(target: str, page: Page) -> str:
    if re.match(r"[a-z][a-z0-9+.-]*:", target):
        return target
    made = outside()
    here = PurePosixPath(page.file.src_uri)
    source = next((name for name, place in made.items() if place == here.as_posix()), None)
    origin = PurePosixPath(source) if source else PurePosixPath("docs") / here
    wanted = _joined(origin.parent, target)
    place = made.get(wanted, wanted.removeprefix("docs/") if source else None)
    if place is None:
        return target
    return _relative(place, here.parent)


def _joined(directory: PurePosixPath, target: str) -> str:
    """A path in the repository, without ``..``."""
    parts: list[str] = []
    for part in (directory / target).parts:
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    return "/".join(parts)


def _relative(place: str, directory: PurePosixPath) -> str:
    return "/".join([".."] * len(directory.parts) + [place])
