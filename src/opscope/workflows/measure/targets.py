"""Where a model is run, by name, and whether a target elsewhere is ready: a device, or an emulated CPU.

Android devices are named by their addresses, and have settings and options of the command line. Where each variant has
a target of its own, one target is made of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from opscope.bundle.manifest import BUILD
from opscope.core.errors import OpscopeError, RunError, UsageError
from opscope.core.printable import shell_command
from opscope.core.units import size_text
from opscope.experiment.checks import (
    Check,
    State,
    governor_check,
    load_check,
    problem_check,
    switching_check,
    virtual_check,
)
from opscope.experiment.planned import PlannedModel
from opscope.experiment.target import RunTarget
from opscope.experiment.target_names import kind_named, parse_target
from opscope.hosts.adb.adb import parse_address
from opscope.hosts.target_kinds import ADB
from opscope.runtimes.registry import EXPORTER, RUNTIMES, runtime_of
from opscope.runtimes.runtime import AskedCalls
from opscope.workflows.measure.variants import chosen_switch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from opscope.bundle.manifest import Conditions, Environment, Manifest, PhoneState, Target, Variant
    from opscope.experiment.planned import Experiments
    from opscope.experiment.protocol import Job, ProbeAnswer
    from opscope.experiment.target import Capabilities, JobOutcome
    from opscope.experiment.target_names import TargetName
    from opscope.hosts.host import Host
    from opscope.hosts.lock import LockRequest, MachineHold
    from opscope.machine.ceilings.cache import MachineIdentity
    from opscope.program.ceilings import Ceilings
    from opscope.runtimes.runtime import Runtime


_SPACE_LIMIT = 100 << 20
_THROTTLED = 2
"""Android's THERMAL_STATUS_MODERATE, the first one at which its documents speak of throttling."""
_LOW_BATTERY = 20


def target_checks(name: str) -> list[Check]:
    """What a target has, what it lacks, and what would disturb a measurement there.

    Nothing is measured. What the target needs to run models is sent to it.
    """
    try:
        named = parse_target(name)
        target = EXPORTER.target(named)
        if named.kind.emulated:
            return [*_emulated(target), *_others(named)]
        with target.reserved():
            return [*_device(target), *_others(named)]
    except UsageError:
        raise
    except OpscopeError as error:
        return [problem_check(name.partition(":")[0], error)]


def restored_settings(name: str) -> list[Check]:
    """Put back what an earlier run has left changed on an Android device; nothing else is done there."""
    named = parse_target(name) if name else None
    if named is None or not named.kind.android:
        raise UsageError("only Android devices have settings to restore", where="--restore", hint="--target adb")
    return [settings_check(phone_settings(named.address))]


def _device(target: RunTarget) -> list[Check]:
    able = target.capabilities()
    loader: list[Check] = []
    try:
        if able.loader is not None:
            loader = [Check("loader", State.OK, able.loader())]
        environment = target.environment()
    except OpscopeError as error:
        seen = Check("device", State.OK, "it responds and is not in use")
        part = "runtime" if able.loader is None else "runner" if loader else "loader"
        failed = problem_check(part, error)
        return [seen, *_settings(able.host, None), *_storage(able.host), *loader, failed]
    state = target.conditions()
    return [
        Check("device", State.OK, _what(environment)),
        *loader,
        Check("runtime", State.OK, _runtime(environment, able)),
        *_storage(able.host),
        *_settings(able.host, state),
        switching_check(lambda: chosen_switch(target).probe),
        load_check(state),
        governor_check(environment),
        virtual_check(environment),
    ]


def _others(named: TargetName) -> list[Check]:
    """Whether models of the other runtimes that are installed here run there; those that never do are left out."""
    others = [one for one in RUNTIMES if one is not EXPORTER and one.is_installed()]
    return [check for runtime in others for check in _other(runtime, named)]


def _other(runtime: Runtime, named: TargetName) -> list[Check]:
    try:
        target = runtime.target(named)
        version = target.environment().versions[runtime.package()]
        chosen = chosen_switch(target)
    except UsageError:
        return []
    except OpscopeError as error:
        return [Check(runtime.name, State.NOTE, error.problem, error.hint or "")]
    return [Check(runtime.name, State.OK, f"{version}; its features are switched by {chosen.mechanism.value}")]


def _runtime(environment: Environment, able: Capabilities) -> str:
    if able.is_build:
        return f"your own build, {environment.versions[BUILD]}"
    return f"{EXPORTER.package()} {environment.versions.get(EXPORTER.package(), 'of an unknown version')}"


def _what(environment: Environment) -> str:
    parts = (
        environment.system,
        environment.machine,
        environment.cpu,
        f"{environment.usable_cpus} CPUs" if environment.usable_cpus else None,
    )
    return ", ".join(part for part in parts if part)


def _storage(host: Host | None) -> list[Check]:
    """Room for files, where they are sent to a device."""
    storage = host.storage() if host else None
    if storage is None:
        return []
    room = "" if storage.free is None else f", {size_text(storage.free)} free"
    action = "free some space there, or name another directory at the end of the address: ?dir=PATH"
    if not storage.writable:
        return [Check("storage", State.PROBLEM, f"{storage.directory} is not writable: {storage.said}", action)]
    small = storage.free is not None and storage.free < _SPACE_LIMIT
    return [Check("storage", State.PROBLEM if small else State.OK, f"{storage.directory}{room}", action)]


