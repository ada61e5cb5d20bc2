"""Ceilings kept between runs: what they depend on, and a file for each such set in the user's cache directory.

Nothing here decides whether kept ceilings still hold: a short probe does, see ``opscope.workflows.measure.ceilings``.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import msgspec

from opscope.core.files import storage_errors
from opscope.core.json import from_json, to_json
from opscope.core.system.cache import cache_directory
from opscope.core.writing import write_atomically
from opscope.machine.environment import digest
from opscope.program.ceilings import Ceilings, Origin

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from opscope.bundle.manifest import Environment

MOST_FILES = 64
"""Kept sets of ceilings; the oldest make room for new ones."""

LARGEST_FILE = 1 << 20
"""Largest size of a kept set in bytes. A longer one is not read: they have some fifty thousand."""

_DIRECTORY = "ceilings"


class MachineIdentity(msgspec.Struct, frozen=True):
    """Facts that ceilings depend on besides the cleared features and the threads; null where one cannot be read."""

    host: str  # tells this machine from others; a hash, which names nobody
    system: str | None  # operating system
    kernel: str | None  # its release
    cpu: str | None  # model
    revision: str | None  # microcode, or on Arm the revisions of the kinds of cores
    governor: str | None  # of the clock frequency
    hypervisor: bool | None  # whether there is one
    logical_cpus: int | None  # of the machine
    usable_cpus: int | None  # that may be used
    fields: list[str]  # of `cpuinfo_isa`, set

    @classmethod
    def of(cls, environment: Environment, fields: Sequence[str], host: str, revision: str | None) -> MachineIdentity:
        """Return the identity of a machine that was described."""
        return cls(
            host=digest(host.encode()),
            system=environment.system,
            kernel=environment.kernel,
            cpu=environment.cpu,
            revision=revision,
            governor=environment.governor,
            hypervisor=environment.hypervisor,
            logical_cpus=environment.logical_cpus,
            usable_cpus=environment.usable_cpus,
            fields=sorted(fields),
        )


class KeptCeilings(msgspec.Struct, frozen=True, tag_field="schema", tag="opscope.kept-ceilings/1"):
    """File of the cache: the ceilings, and what they are the ceilings of."""

    machine: MachineIdentity  # that was measured
    probes: str  # what was measured and how; see probes_version
    ceilings: Ceilings  # the ceilings, with the fields that were cleared and the threads
    # of both, see _with_hash: ceilings that were edited are told from those that were measured. It stands in the
    # file and not beside it, since ceilings take the place of older ones while others read
    sha256: str = ""


class CeilingsCache:
    """Ceilings of earlier runs on one machine. Several processes may use it at the same time.

    There is a file for each set of cleared fields and number of threads, in the user's cache directory if no other is
    given. Of another machine, or measured by other probes (see probes_version), they are other ceilings.
    """

    def __init__(self, machine: MachineIdentity, probes: str, directory: Path | None = None) -> None:
        self._machine, self._probes = machine, probes
        self._directory = directory or cache_directory() / _DIRECTORY

    def recall(self, cleared: Sequence[str], threads: int) -> Ceilings | str:
        """Return the ceilings that were kept, else why a file is none; empty where nobody measured them yet."""
        try:
            with self.file(cleared, threads).open("rb") as file:
                content = file.read(LARGEST_FILE + 1)
        except FileNotFoundError:
            return ""
        except OSError as error:
            return f"stored ceilings cannot be read: {error.strerror or error}"
        return self._decode_file(content, cleared, threads)

    def keep(self, ceilings: Ceilings) -> None:
        """Keep ceilings in the place of those that were there; files of which there are too many go, oldest first."""
        measured = msgspec.structs.replace(ceilings, origin=Origin.MEASURED, drift=None, notes=[])
        content = from_json(to_json(KeptCeilings(self._machine, self._probes, measured)), KeptCeilings)
        write_atomically(self.file(measured.cleared, measured.threads), to_json(_with_hash(content)))
        with storage_errors(self._directory):
            times = {path: _time_of_change(path) for path in self._directory.glob("*.json")}
            for path in sorted(times, key=lambda path: -times[path])[MOST_FILES:]:
                path.unlink(missing_ok=True)

    def file(self, cleared: Sequence[str], threads: int) -> Path:
        """Return the file that such ceilings are kept in."""
        key = self._machine, cleared, threads, self._probes
        return self._directory / f"{digest(msgspec.json.encode(key))}.json"

    def _decode_file(self, content: bytes, cleared: Sequence[str], threads: int) -> Ceilings | str:
        """Return the ceilings in the content of a file, or why it holds none."""
        if len(content) > LARGEST_FILE:
            return f"stored ceilings are damaged: more than {LARGEST_FILE} bytes"
        try:
            stored = from_json(content, KeptCeilings)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            return f"stored ceilings are damaged: {error}"
        stored_key = stored.machine, stored.probes, stored.ceilings.cleared, stored.ceilings.threads
        if stored_key != (self._machine, self._probes, [*cleared], threads) or stored.ceilings.measured_at is None:
            return "stored ceilings are for another machine, other features or other threads"
        if stored != _with_hash(stored):
            return "stored ceilings are damaged: their hash differs"
        return stored.ceilings


def _with_hash(unsealed: KeptCeilings) -> KeptCeilings:
    """Return the kept ceilings with the hash of their content, however a file spaced that."""
    content = msgspec.json.encode(msgspec.structs.replace(unsealed, sha256=""))
    return msgspec.structs.replace(unsealed, sha256=hashlib.sha256(content).hexdigest())


def _time_of_change(path: Path) -> float:
    """Return the time at which a file was written; one that another process has just removed is the oldest."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
