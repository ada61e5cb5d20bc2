"""The request to the exporting process, and the lines that it answers with on its standard output."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from opscope.experiment.protocol import Refusal
from opscope.program.structure.exported import ExportedMethod


class ExportRequest(msgspec.Struct, frozen=True):
    """A request to export a model."""

    model: str  # as on the command line
    name: str  # of the model in the names of files
    models: str | None  # the user's directory of models; null without
    dtype: str  # number type
    backend: str  # that takes what it can
    directory: str  # where to write; it exists


class ExportStep(msgspec.Struct, frozen=True, tag=True):
    """The start of a step, or a detail of the current one."""

    name: str
    detail: str = ""  # how far it is; empty at its beginning


class ExportFinished(msgspec.Struct, frozen=True, tag=True):
    """The result of an export that was written and whose program has run."""

    methods: list[ExportedMethod]  # in the order of a run
    versions: dict[str, str]  # of the packages that made it
    etrecord_problem: str | None  # why ExecuTorch could not write the .etrecord; null when it did


Line: TypeAlias = ExportStep | Refusal | ExportFinished

CHECKS = ".checks"
"""Name of the directory with outputs to compare, inside of the directory of an unfinished export."""


def outputs_file(kind: str, number: int) -> str:
    """Return the name of the file with outputs of a method: those of ``eager``, ``graph`` or ``program``."""
    return f"{kind}-{number}.npz"
