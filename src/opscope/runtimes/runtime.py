"""What a runtime is: one object for each, with all that the other rooms ask of it.

What few runtimes have is here as what holds for the others. A runtime imports nothing of itself until it is asked.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from opscope.core.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opscope.bundle.manifest import Model
    from opscope.experiment.inputs import InputValue
    from opscope.program.structure.plan import Value
    from opscope.program.structure.signature import Signature

    NamedValue: TypeAlias = tuple[str, Value]

_MOST_CALLS = 10_000


class Runtime:
    """A runtime.

    Attributes:
        name: in files and in names of formats.
        title: as people call it.
        suffixes: of its programs, the usual one first.
        takes_data: whether its programs may keep their weights in a file that a user names.
        chooses_delegate: whether its programs run with and without a delegate, as they are told.
        has_options: whether a run of it has options by name.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]]
    takes_data: ClassVar[bool] = False
    chooses_delegate: ClassVar[bool] = False
    has_options: ClassVar[bool] = False

    @property
    def suffix(self) -> str:
        """The usual end of the names of its programs."""
        return self.suffixes[0]

    def fits(self, path: Path) -> bool:
        """Whether a file is a program of it, or is named like one."""
        return path.suffix in self.suffixes

    def program(self, model: str, models: Path | None) -> Path | None:  # noqa: ARG002 - where models are exported
        """The program that was named; None for a model to export, which may be in a directory of models.

        Raises:
            NotFoundError: there is neither.
            TraceFormatError: the program is damaged.
            UsageError: it cannot be run.
        """
        self.check(Path(model))
        return Path(model)

    def check(self, path: Path) -> None:
        """Refuse a program that cannot be run, as far as its file shows it."""

    def check_without_delegate(self, path: Path) -> None:
        """Refuse a program that cannot run without the delegate."""

    def check_options(self, options: Mapping[str, str] | None) -> None:
        """Refuse options of a run that are not known."""

    def check_registered(self, program: Path, libraries: Sequence[Path], where: str) -> None:
        """Refuse a program that calls what these libraries do not register; ``where`` names what loads them."""

    def unpacked(self, program: Path, work: Path) -> tuple[Path, Mapping[str, Sequence[InputValue]]]:  # noqa: ARG002
        """A program without the inputs that are packed with it, written to ``work``; and these inputs, by method."""
        return program, {}

    def files(self, program: Path, data: Path | None) -> list[Path]:  # noqa: ARG002 - where weights are named
        """A program that was named, and all that belongs to it; ``data`` are weights that were named.

        Raises:
            OpscopeError: the weights are missing, or not those of the program.
        """
        return [program]

    def kept_files(self, files: Sequence[Path], work: Path) -> list[Path]:  # noqa: ARG002 - for what is changed
        """The files to copy into a bundle, in the same order; ``work`` is for those that differ from the ones given."""
        return list(files)

    def described(self, model: str, source: Path | None, files: Sequence[Path], home: str) -> Model:  # noqa: ARG002
        """What a manifest says about a model; who runs which part of it is known when it runs.

        Args:
            model: as it was named.
            source: the program that was named; None for a model that was exported.
            files: as the bundle keeps them, the program first.
            home: directory of the bundle that they lie in.
        """
        from opscope.bundle.manifest import Model
        from opscope.core.files import sha256_of

        program, *weights = files
        return Model(
            name=program.stem,
            source=model,
            dtype=None,
            program=f"{home}/{program.name}",
            etrecord=None,
            sha256=sha256_of(program),
            size=program.stat().st_size,
            methods=[one.name for one in self.signatures(program)],
            backends=[],
            data=f"{home}/{weights[0].name}" if weights else None,
            data_sha256=sha256_of(weights[0]) if weights else None,
            data_size=weights[0].stat().st_size if weights else None,
        )

    def signatures(self, program: Path) -> Sequence[Signature]:
        """Methods that a caller can name; never empty."""
        raise NotImplementedError(self.title, program)

    def inputs(self, program: Path, calls: Sequence[str]) -> Mapping[str, Sequence[NamedValue]]:
        """Inputs of the methods that a process calls, in the order of their first calls; of no calls, the usual one.

        Raises:
            UsageError: one of them cannot be given its inputs.
            TraceFormatError: the program is damaged.
        """
        known = {one.name: one for one in self.signatures(program)}
        return {name: known[name].inputs for name in dict.fromkeys(calls) or [next(iter(known))]}

    def open_inputs(self, inputs: Sequence[NamedValue]) -> list[NamedValue]:
        """Inputs of which a program does not say how large they are."""
        from opscope.program.structure.plan import Dynamism, PlannedTensor

        return [
            (name, value)
            for name, value in inputs
            if isinstance(value, PlannedTensor) and value.dynamism is not Dynamism.STATIC
        ]

    def calls(self, program: Path, asked: Sequence[str]) -> list[str]:
        """The methods that a process calls over and over; empty for a program with one method.

        Args:
            program: whose methods they are.
            asked: ``NAME`` or ``NAME:COUNT``, in order; empty for no wish: each method once.

        Raises:
            UsageError: the program has no such method, or the count is not a number.
            TraceFormatError: the program is damaged.
        """
        names = [one.name for one in self.signatures(program)]
        return asked_calls(asked, names) or (names if len(names) > 1 else [])


def asked_calls(asked: Sequence[str], names: Sequence[str]) -> list[str]:
    """The calls that were asked for, as :meth:`Runtime.calls` has them."""
    return [name for text in asked for name in _asked(text, names)]


def _asked(text: str, names: Sequence[str]) -> list[str]:
    name, colon, count = text.partition(":")
    if name not in names:
        raise UsageError(f"the program has no method {name!r}", where="--methods", hint=did_you_mean(name, names))
    if colon and not (count.isdecimal() and 1 <= int(count) <= _MOST_CALLS):
        hint = f"a number from 1 to {_MOST_CALLS:,}; for example --methods prefill,decode:16"
        raise UsageError(f"{count!r} is not a number of calls", where="--methods", hint=hint)
    return [name] * (int(count) if colon else 1)
