"""Bundle: the directory of one experiment, its manifest rewritten after every repetition, and who works in it."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from opscope.bundle.consistency import hashed_record, record_hashes, unusable
from opscope.bundle.manifest import Manifest, Repetition, Status, TracingMode
from opscope.core.errors import (
    BundleError,
    InvalidBundleError,
    NotFoundError,
    StorageError,
    TraceFormatError,
    UsageError,
)
from opscope.core.files import place_beside, sha256_of, storage_errors
from opscope.core.json import from_json, to_json
from opscope.core.printable import shell_command
from opscope.core.system.memory import file_bytes
from opscope.core.writing import write_atomically
from opscope.program.ceilings import Ceilings, NoCeilings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from opscope.bundle.consistency import RecordHash
    from opscope.bundle.manifest import LockRecord, PlanSlot, SampleRun, Variant


MANIFEST = "manifest.json"
VARIANTS = "variants"
CEILINGS = "ceilings.json"
HashesOf: TypeAlias = Literal["ceilings_sha256", "evidence_sha256", "work_sha256"]
"""Fields of the manifest that state hashes of files by variant."""
SAMPLES = "samples.npz"
MODEL = "model"
LOCK = ".lock"
# Space held back while a run writes, given up when the disk is full, so that the last repetition is still recorded.
_RESERVE = ".reserve"
SCRATCH, SWITCH_SCRATCH = ".native", ".switch"
"""Directories of a native runner and of a switch within that of their repetition, while its process runs."""
EXCHANGED_FILES = {"request.json", "answer.json", "ended.json"}
"""Files through which a process gets its request and answers while it runs."""
TEMPORARY = re.compile(r"\..+\.[0-9a-f]{8}\.tmp\Z")
"""Names that :func:`opscope.core.writing.open_atomically` gives to files that are being written, and no others."""
_RESERVED = 1 << 18


class Bundle:
    """Experiment on disk."""

    def __init__(self, path: Path, manifest: Manifest, *, hashes_checked: bool = False) -> None:
        self.path = path
        self.manifest = manifest
        self.hashes_checked = hashes_checked

    @classmethod
    def create(
        cls,
        path: Path,
        manifest: Manifest,
        model_files: Sequence[Path],
        other_programs: Mapping[str, Sequence[Path]] | None = None,
    ) -> Bundle:
        """Create the directory of a new bundle, with its first manifest and copies of the model's files."""
        check_free(path)
        bundle = cls(path, manifest)
        try:
            bundle._save_manifest()
            with storage_errors(path / MODEL):
                for home, files in {MODEL: model_files, **_program_homes(other_programs or {})}.items():
                    (path / home).mkdir()
                    for file in files:
                        copy = path / home / place_beside(file, files[0])
                        copy.parent.mkdir(parents=True, exist_ok=True)
                        shutil.copyfile(file, copy)
        except StorageError:
            shutil.rmtree(path, ignore_errors=True)
            raise
        return bundle

    @classmethod
    def open(cls, path: Path) -> Bundle:
        """Read an existing bundle."""
        file = path / MANIFEST
        if path.is_file():
            hint = "profile a model with opscope profile FILE, or look into a trace with opscope analyze FILE"
            raise UsageError("a file, and not the directory of a bundle", where=path, hint=hint)
        try:
            content = file_bytes(file)
        except NotFoundError:
            hint = "give the directory that `opscope profile` wrote"
            raise NotFoundError("not a bundle: it has no manifest.json", where=path, hint=hint) from None
        return cls(path, _decode_manifest(content, file))

    def record(self, repetition: Repetition) -> None:
        """Add a repetition with the hash of its record, and write the manifest."""
        repetitions = [*self.manifest.repetitions, hashed_record(repetition)]
        self.manifest = msgspec.structs.replace(self.manifest, repetitions=repetitions)
        self._save_manifest()

    def set_status(self, status: Status) -> None:
        """Write the manifest with a new status."""
        self.manifest = msgspec.structs.replace(self.manifest, status=status)
        self._save_manifest()

    def restate(self, manifest: Manifest) -> None:
        """Write a manifest that names the same facts differently, such as files by their names elsewhere."""
        self.manifest = manifest
        self._save_manifest()

    def record_lock(self, lock: LockRecord, *, again: bool = False) -> None:
        """Record how the machine is held, before anything is measured, and again when more is known."""
        locks = self.manifest.locks[:-1] if again else self.manifest.locks
        self.manifest = msgspec.structs.replace(self.manifest, locks=[*locks, lock])
        self._save_manifest()

    def attempt_directory(self, slot: PlanSlot) -> tuple[Path, int]:
        """Create a new directory for the next attempt at a repetition, and return it with the attempt's number."""
        parent = self.path / VARIANTS / slot.variant
        name = f"{'round' if slot.arm is TracingMode.TRACED else 'timed'}-{slot.round:02d}"
        with storage_errors(parent):
            parent.mkdir(parents=True, exist_ok=True)
            for attempt in itertools.count(1):
                directory = parent / (name + (f"-attempt-{attempt}" if attempt > 1 else ""))
                # A directory without a record is that of a run that was killed: it may still be written to.
                with contextlib.suppress(FileExistsError):
                    directory.mkdir()
                    return directory, attempt
        raise AssertionError("unreachable: attempts are unlimited")

    def temporary_files(self) -> list[Path]:
        """Return the files in the bundle that are half written, of runs and reports that were killed or go on now."""
        return [path for path in self.path.rglob(".*.tmp") if TEMPORARY.match(path.name) and path.is_file()]

    def discard_scratch(self, half_written: Sequence[Path] = ()) -> None:
        """Remove what runs that were killed left: scratch, half-written files, and directories of repetitions.

        Call it at the end of a run, when every repetition has its record: then processes of killed runs have ended.
        Directories that a link leads to or that hold results of a process, and names that no repetition has, stay.

        Args:
            half_written: what :meth:`temporary_files` gave when the run began.
        """
        for file in half_written:
            file.unlink(missing_ok=True)
        root = self.path.resolve()
        recorded = {self.path / repetition.directory for repetition in self.manifest.repetitions}
        for variant in self.manifest.variants:
            home = self.path / VARIANTS / variant.name
            for directory in sorted(path for arm in ("round", "timed") for path in home.glob(f"{arm}-[0-9]*")):
                if directory.resolve() != root / directory.relative_to(self.path):
                    continue
                for name in (SCRATCH, SWITCH_SCRATCH):
                    shutil.rmtree(directory / name, ignore_errors=True)
                if directory not in recorded:
                    for name in EXCHANGED_FILES:
                        (directory / name).unlink(missing_ok=True)
                    with contextlib.suppress(OSError):  # it holds results
                        directory.rmdir()

    def save_ceilings(self, variant: str, ceilings: Ceilings | NoCeilings) -> None:
        """Save the ceilings of a variant, or why there are none."""
        content = to_json(ceilings, indent=2)
        self.save_stated("ceilings_sha256", variant, self.path / VARIANTS / variant / CEILINGS, content)

    def save_stated(self, stated: HashesOf, variant: str, file: Path, content: bytes) -> None:
        """Save a file of a variant, and its hash in the manifest, which is held."""
        if variant in getattr(self.manifest, stated):
            self.state_hash(stated, variant, None)  # a run that is killed in between leaves none, not a wrong one
        write_atomically(file, content, follow=False)
        self.state_hash(stated, variant, hashlib.sha256(content).hexdigest())

    def state_hash(self, stated: HashesOf, variant: str, sha256: str | None) -> None:
        """Record the hash of a file of a variant; None while there is none, or before another one."""
        hashes = {
            name: hash_of_variant for name, hash_of_variant in getattr(self.manifest, stated).items() if name != variant
        }
        hashes |= {} if sha256 is None else {variant: sha256}
        self.manifest = msgspec.structs.replace(self.manifest, **{stated: hashes})
        self._save_manifest()

    def ceilings(self, variant: str) -> Ceilings | NoCeilings | None:
        """Return the ceilings of a variant, or why there are none; None if nobody tried to measure them."""
        file = self.path / VARIANTS / variant / CEILINGS
        try:
            content = file_bytes(file)
        except NotFoundError:
            return None
        ceilings = _check_ceilings(_decode_ceilings(content, file), self.manifest.variant(variant), file)
        if not self.hashes_checked:
            # Ceilings are measured anew by later runs, so what counts is the manifest that lies beside them.
            stated = Bundle.open(self.path).manifest.ceilings_sha256.get(variant)
            self.check_hash(self.relative(file), hashlib.sha256(content).hexdigest(), stated)
        return ceilings

    def save_samples(self, variant: str, content: bytes, samples: SampleRun) -> None:
        """Save a variant's outputs for labelled inputs."""
        write_atomically(self.path / VARIANTS / variant / SAMPLES, content, follow=False)
        hashes = samples.outputs_sha256 | {variant: hashlib.sha256(content).hexdigest()}
        self.state_samples(msgspec.structs.replace(samples, outputs_sha256=hashes))

    def state_samples(self, samples: SampleRun) -> None:
        """Record which labelled inputs were run, and what became of them."""
        self.manifest = msgspec.structs.replace(self.manifest, samples=samples)
        self._save_manifest()

    def left_file(self, repetition: Repetition, name: str) -> Path | None:
        """Return a file that a process left beside its trace, unchanged; None if it left none."""
        file = f"{repetition.directory}/{name}"
        path, stated = self.path / file, repetition.files_sha256.get(name)
        exists, problem = path.is_file(), ""
        if stated and not exists:
            problem = "the file that was measured is gone"
        elif exists and not stated and repetition.files_sha256:
            problem = "a file that the measured process did not write"
        if problem and not self.hashes_checked:
            raise InvalidBundleError(problem, where=path, hint=_FROM_A_COPY)
        if exists:
            self.check_hash(file, sha256_of(path), stated)
        return path if exists else None

    def outputs_file(self, repetition: Repetition, name: str) -> str:
        """Return the path of a repetition's outputs in the bundle; of equal outputs, one file is kept."""
        path_of_repetition = f"{repetition.directory}/{name}"
        if (self.path / path_of_repetition).exists():
            return path_of_repetition
        equal_outputs = (
            f"{repetition_with_equal_outputs.directory}/{name}"
            for repetition_with_equal_outputs in self.manifest.with_same_outputs(repetition)
        )
        return next((file for file in equal_outputs if (self.path / file).exists()), path_of_repetition)

    def check_hash(self, file: str, sha256: str, stated: str | None) -> None:
        """Raise InvalidBundleError unless a file that figures are computed from is the one that was measured."""
        if stated not in {None, sha256} and not self.hashes_checked:
            problem = f"not the file that was measured: its SHA-256 is {sha256[:12]}…, {MANIFEST} states {stated:.12}…"
            command = shell_command(["opscope", "validate", str(self.path)])
            hint = f"{_FROM_A_COPY}; `{command}` shows what differs"
            raise InvalidBundleError(problem, where=self.path / file, hint=hint)

    def check_records(self, variant: str) -> None:
        """Raise InvalidBundleError if a record of a variant's repetitions is not the one that was written.

        Records hold the times of untraced runs. A record without a hash is refused like a changed one.
        """
        if self.hashes_checked:
            return
        for record_hash in self.record_hashes():
            if record_hash.changed and record_hash.variant == variant:
                problem = f"repetitions[{record_hash.number}] {record_hash.fault}"
                command = shell_command(["opscope", "validate", str(self.path)])
                hint = f"restore the manifest from a copy of the bundle or measure again; see `{command}`"
                raise InvalidBundleError(problem, where=self.path / MANIFEST, hint=hint)

    def record_hashes(self) -> list[RecordHash]:
        """Return the hashes of all records as they stand on disk, beside the stated ones."""
        file = self.path / MANIFEST
        content = file_bytes(file)
        try:
            return list(record_hashes(msgspec.json.decode(content)))
        except _DAMAGE as error:
            raise TraceFormatError(f"the manifest is damaged: {error}", where=file) from error

    def relative(self, path: Path) -> str:
        """Return a path within the bundle as it stands in the manifest."""
        return path.relative_to(self.path).as_posix()

    def inside(self, path: str) -> str:
        """Return a path relative to the bundle's directory, so that derived files are the same anywhere."""
        return Path(os.path.relpath(path, self.path)).as_posix()

    def without_place(self, text: str) -> str:
        """Return a message with paths that begin at the bundle's directory, as derived files hold it."""
        return re.sub(rf"(?<![\w./-]){re.escape(str(self.path))}/", "", text)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the bundle for one run, with its newest manifest, and some space on its disk."""
        with storage_errors(self.path), (self.path / LOCK).open("ab") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BundleError("another run is writing here", where=self.path, hint="wait until it ends") from None
            self.manifest = Bundle.open(self.path).manifest
            reserve = self.path / _RESERVE
            write_atomically(reserve, b"\0" * _RESERVED, follow=False)
            try:
                yield
            finally:
                reserve.unlink(missing_ok=True)

    def _save_manifest(self) -> None:
        content = to_json(self.manifest, indent=2)
        try:
            write_atomically(self.path / MANIFEST, content, follow=False)
        except StorageError:
            reserve = self.path / _RESERVE
            if not reserve.exists():
                raise
            reserve.unlink()
            write_atomically(self.path / MANIFEST, content, follow=False)


def program_home(variant: str) -> str:
    """Return the directory within a bundle of the program that one variant has for itself."""
    return f"{MODEL}/{variant}"


def _program_homes(other_programs: Mapping[str, Sequence[Path]]) -> dict[str, Sequence[Path]]:
    return {program_home(name): files for name, files in other_programs.items()}


def check_free(path: Path) -> None:
    """Raise an error unless a new bundle can be created here: nothing exists yet, or an empty directory."""
    if path.is_dir() and any(path.iterdir()):
        if (path / MANIFEST).exists():
            hint = "finish it with --resume, or choose another --out"
            raise BundleError("the output directory already holds a bundle", where=path, hint=hint)
        raise BundleError("the output directory is not empty", where=path, hint="choose another --out")
    if path.exists() and not path.is_dir():
        raise BundleError("the output path is a file", where=path, hint="choose another --out")


def is_bundle(path: Path) -> bool:
    """Return whether a path is the directory of a bundle."""
    return (path / MANIFEST).is_file()


_DAMAGE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Errors that decoding raises on damaged JSON, found by fuzzing."""


