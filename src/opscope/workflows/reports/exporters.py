"""Formats that other packages add to ``opscope convert``, by entry points in ``opscope.exporters``."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from opscope.core.errors import MissingDependencyError, OpscopeError
from opscope.core.plug_ins import PlugIn, plug_ins

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.analysis.analysis import Analysis

GROUP = "opscope.exporters"
_HINT = "opscope's own formats are unaffected; update the plug-in, or report it to its authors"


@runtime_checkable
class Exporter(Protocol):
    """Writes analyses in a format; the name of its entry point is that of the format."""

    suffix: str
    """End of the names of its files, with the dot."""

    def export(self, results: Sequence[tuple[str, Analysis]]) -> bytes:
        """The content of the file: of a bundle with every variant, the accelerated one first, each with its name."""
        ...


class PlugInFormat(NamedTuple):
    """A format of another package."""

    plug_in: PlugIn
    exporter: Exporter

    def content(self, results: Sequence[tuple[str, Analysis]]) -> bytes:
        """What its exporter writes.

        Raises:
            MissingDependencyError: it fails, or gives anything but bytes.
        """
        try:
            written = self.exporter.export(results)
        except OpscopeError:
            raise
        except Exception as error:
            raise MissingDependencyError(self.plug_in.failed("failed", error), hint=_HINT) from error
        if not isinstance(written, bytes):
            problem = f"{self.plug_in.title} returned {type(written).__name__}, not bytes"
            raise MissingDependencyError(problem, hint=_HINT)
        return written


def plug_in_formats() -> list[str]:
    """Names of the formats of other packages, also of those that cannot be loaded."""
    return sorted({one.name for one in plug_ins(GROUP)})


def plug_in_format(name: str) -> PlugInFormat | None:
    """The format of that name of another package; None where there is none.

    Raises:
        MissingDependencyError: there is, and it cannot be used.
    """
    found = next((one for one in plug_ins(GROUP) if one.name == name), None)
    if found is None:
        return None
    if found.problem:
        raise MissingDependencyError(found.problem, hint=_HINT)
    try:
        exporter = found.loaded() if isinstance(found.loaded, type) else found.loaded
    except Exception as error:
        raise MissingDependencyError(found.failed("cannot be made", error), hint=_HINT) from error
    if not isinstance(exporter, Exporter) or not isinstance(exporter.suffix, str):
        problem = f"{found.title} is not an exporter: it needs a suffix and export(results)"
        raise MissingDependencyError(problem, hint=_HINT)
    return PlugInFormat(found, exporter)
