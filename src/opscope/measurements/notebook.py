"""Features of every result of the Python API besides its fields."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec

from opscope.core.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

    from opscope.reports.document.blocks import Document

_Result = TypeVar("_Result", bound=msgspec.Struct)
_LONGEST = 200


def shown_as(kind: type[_Result], result: msgspec.Struct) -> _Result:
    """Return a plain result as one that a notebook can show, with the same fields."""
    return kind(**{name: getattr(result, name) for name in result.__struct_fields__})


def check_most(most: int) -> None:
    """Raise UsageError for a chart of nothing."""
    if most < 1:
        raise UsageError(f"a chart of {most} shows nothing", where="most", hint="give 1 or more")


class NotebookResult:
    """Result with a short ``repr``, the first screen of its report in a notebook, and data frames.

    A subclass gives its document and its frame. It stands first among the bases, so that its ``repr`` takes the place
    of one that prints every field.
    """

    __slots__ = ()

    def to_polars(self) -> pl.DataFrame:
        """Return the result in rows; text and numbers in the cells."""
        raise NotImplementedError

    def to_pandas(self) -> pd.DataFrame:
        """Return the frame of ``to_polars`` as one of pandas; what is missing is ``pandas.NA``.

        Raises:
            MissingDependencyError: pandas is not installed.
        """
        from opscope.reports.formats.frames import pandas_frame

        return pandas_frame(self.to_polars())

    @property
    def answer(self) -> str:
        """Main figure or verdict, as a sentence without a full stop."""
        return self._build_document().answer

    def _build_document(self) -> Document:
        """Return the document whose first screen a notebook shows."""
        raise NotImplementedError

    def __repr__(self) -> str:
        from opscope.reports.document.text import plain

        document = self._build_document()
        return f"<{type(self).__name__} {plain(document.title, _LONGEST)}: {plain(document.answer, _LONGEST)}>"

    def _repr_html_(self) -> str:
        from opscope.reports.document.html import html_fragment

        return html_fragment(self._build_document())
