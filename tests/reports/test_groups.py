"""Groups of operators in the Markdown report: the longest ones, and a line with which the table adds up."""

from __future__ import annotations

import msgspec
import pytest

from large_content import large_content
from opscope.reports.content.content import ReportContent
from opscope.reports.html.page import markdown_report
from opscope.reports.sections.kernel_view import kernel_rows
from opscope.reports.sections.markdown import groups


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


def test_all_groups_are_listed_where_they_are_few(content: ReportContent) -> None:
    """Without a line for others."""
    assert groups(content) == kernel_rows(content)


def test_short_groups_are_one_line_and_the_table_adds_up(content: ReportContent) -> None:
    """Eight of 400 ns are 0.003 ms together, where each would read 0.000."""
    short = changed(content, names=8, nanoseconds=400.0)
    rows = groups(short)
    assert (rows[-1].operator, rows[-1].count, rows[-1].time_ns) == ("8 further groups, together", 8, 3_200.0)
    assert sum(row.time_ns for row in rows) == pytest.approx(sum(row.time_ns for row in kernel_rows(short)))
    assert sum(row.count for row in rows) == 20
    table = markdown_report(short).partition("### By group")[2].partition("###")[0]
    assert "| 8 further groups, together |" in table
    assert " 0.000 " not in table


def test_more_groups_than_are_listed_are_one_line(content: ReportContent) -> None:
    """The table tells that it is cut, and what the rest takes."""
    rows = groups(changed(content, names=18, nanoseconds=5_000.0))
    assert rows[-1].operator.endswith(" further groups, together")
    assert sum(row.count for row in rows) == 20


def test_a_rest_that_reads_as_nothing_has_no_line(content: ReportContent) -> None:
    """One group of 400 ns."""
    table = (
        markdown_report(changed(content, names=1, nanoseconds=400.0)).partition("### By group")[2].partition("###")[0]
    )
    assert "further group" not in table
    assert " 0.000 " not in table
