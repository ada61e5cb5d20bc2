"""What the exporting process is asked, and the lines it answers with on its standard output."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from opscope.program.structure.exported import ExportedMethod


class ExportRequest(msgspec.Struct, frozen=True):
    """A model to export.

    Attributes:
        model: as on the command line.
        name: of the model in the names of files.
        models: the user's directory of models; null without.
        dtype: number type.
        backend: that takes what it can.
        directory: where to write; it exists.
    """

    model: str
    name: str
    models: str | None
    dtype: str
    backend: str
    directory: str


class ExportStep(msgspec.Struct, frozen=True, tag=True):
    """The step that begins."""

    name: str


class Refusal(msgspec.Struct, frozen=True, tag=True):
    """The error that ended the export.

    Attributes:
        problem: its sentence.
        hint: what to do next.
        kind: name of its class.
        where: the file or option it concerns.
    """

    problem: str
    hint: str | None
    kind: str
    where: str | None = None


class ExportFinished(msgspec.Struct, frozen=True, tag=True):
    """The export is written, and the program has run.

    Attributes:
        methods: in the order of a run.
        versions: of the packages that made it.
        etrecord_problem: why ExecuTorch could not write the .etrecord; null when it did.
    """

    methods: list[ExportedMethod]
    versions: dict[str, str]
    etrecord_problem: str | None


Line: TypeAlias = ExportStep | Refusal | ExportFinished

CHECKS = ".checks"
"""Directory of the outputs to compare, inside of the directory of an export that is not finished."""


def outputs_file(kind: str, number: int) -> str:
    """Name of the file with the outputs of a method, by its number: of ``eager``, ``graph`` or ``program``."""
    return f"{kind}-{number}.npz"