def _settings(host: Host | None, state: Conditions | None) -> list[Check]:
    """What a device with settings has: those to put back, a thermal state, a battery."""
    if host is None or host.restored is None:
        return []
    checks = [settings_check(host.restored)]
    if state is None or state.phone is None:
        return checks
    return [*checks, *_thermal(state.phone), *_battery(state.phone)]


def settings_check(restored: Mapping[str, str | None]) -> Check:
    """Settings of an Android device that an earlier run had left changed, and that were put back."""
    if not restored:
        return Check("settings", State.OK, "no earlier run left settings changed")
    text = ", ".join(f"{name} {'unset' if value is None else value}" for name, value in restored.items())
    return Check("settings", State.OK, f"restored to the state before an earlier run: {text}")


def _thermal(phone: PhoneState) -> list[Check]:
    if phone.thermal_status is None:
        return [Check("thermal state", State.NOTE, "cannot be read: throttling would go unnoticed")]
    if phone.thermal_status >= _THROTTLED:
        action = "let it cool down out of its case before measuring"
        return [Check("thermal state", State.NOTE, f"status {phone.thermal_status}: it throttles", action)]
    return [Check("thermal state", State.OK, f"status {phone.thermal_status}: it does not throttle")]


def _battery(phone: PhoneState) -> list[Check]:
    if phone.battery_percent is None:
        return []
    text = f"{phone.battery_percent} %, {'plugged in' if phone.plugged else 'not plugged in'}"
    if not phone.plugged and phone.battery_percent < _LOW_BATTERY:
        return [Check("battery", State.NOTE, text, "charge it: devices save power at low battery")]
    return [Check("battery", State.OK, text)]


def _emulated(target: RunTarget) -> list[Check]:
    from opscope.hosts.emulator import find_emulator

    emulator = find_emulator()
    state = State.NOTE if emulator.doubt else State.OK
    return [
        Check(
            "qemu", state, emulator.doubt or f"{emulator.text}: computes int8 with SME2 correctly", "install QEMU 11.1"
        ),
        Check("runtime", State.OK, f"{_runtime(target.environment(), target.capabilities())} for aarch64"),
        switching_check(lambda: chosen_switch(target).probe),
        Check("times", State.NOTE, "an emulated CPU gives valid results but meaningless timings"),
    ]


def target_running(
    model: str,
    name: str,
    *others: str,
    runtime: str | None = None,
    asked: Callable[[Path], AskedCalls] = lambda _: AskedCalls((), ()),
) -> RunTarget:
    """The target of a name for a model, and for others of its runtime: that of the runtime, which may be named.

    ``asked`` tells what is called of a program that is one already.
    """
    return runtime_of(model, runtime).target_for(parse_target(name), [Path(one) for one in (model, *others)], asked)


def recorded_target(manifest: Manifest, home: Path, stated: str) -> RunTarget:
    """Return the target that a bundle was begun on, for the bundle's own programs.

    An address in a manifest is a program that would be started or a machine that would be connected to, and the bundle
    may come from somebody else. It is only used if the user names it, too.

    Args:
        manifest: of the bundle.
        home: directory of the bundle.
        stated: name of the target as the user gave it; ``auto`` if none was given.

    Raises:
        UsageError: the manifest records an address, and ``stated`` is not that target.
    """
    asked_calls = AskedCalls(manifest.plan.calls, manifest.plan.inputs)
    for target in (manifest.target, *manifest.targets.values()):
        if target.address and target.name != stated:
            problem = f"the bundle was begun on {target.name}, which names a program or a device that would be used"
            hint = f"if you trust it, name it again: {shell_command(['--target', target.name])}"
            raise UsageError(problem, where="--target", hint=hint)
    if not manifest.programs:
        program, runtime = str(home / manifest.model.program), manifest.variants[0].runtime
        return target_running(program, manifest.target.name, runtime=runtime, asked=lambda _: asked_calls)
    programs = {v.name: str(home / manifest.model_of(v.name).program) for v in manifest.variants}
    variants = {
        v.name: (PlannedModel(programs[v.name], v.runtime), manifest.target_of(v.name).name) for v in manifest.variants
    }
    return targets_running(variants, lambda _: asked_calls)


def targets_running(variants: Mapping[str, tuple[PlannedModel, str]], asked: Callable[[Path], AskedCalls]) -> RunTarget:
    """The target of several variants: one for each runtime among their models."""
    places = {own: (runtime_of(*planned).name, name) for own, (planned, name) in variants.items()}
    models: dict[tuple[str, str], list[PlannedModel]] = {}
    for own, (planned, _) in variants.items():
        same = models.setdefault(places[own], [])
        same += [] if planned in same else [planned]
    made = {
        key: target_running(own[0].model, key[1], *(one.model for one in own[1:]), runtime=own[0].runtime, asked=asked)
        for key, own in models.items()
    }
    if len(made) == 1:
        return next(iter(made.values()))
    return VariantTargets({own: made[place] for own, place in places.items()})