class _Head(msgspec.Struct):
    schema: str = ""


_FROM_A_COPY = "restore it from a copy of the bundle, or measure again"
_DAMAGED = "restore manifest.json from a copy of the bundle, or measure again; `opscope validate` shows what is wrong"
_REMEASURE = "delete the file and measure again with --resume"


def _decode_ceilings(content: bytes, file: Path) -> Ceilings | NoCeilings:
    try:
        return from_json(content, Ceilings | NoCeilings)
    except _DAMAGE as error:
        _check_schema(content, Ceilings, file)
        raise BundleError(f"the ceilings are damaged: {error}", where=file, hint=_REMEASURE) from error


def _check_ceilings(ceilings: Ceilings | NoCeilings, variant: Variant | None, file: Path) -> Ceilings | NoCeilings:
    if (
        isinstance(ceilings, Ceilings)
        and variant
        and (ceilings.cleared, ceilings.threads) != (variant.cleared, variant.threads)
    ):
        problem = f"the ceilings do not belong to {variant.name}: other features or threads"
        raise BundleError(problem, where=file, hint=_REMEASURE)
    return ceilings


def _decode_manifest(content: bytes, file: Path) -> Manifest:
    try:
        manifest = from_json(content, Manifest)
    except _DAMAGE as error:
        _check_schema(content, Manifest, file)
        raise TraceFormatError(f"the manifest is damaged: {error}", where=file, hint=_DAMAGED) from error
    problem = next(unusable(manifest), None)
    if problem:
        raise TraceFormatError(f"the manifest is damaged: {problem}", where=file, hint=_DAMAGED)
    return manifest


def _check_schema(content: bytes, kind: type[msgspec.Struct], file: Path) -> None:
    """Raise BundleError if another version of opscope wrote a document that cannot be decoded."""
    schema, known = "", str(kind.__struct_config__.tag)
    with contextlib.suppress(*_DAMAGE):
        schema = from_json(content, _Head).schema
    if schema != known and schema.startswith(f"{known.partition('/')[0]}/"):
        raise BundleError(f"written as {schema}; this opscope reads {known}", where=file, hint="upgrade opscope")


def is_held(path: Path) -> bool:
    """Return whether a run holds the bundle now; this neither changes anything nor hinders a run that begins."""
    try:
        with (path / LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
