"""One side of a question: its events, where they came from, what its program says."""

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
    """One side of a question: its events, where they came from, what they are called, and what their program says.

    ``phases`` are what calls do for a language model, by method, where the program or its record tells.
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
        """The program that ran, as the bundle tells; None without a bundle."""
        if self.bundle is None:
            return None
        return self.bundle.manifest.model_of(self.variant.name if self.variant else "")

    def kept_file(self, name: str) -> Path | None:
        """Return a file of that name that a traced process left beside its trace; None if there is none."""
        if self.bundle is None or self.variant is None:
            file = Path(self.files[0][0]).with_name(name)
            return file if file.exists() else None
        traced = [one for one in self.bundle.manifest.completed(self.variant.name) if one.trace]
        kept = self.bundle.left_file(traced[0], name) if traced else None
        return kept if kept and kept.exists() else None


class ProgramFiles(NamedTuple):
    """The .pte that was traced, and the ETRecord of its export when there is one."""

    program: Path
    etrecord: Path | None = None
