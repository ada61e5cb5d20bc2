"""The files of an experiment on their way to a worker: by hash, so that each comes to a worker once.

A model that is to be exported is exported here, once for all devices; its files travel as those of a program do.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from opscope.bundle.manifest import Manifest, Model
from opscope.core.errors import UsageError
from opscope.core.files import leads_out, sha256_of, storage_errors, write_atomically
from opscope.core.json import from_json, to_json
from opscope.core.system.cache import cache_directory, is_whole, made_in_place, remove_unused
from opscope.experiment.target_names import parse_target
from opscope.runtimes.exports import record_of_export
from opscope.runtimes.registry import runtime_of
from opscope.workflows.measure.program_inputs import exported_files, program_source

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from opscope.experiment.planned import Experiment

_CACHE = "carried"
_KEPT_SECONDS = 7 * 86_400.0
"""How long a worker keeps a file that no experiment asks for any more."""


class CarriedFile(NamedTuple):
    """A file that a worker needs."""

    name: str  # below the folder of what it belongs to
    sha256: str
    executable: bool


class Carried(NamedTuple):
    """What an experiment names, with all files that belong to it."""

    named: str  # as the experiment names it
    files: tuple[CarriedFile, ...]
    # the file that stands for what was named; empty: the folder of the files does
    first: str
    model: str | None = None  # name of the model that was exported; None for what is a file already


class Parcel:
    """Everything that an experiment names, as it lies here.

    ``experiment``: as it was read; ``exports``: directory for the programs of models that are exported; each is
    exported once.

    Raises UsageError: something that is named cannot be brought to another machine; OpscopeError: a model cannot be
    exported.
    """

    def __init__(self, experiment: Experiment, exports: Path) -> None:
        self._places: dict[str, Path] = {}
        self.carried = tuple(self._found(experiment, exports))

    @property
    def hashes(self) -> set[str]:
        """Of all its files."""
        return {file.sha256 for one in self.carried for file in one.files}

    def contents(self, hashes: set[str]) -> dict[str, bytes]:
        """Contents of files by their hashes."""
        return {sha256: self._places[sha256].read_bytes() for sha256 in sorted(hashes)}

    def _found(self, experiment: Experiment, exports: Path) -> Iterator[Carried]:
        for model, runtime in experiment.all_models:
            source = program_source(model, runtime, experiment.models)
            if source is None:
                files = _exported(experiment, model, exports)
                record = record_of_export(files[0])
                yield self._carried(model, files, files[0].parent)._replace(model=record.name if record else None)
            else:
                data = experiment.data if model == experiment.model else None
                files = runtime_of(source, runtime).files(source, Path(data) if data else None)
                yield self._carried(model, files, source.parent, whole=Path(model).is_dir())
        runners = [str(variant.runner) for variant in experiment.variants if variant.runner]
        runners += filter(None, [parse_target(experiment.target, builds_named=True).runner])
        for name in dict.fromkeys([*filter(None, [experiment.inputs, experiment.data]), *runners]):
            if not Path(name).is_file():
                hint = "workers get every file from here: name one that is here"
                raise UsageError("there is no such file", where=name, hint=hint)
            yield self._carried(name, [Path(name)], Path(name).parent)

    def _carried(self, named: str, files: Sequence[Path], home: Path, *, whole: bool = False) -> Carried:
        carried_files = []
        for file in files:
            sha256 = sha256_of(file)
            self._places[sha256] = file
            name = file.relative_to(home).as_posix() if file.is_relative_to(home) else file.name
            carried_files.append(CarriedFile(name, sha256, os.access(file, os.X_OK)))
        return Carried(named, tuple(carried_files), "" if whole else carried_files[0].name)


def _exported(experiment: Experiment, model: str, exports: Path) -> list[Path]:
    """The files of an export, the program first; those of an earlier one of the same."""
    asked = f"{model}\0{experiment.dtype}\0{experiment.models}"
    work = exports / hashlib.sha256(asked.encode()).hexdigest()[:16]
    listed = work / "files.json"
    if not listed.exists():
        work.mkdir(parents=True)
        files = exported_files(msgspec.structs.replace(experiment, model=model), work, work)
        write_atomically(listed, msgspec.json.encode([file.name for file in files]))
    return [work / name for name in from_json(listed.read_bytes(), list[str])]


def missing_here(carried: Sequence[Carried]) -> set[str]:
    """Hashes of files that this worker does not have; files that nobody asked for lately are removed."""
    home = cache_directory() / _CACHE
    with storage_errors(home):
        remove_unused(home, _KEPT_SECONDS)
        found = set()
        for sha256 in {file.sha256 for one in carried for file in one.files}:
            place = home / sha256
            if is_whole(place):
                os.utime(place)
            else:
                found.add(sha256)
    return found


def keep_here(contents: Mapping[str, bytes]) -> None:
    """Keep files that came, by their hashes."""
    for sha256, content in contents.items():
        if hashlib.sha256(content).hexdigest() != sha256:
            raise UsageError("a file arrived damaged", where=sha256, hint="run it again with --resume")
        with made_in_place(cache_directory() / _CACHE / sha256) as made:
            write_atomically(made, content)


def unpacked(carried: Sequence[Carried], work: Path) -> dict[str, str]:
    """Lay out files in a directory; gives where what was named lies here, by its name."""
    places = {}
    for number, one in enumerate(carried):
        folder = work / f"files-{number:04}"
        for file in one.files:
            if leads_out(file.name):
                raise UsageError(f"a client named a file outside its folder: {file.name!r}", where=one.named)
            place = folder / PurePosixPath(file.name)
            with storage_errors(place):
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(cache_directory() / _CACHE / file.sha256, place)
                place.chmod(0o755 if file.executable else 0o644)
        places[one.named] = str(folder / one.first) if one.first else str(folder)
    return places


def placed(experiment: Experiment, places: Mapping[str, str]) -> Experiment:
    """An experiment that names its files where they lie here."""

    def here(name: str | None) -> str | None:
        return None if name is None else places.get(name, name)

    variants = tuple(
        msgspec.structs.replace(
            variant,
            model=here(variant.model),
            runner=None if variant.runner is None else Path(places[str(variant.runner)]),
        )
        for variant in experiment.variants
    )
    named = parse_target(experiment.target, builds_named=True)
    return msgspec.structs.replace(
        experiment,
        model=places[experiment.model],
        models=None,
        against=here(experiment.against),
        inputs=here(experiment.inputs),
        data=here(experiment.data),
        target=named.running(places[named.runner]).text if named.runner else experiment.target,
        variants=variants,
    )


def as_named(
    manifest: Manifest, experiment: Experiment, carried: Sequence[Carried], places: Mapping[str, str]
) -> Manifest:
    """A manifest that names files and models as the experiment does, in place of where they lay here."""
    quoted = {_quoted(named): _quoted(place) for named, place in places.items()}
    read = from_json(with_names(to_json(manifest).decode(), quoted).encode(), Manifest)
    names = {one.named: one.model for one in carried if one.model}

    def known(model: Model) -> Model:
        return msgspec.structs.replace(model, name=names.get(model.source, model.name))

    return msgspec.structs.replace(
        read,
        model=known(read.model),
        programs={variant: known(model) for variant, model in read.programs.items()},
        request=experiment.request if read.request else None,
    )


def with_names(text: str, places: Mapping[str, str]) -> str:
    """A text that names files as an experiment does, in place of where they lay here."""
    # Longer paths first: none is then taken for the beginning of another one.
    for named, place in sorted(places.items(), key=lambda pair: -len(pair[1])):
        text = text.replace(place, named)
    return text


def _quoted(text: str) -> str:
    """A text as JSON writes it, without its quotation marks."""
    return msgspec.json.encode(text).decode()[1:-1]