def phone_settings(address: str) -> dict[str, str | None]:
    """Settings that an earlier run had left changed on a device, as they were put back by holding it for a moment."""
    from opscope.hosts.adb.device import phone_device

    device = phone_device(address)
    with device.reserved():
        return device.restored


def phone_name(target: str | None, remote_device: str | None, power: str | None) -> str | None:
    """The name of a target, from what the command line says in several options."""
    name = target
    if remote_device is not None:
        if target not in {None, ADB.name}:
            raise UsageError("an Android device", where="--remote-device", hint="leave out --target")
        name = f"{ADB.name}:{remote_device}"
    if power is None:
        return name
    named = parse_target(name) if name else None
    if named is None or not named.kind.android:
        raise UsageError("only Android devices have power profiles", where="--power", hint="--target adb")
    return f"{ADB.name}:{parse_address(named.address)._replace(power=power).text()}"


def on_phone(experiments: Experiments, name: str) -> Experiments:
    """Experiments as they run on another device than their file says."""
    if not parse_target(name).kind.android:
        raise UsageError("only an Android device can be named here", where="--target", hint=ADB.form)
    named = next((one.device for one in experiments.experiments if one.device and not one.needs_worker), None)
    if named:
        hint = f'leave it out, and set the address in the file: [devices.{named}] and below it target = "{name}"'
        raise UsageError("the file's devices name their own targets", where="--target", hint=hint)
    kinds = [kind_named(one.target) for one in experiments.experiments]
    movable = [
        one for one, kind in zip(experiments.experiments, kinds, strict=True) if kind.only_builds or kind.android
    ]
    if not movable:
        hint = "leave it out; only experiments with runners or the target adb can run on a named device"
        raise UsageError("no experiment of the file runs on Android", where="--target", hint=hint)
    moved = tuple(
        msgspec.structs.replace(one, target=name) if one in movable else one for one in experiments.experiments
    )
    return msgspec.structs.replace(experiments, experiments=moved)


class VariantTargets(RunTarget):
    """Runs the jobs of each variant where that variant runs.

    Their runtimes may differ, the machine may not: it is asked, held and described by the first. A job's variant is
    told by its directory, which lies in that of its variant (``opscope.bundle.bundle``).
    """

    def __init__(self, targets: Mapping[str, RunTarget]) -> None:
        self._targets = dict(targets)
        self._first = next(iter(self._targets.values()))

    def describe(self) -> Target:
        """Kind of all targets; every distinct address."""
        targets = [target.describe() for target in self._targets.values()]
        addresses = dict.fromkeys(one.address for one in targets if one.address)
        return msgspec.structs.replace(targets[0], address=", ".join(addresses))

    def reserved(self, request: LockRequest | None = None) -> AbstractContextManager[MachineHold | None]:
        """Hold the first target: all others are on the same machine."""
        return self._first.reserved(request)

    def capabilities(self) -> Capabilities:
        """What the first target can and cannot do; nothing is traced where one of them cannot be."""
        each = [target.capabilities() for target in self._targets.values()]
        untraceable = next((one.untraceable for one in each if one.untraceable), None)
        stand_in = next((one.stand_in for one in each if one.stand_in), None)
        always = any(one.always_traces for one in each)
        shared = each[0]._replace(untraceable=untraceable, stand_in=stand_in, always_traces=always)
        one = len(dict.fromkeys(self._targets.values())) == 1
        return shared if one else shared._replace(backend=None, libraries=None)

    def of(self, variant: str) -> RunTarget:
        """The target of a variant."""
        try:
            return self._targets[variant]
        except KeyError:
            raise RunError(f"no target given for the variant {variant}") from None

    def probe(self) -> ProbeAnswer:
        """The CPU's features, as the first target tells them."""
        return self._first.probe()

    def environment(self) -> Environment:
        """The machine as the first target tells it, with the versions of all runtimes, and all versions of one."""
        environments = [target.environment() for target in dict.fromkeys(self._targets.values())]
        names = dict.fromkeys(name for one in environments for name in one.versions)
        each = {
            name: dict.fromkeys(one.versions[name] for one in environments if name in one.versions) for name in names
        }
        versions = {name: ", ".join(own) for name, own in each.items()}
        return msgspec.structs.replace(environments[0], versions=versions)

    def conditions(self) -> Conditions:
        """The state of the machine now."""
        return self._first.conditions()

    def execute(self, job: Job, directory: Path) -> JobOutcome:
        """Run a job where its variant runs."""
        return self.of(directory.parent.name).execute(job, directory)

    def ceilings(self, variant: Variant) -> Ceilings | None:
        """The ceilings, as the first target measures them."""
        return self._first.ceilings(variant)

    def identity(self) -> MachineIdentity | None:
        """What the ceilings of the first target depend on; None where it keeps none."""
        return self._first.identity()

    def ceilings_again(self, sample: Ceilings) -> Ceilings:
        """The same ceilings as these, as the first target measures them again."""
        return self._first.ceilings_again(sample)
