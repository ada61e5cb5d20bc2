"""Groups of operators: those that can be read in milliseconds, and a line with which the table adds up."""

from __future__ import annotations

import msgspec
import pytest

from block_texts import cells
from large_content import large_content
from opscope.reports.content.content import ReportContent
from opscope.reports.document.blocks import TableBlock
from opscope.reports.report import markdown_report
from opscope.reports.sections.kernel_view import groups_blocks, kernel_rows


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> ReportContent:
    """A model of 20 operators in two blocks, on and off."""
    return large_content(tmp_path_factory.mktemp("groups"), operators=20, inferences=12)


def changed(content: ReportContent, names: int, nanoseconds: float) -> ReportContent:
    """The first operators, each with a name and thus a group of its own, and with this time."""
    replace, shown = msgspec.structs.replace, content.shown
    assert shown
    own = [
        replace(row, name=f"short{number}.out", time_ns=nanoseconds, share=nanoseconds / shown.headline_ns)
        if number < names
        else row
        for number, row in enumerate(row for row in shown.operators if row.kind != "framework")
    ]
    analysis = replace(shown, operators=own)
    variants = [
        replace(result, analysis=analysis) if result.analysis is shown else result for result in content.variants
    ]
    return replace(content, variants=variants)


def shown(content: ReportContent) -> list[list[str]]:
    """Operator, number, milliseconds and share of each row."""
    table = next(block for block in groups_blocks(content) if isinstance(block, TableBlock))
    picked = [[one.head for one in table.columns].index(head) for head in ("operator", "operators", "ms", "share")]
    return [[row[number] for number in picked] for row in cells(table)]


def test_all_groups_are_listed_where_all_can_be_read(content: ReportContent) -> None:
    """Without a line for others."""
    assert [row[0] for row in shown(content)] == [row.operator for row in kernel_rows(content)]


def test_short_groups_are_one_line_and_the_table_adds_up(content: ReportContent) -> None:
    """Eight of 400 ns are 0.003 ms together, where each would read 0.000."""
    short = changed(content, names=8, nanoseconds=400.0)
    rows = shown(short)
    assert rows[-1][:3] == ["8 further groups below 1 µs, together", "8", "0.003"]
    assert sum(int(row[1]) for row in rows) == 20
    assert sum(float(row[2]) for row in rows) == pytest.approx(
        sum(row.time_ns or 0.0 for row in kernel_rows(short)) / 1e6, abs=0.0005 * len(rows)
    )
    table = markdown_report(short).partition("### All operators by kernel")[2].partition("\n#")[0]
    assert "| 8 further groups below 1 µs, together |" in table
    assert " 0.000 " not in table
