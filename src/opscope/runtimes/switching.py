"""Switches of CPU features that work from outside of the runtime's libraries."""

from __future__ import annotations

import hashlib
import shutil
from typing import TYPE_CHECKING, NamedTuple

from opscope.bundle.bundle import SWITCH_SCRATCH
from opscope.bundle.manifest import Mechanism
from opscope.core.errors import FeatureError
from opscope.core.files import sha256_of
from opscope.experiment.protocol import ProbeAnswer
from opscope.experiment.target import SwitchOffer
from opscope.machine.cpu_reading import fixed_fields
from opscope.machine.isa import WITHOUT_SWITCH, stays_on
from opscope.machine.processor import read_processor
from opscope.machine.switch.switch import ARCHITECTURES, fields_here, obstacle, prepared, prepared_for, switch_library

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from opscope.experiment.protocol import Job
    from opscope.hosts.host import Host
    from opscope.machine.switch.switch import PreparedSwitch


class LibrarySwitch(NamedTuple):
    """Switches CPU features for the libraries of a runtime."""

    host: Host  # where its processes run
    libraries: Sequence[Path]  # that ask for the features by which kernels are chosen
    program: Path | None = None  # that is started; None: the Python that runs this
    # asks for the features, where the processes run behind an emulator or on another machine; else None
    foreign: Callable[[], ProbeAnswer] | None = None

    def offer(self, mechanism: Mechanism) -> SwitchOffer:
        """Return the offer of a mechanism for the libraries. Raises FeatureError if it cannot be used here."""
        if self.host.remote and self.foreign is None:
            problem = f"{mechanism.value} switches features on this machine only, not over {self.host.name}"
            raise FeatureError(problem, hint=WITHOUT_SWITCH)
        if self.foreign is None:
            refusal = obstacle(mechanism, self.program)
            if refusal:
                raise FeatureError(refusal, hint=WITHOUT_SWITCH)
            arch, fields = fields_here()
            probe = ProbeAnswer(arch, fields, None, 0, {}, fixed_fields(read_processor()))
        elif self.host.remote or mechanism is Mechanism.HWCAP:
            probe = self.foreign()
            if probe.arch != ARCHITECTURES[mechanism]:
                problem = f"{mechanism.value} needs Linux on {ARCHITECTURES[mechanism]}, this is {probe.arch}"
                raise FeatureError(problem, where=self.host.name, hint=WITHOUT_SWITCH)
        else:
            raise FeatureError(f"{mechanism.value} does not work under an emulator", hint=WITHOUT_SWITCH)
        hashes = [switch_library(mechanism), *self.libraries]
        return SwitchOffer(mechanism, probe, hashlib.sha256("".join(map(sha256_of, hashes)).encode()).hexdigest())

    def prepared(self, job: Job, directory: Path) -> PreparedSwitch:
        """Prepare what the process of a job needs so that its features are switched."""
        return self.prepared_with(job.variant.switch or Mechanism.CPUINFO, job.variant.cleared, directory)

    def prepared_with(self, mechanism: Mechanism, clear: Sequence[str], directory: Path) -> PreparedSwitch:
        """Prepare what a process needs so that a mechanism clears features in it.

        Raises FeatureError if one cannot be cleared.
        """
        wrong = set(clear) & set(self._fixed_fields()) if mechanism is Mechanism.HWCAP else ()
        if wrong:
            raise stays_on(sorted(wrong))
        scratch = directory / SWITCH_SCRATCH
        scratch.mkdir(exist_ok=True)
        if self.foreign is not None:
            send = (lambda files: self.host.provide("switch", files)) if self.host.remote else None
            return prepared_for(mechanism, self.libraries, clear, scratch, send)
        return prepared(mechanism, self.libraries, clear, scratch, self.program)

    def _fixed_fields(self) -> Sequence[str]:
        """Return the CPU fields that libraries set whatever a switch answers."""
        return self.foreign().fixed if self.foreign else fixed_fields(read_processor())


def nothing_to_clear(library: Path) -> FeatureError:
    """Return the error that says why features cannot be cleared in a library that hides its variables."""
    problem = f"{library.name} has no symbol cpuinfo_isa, so it cannot be cleared"
    return FeatureError(problem, where=library, hint=WITHOUT_SWITCH)


def is_switched_outside(job: Job) -> bool:
    """Return whether the process of a job must be started with a library that switches features from outside."""
    return job.variant.switch not in {None, Mechanism.CPUINFO}


def brought_by(switch: PreparedSwitch | None) -> Mapping[str, Path]:
    """Return where to put the report that a process on another machine leaves, by its file name.

    Empty without a switch.
    """
    return {switch.report.name: switch.report} if switch else {}


def variables_of(switch: PreparedSwitch | None) -> Mapping[str, str]:
    """Return the environment variables that a switch adds to a process; empty without a switch."""
    return switch.variables if switch else {}


def record_of(switch: PreparedSwitch | None) -> str | None:
    """Return the path of the file with a switch's counters; None without a switch."""
    return None if switch is None else str(switch.record)


def cleared_away(directory: Path) -> None:
    """Remove what :meth:`LibrarySwitch.prepared` left in a directory."""
    shutil.rmtree(directory / SWITCH_SCRATCH, ignore_errors=True)
