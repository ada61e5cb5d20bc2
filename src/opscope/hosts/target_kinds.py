"""Every kind of target: how it is written, what it means and what it can do, each said once.

The command line, configurations, their help, the published schema and the reference page take them from here. Help
texts are made of it, so it imports nothing; names are parsed in :mod:`opscope.experiment.target_names`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable


class TargetKind(NamedTuple):
    """A kind of target."""

    name: str  # the word that it is written with, before a colon where an address follows
    meaning: str  # one sentence for who chooses
    address: str = ""  # what an address names, for example HOST; empty where there is none
    missing: str = ""  # the question that a name without its address leaves open; empty where it may be left out
    here: bool = False  # it runs the runtime of this machine
    remote: bool = False  # it is another machine
    emulated: bool = False  # its times say nothing
    android: bool = False  # it has power profiles, and settings that a run changes and puts back
    # builds of executor_runner run there: its name may give one, and each variant of a configuration its own
    builds: bool = False
    only_builds: bool = False  # it runs nothing else, so that nothing can be switched off in it
    template: bool = False  # `opscope init` writes a configuration for it

    @property
    def form(self) -> str:
        """Return the written form, with an address that must or may follow the name."""
        if not self.address:
            return self.name
        return f"{self.name}:{self.address}" if self.missing else f"{self.name}[:{self.address}]"


AUTO = TargetKind("auto", "`native` if there is a C++ compiler, else `local`", here=True)
NATIVE = TargetKind(
    "native", "this machine, with opscope's own runner, built here once", "PYTHON", here=True, template=True
)
LOCAL = TargetKind("local", "this machine, with the runtime's Python bindings", "PYTHON", here=True, template=True)
RUNNER = TargetKind(
    "runner",
    "this machine, with an executor_runner that you built; its features are fixed at build time",
    "PATH",
    "needs a runner",
    builds=True,
    only_builds=True,
    template=True,
)
SSH = TargetKind(
    "ssh",
    "a device over ssh; with `?runner=PATH`, using an executor_runner that you built for it",
    "HOST",
    "needs a device",
    remote=True,
    builds=True,
)
ADB = TargetKind(
    "adb",
    "an Android device, by default the only one connected; `?runner=PATH` as for ssh",
    "SERIAL",
    remote=True,
    android=True,
    builds=True,
)
QEMU = TargetKind("qemu-aarch64", "64-bit Arm under an emulator: valid results, meaningless timings", emulated=True)

KINDS = (AUTO, NATIVE, LOCAL, RUNNER, SSH, ADB, QEMU)


def forms(kinds: Iterable[TargetKind]) -> str:
    """Return the written forms of kinds, as a list in a sentence."""
    return _join_with_or(kind.form for kind in kinds)


def names(kinds: Iterable[TargetKind]) -> str:
    """Return the names of kinds, as a list in a sentence."""
    return _join_with_or(kind.name for kind in kinds)


def _join_with_or(words: Iterable[str]) -> str:
    """Join words with commas and an "or"."""
    *most, last = words
    return f"{', '.join(most)} or {last}" if most else last
