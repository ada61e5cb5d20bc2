"""Tracebacks of our own bugs, kept beside the results that say what is not known."""

from __future__ import annotations

import contextlib
import platform
from html import escape
from typing import TYPE_CHECKING

from opscope.core.errors import InternalError
from opscope.core.outputs import marked_markdown, write_outputs
from opscope.core.parts import explained, failure_of, failures_heard
from opscope.core.printable import shell_command
from opscope.core.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from opscope.core.parts import PartFailure

PROBLEMS = "problems"
"""Directory of the tracebacks, beside the reports."""


@contextlib.contextmanager
def tracebacks_kept(directory: Path) -> Iterator[None]:
    """Write the tracebacks of what a bug of ours leaves unknown beside the reports that say so."""
    with failures_heard() as failures:
        try:
            yield
        except Exception as error:
            failure = failure_of("the report", error)
            if failure is None:
                raise
            failures.append(failure)
            raise nothing_known(failure.because, directory, directory) from error
        finally:
            for failure in failures:
                _keep(failure, directory)


def _keep(failure: PartFailure, directory: Path) -> None:
    about = f"opscope {__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    text = f"{about}\n{failure.part}\n\n{failure.trace}".encode(errors="backslashreplace")
    write_outputs({directory / PROBLEMS / failure.file_name: text}, follow=False)
    failure.file = str(directory / PROBLEMS / failure.file_name)


def nothing_known(because: str, place: Path | str, directory: Path | None) -> InternalError:
    """The error of a command whose bugs leave nothing to report."""
    attached = "the lines above" if directory is None else f"the files in {shell_command([str(directory / PROBLEMS)])}"
    hint = f"nothing is lost; report this bug with {attached} and, if you can share it, {place}"
    return InternalError(f"nothing can be reported: {because}", where=place, hint=hint)


def page(name: str, write: Callable[[], str]) -> bytes:
    """A report in Markdown or HTML; one that a bug of ours prevents says so."""
    return explained(name, write, _markdown_alone if name.endswith(".md") else _html_alone).encode()


def _markdown_alone(failure: PartFailure) -> str:
    return marked_markdown(f"# Report\n\n{_failure_text(failure)}")


def _html_alone(failure: PartFailure) -> str:
    head = f'<meta name="generator" content="opscope {__version__}"><title>Report</title>'
    return f'<!doctype html>\n<html lang="en">{head}<p>{escape(_failure_text(failure), quote=False)}</p></html>\n'


def _failure_text(failure: PartFailure) -> str:
    return f"{failure.sentence}; {PROBLEMS}/{failure.file_name} says where."
