"""One side of a comparison: its events, their source, and what is known about its program."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opscope.analysis.analysis import ProgramKnowledge
    from opscope.analysis.latency.latency import CallTimes
    from opscope.bundle.bundle import Bundle
    from opscope.bundle.manifest import Model, Variant
    from opscope.core.table import EventTable
    from opscope.program.phases import Phase


Warmup: TypeAlias = int | Literal["auto"] | None
"""Inferences of each process to set aside; auto: where latencies settle; None: a bundle's plan, else auto."""


class Side(NamedTuple):
    """One side of a comparison: its events, their source and label, and what is known about its program.

    ``phases`` maps methods to the phases of a language model that they compute, as far as the program or its export
    record says so.
    """

    table: EventTable
    path: str
    format: str
    files: list[tuple[str, str]]
    label: str
    bundle: Bundle | None
    variant: Variant | None
    known: ProgramKnowledge | None = None
    calls: CallTimes | None = None
    phases: Mapping[str, Phase] = {}

    @property
    def model(self) -> Model | None:
        """The program that ran, as the bundle's manifest describes it; None without a bundle."""
        if self.bundle is None:
            return None
        return self.bundle.manifest.model_of(self.variant.name if self.variant else "")

    def kept_file(self, name: str) -> Path | None:
        """Return the file of a name that a traced process wrote beside its trace; None if there is none."""
        if self.bundle is None or self.variant is None:
            file = Path(self.files[0][0]).with_name(name)
            return file if file.exists() else None
        traced = [run for run in self.bundle.manifest.completed(self.variant.name) if run.trace]
        path = self.bundle.left_file(traced[0], name) if traced else None
        return path if path and path.exists() else None


class ProgramFiles(NamedTuple):
    """The .pte that was traced, and the ETRecord of its export when there is one."""

    program: Path
    etrecord: Path | None = None
