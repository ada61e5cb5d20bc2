"""The recipes of docs/recipes: the two models of a page, their programs, and what is counted in these."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

from documents import ROOT, blocks
from opscope.runtimes.executorch.export.checked import export_live
from opscope.workflows.analyze.preflight import preflight

RECIPES = ROOT / "docs" / "recipes"
DTYPES = {"dynamic-int8": ("fp32", "dynamic-int8")}
"""Number types before and after, of pages on which it is not fp32 both times."""
SIDES = ("before", "after")
_MEASURED = re.compile(r"(?<=<!-- measured -->\n).*?(?=<!-- end of measured -->)", re.DOTALL)


class Counts(NamedTuple):
    """What a program holds."""

    calls: int
    delegated: int
    portable: int
    transposes: int
    macs: int
    bytes: int


ROWS = {
    "calls": "delegate calls",
    "delegated": "delegated operators",
    "portable": "portable operators",
    "transposes": "layout transposes added by the partitioner",
    "macs": "multiply-accumulates",
    "bytes": "bytes moved, at least",
}


class Recipe(NamedTuple):
    """A page with two models."""

    page: Path

    @property
    def name(self) -> str:
        """Of the page."""
        return self.page.stem

    def built(self, side: str) -> tuple[Any, tuple[Any, ...]]:
        """The model of ``before.py`` or ``after.py`` and its example inputs, as ``build`` of that block gives them."""
        text = next(block.text for block in blocks(self.page) if block.told("file") == f"{side}.py")
        names: dict[str, Any] = {"__name__": f"recipe_{side}"}
        exec(compile(text, f"{self.page}:{side}", "exec"), names)  # noqa: S102 - our own page
        return names["build"]()

    def exported(self, side: str, directory: Path) -> Path:
        """The program of a side."""
        place = directory / side
        place.mkdir()
        dtype = DTYPES.get(self.name, ("fp32", "fp32"))[SIDES.index(side)]
        return export_live(*self.built(side), dtype, place)

    def outputs(self, directory: Path) -> tuple[Any, Any]:
        """What the programs of both sides compute on their example inputs, before and after."""
        from executorch.extension.pybindings import _C as runtime  # noqa: N811 - a module, not a constant

        found = []
        for side in SIDES:
            module = runtime._load_for_executorch(str(next((directory / side).glob("*.pte"))))
            found.append(module.run_method("forward", list(self.built(side)[1]))[0])
        return found[0], found[1]

    def shown(self) -> dict[str, tuple[int, int]]:
        """The counts that the page shows, by row: before and after."""
        rows = re.findall(r"^\| ([^|]+?) \| ([\d,]+) \| ([\d,]+) \|$", self.page.read_text(), re.MULTILINE)
        return {name: (int(first.replace(",", "")), int(second.replace(",", ""))) for name, first, second in rows}

    def write(self, text: str) -> None:
        """Put what was measured between its marks."""
        page = self.page.read_text(encoding="utf-8")
        assert _MEASURED.search(page), self.page
        self.page.write_text(_MEASURED.sub(lambda _: f"\n{text}\n\n", page), encoding="utf-8")


def recipes() -> list[Recipe]:
    """Every page that has the two models."""
    return [Recipe(page) for page in sorted(RECIPES.glob("*.md")) if page.stem != "index"]


def counts_of(program: Path) -> Counts:
    """What a program of one method holds, by opscope's preflight."""
    method = preflight(program).methods[0]
    moved = sum(side.bytes for row in method.work for side in (row.delegated, row.portable))
    partition = method.partition
    return Counts(
        partition.calls,
        partition.delegated_operators,
        partition.portable_operators,
        method.layout.transposes,
        method.matrix.macs,
        moved,
    )


def difference(before: Any, after: Any) -> float:
    """The largest difference of two outputs, as a part of the largest value of the first."""
    return float((after - before).abs().max() / before.abs().max())


def table_of(before: Counts, after: Counts) -> str:
    """The counts as a page shows them."""
    lines = ["| | before | after |", "| --- | ---: | ---: |"]
    lines += [f"| {ROWS[key]} | {getattr(before, key):,} | {getattr(after, key):,} |" for key in ROWS]
    return "\n".join(lines)
