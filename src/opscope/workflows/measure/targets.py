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
    """Check what a target has, what it lacks, and what would disturb a measurement there; nothing is measured.

    What the target needs to run models is sent to it.

    Raises:
        UsageError: there is no such target.
    """
    try:
        target_name = parse_target(name)
        target = EXPORTER.target(target_name)
        if target_name.kind.emulated:
            return [*_check_emulator(target), *_check_other_runtimes(target_name)]
        with target.reserved():
            return [*_check_device(target), *_check_other_runtimes(target_name)]
    except UsageError:
        raise
    except OpscopeError as error:
        return [problem_check(name.partition(":")[0], error)]


def restored_settings(name: str) -> list[Check]:
    """Put back what an earlier run has left changed on an Android device; nothing else is done there."""
    target_name = parse_target(name) if name else None
    if target_name is None or not target_name.kind.android:
        raise UsageError("only Android devices have settings to restore", where="--restore", hint="--target adb")
    return [settings_check(phone_settings(target_name.address))]


def _check_device(target: RunTarget) -> list[Check]:
    capabilities = target.capabilities()
    loader: list[Check] = []
    try:
        if capabilities.loader is not None:
            loader = [Check("loader", State.OK, capabilities.loader())]
        environment = target.environment()
    except OpscopeError as error:
        responds = Check("device", State.OK, "it responds and is not in use")
        part = "runtime" if capabilities.loader is None else "runner" if loader else "loader"
        failed = problem_check(part, error)
        return [responds, *_check_phone(capabilities.host, None), *_check_storage(capabilities.host), *loader, failed]
    state = target.conditions()
    return [
        Check("device", State.OK, _machine_text(environment)),
        *loader,
        Check("runtime", State.OK, _runtime_text(environment, capabilities)),
        *_check_storage(capabilities.host),
        *_check_phone(capabilities.host, state),
        switching_check(lambda: chosen_switch(target).probe),
        load_check(state),
        governor_check(environment),
        virtual_check(environment),
    ]


def _check_other_runtimes(target_name: TargetName) -> list[Check]:
    """Check whether models of the other installed runtimes run there; a runtime that never does is left out."""
    runtimes = [runtime for runtime in RUNTIMES if runtime is not EXPORTER and runtime.is_installed()]
    return [check for runtime in runtimes for check in _check_other_runtime(runtime, target_name)]


def _check_other_runtime(runtime: Runtime, target_name: TargetName) -> list[Check]:
    try:
        target = runtime.target(target_name)
        version = target.environment().versions[runtime.package()]
        chosen = chosen_switch(target)
    except UsageError:
        return []
    except OpscopeError as error:
        return [Check(runtime.name, State.NOTE, error.problem, error.hint or "")]
    return [Check(runtime.name, State.OK, f"{version}; its features are switched by {chosen.mechanism.value}")]


def _runtime_text(environment: Environment, capabilities: Capabilities) -> str:
    if capabilities.is_build:
        return f"your own build, {environment.versions[BUILD]}"
    return f"{EXPORTER.package()} {environment.versions.get(EXPORTER.package(), 'of an unknown version')}"


def _machine_text(environment: Environment) -> str:
    parts = (
        environment.system,
        environment.machine,
        environment.cpu,
        f"{environment.usable_cpus} CPUs" if environment.usable_cpus else None,
    )
    return ", ".join(part for part in parts if part)


def _check_storage(host: Host | None) -> list[Check]:
    """Check the room for files, where they are sent to a device."""
    storage = host.storage() if host else None
    if storage is None:
        return []
    room = "" if storage.free is None else f", {size_text(storage.free)} free"
    action = "free some space there, or name another directory at the end of the address: ?dir=PATH"
    if not storage.writable:
        return [Check("storage", State.PROBLEM, f"{storage.directory} is not writable: {storage.said}", action)]
    small = storage.free is not None and storage.free < _SPACE_LIMIT
    return [Check("storage", State.PROBLEM if small else State.OK, f"{storage.directory}{room}", action)]


def _check_phone(host: Host | None, state: Conditions | None) -> list[Check]:
    """Check a device that has settings: what an earlier run left changed, its thermal state and its battery."""
    if host is None or host.restored is None:
        return []
    checks = [settings_check(host.restored)]
    if state is None or state.phone is None:
        return checks
    return [*checks, *_check_thermal_state(state.phone), *_check_battery(state.phone)]


def settings_check(restored: Mapping[str, str | None]) -> Check:
    """Return the check of settings that an earlier run left changed on an Android device, and that were restored."""
    if not restored:
        return Check("settings", State.OK, "no earlier run left settings changed")
    text = ", ".join(f"{name} {'unset' if value is None else value}" for name, value in restored.items())
    return Check("settings", State.OK, f"restored to the state before an earlier run: {text}")


def _check_thermal_state(phone: PhoneState) -> list[Check]:
    if phone.thermal_status is None:
        return [Check("thermal state", State.NOTE, "cannot be read: throttling would go unnoticed")]
    if phone.thermal_status >= _THROTTLED:
        action = "let it cool down out of its case before measuring"
        return [Check("thermal state", State.NOTE, f"status {phone.thermal_status}: it throttles", action)]
    return [Check("thermal state", State.OK, f"status {phone.thermal_status}: it does not throttle")]


def _check_battery(phone: PhoneState) -> list[Check]:
    if phone.battery_percent is None:
        return []
    text = f"{phone.battery_percent} %, {'plugged in' if phone.plugged else 'not plugged in'}"
    if not phone.plugged and phone.battery_percent < _LOW_BATTERY:
        return [Check("battery", State.NOTE, text, "charge it: devices save power at low battery")]
    return [Check("battery", State.OK, text)]


def _check_emulator(target: RunTarget) -> list[Check]:
    from opscope.hosts.emulator import find_emulator

    emulator = find_emulator()
    state = State.NOTE if emulator.doubt else State.OK
    return [
        Check(
            "qemu", state, emulator.doubt or f"{emulator.text}: computes int8 with SME2 correctly", "install QEMU 11.1"
        ),
        Check("runtime", State.OK, f"{_runtime_text(target.environment(), target.capabilities())} for aarch64"),
        switching_check(lambda: chosen_switch(target).probe),
        Check("times", State.NOTE, "an emulated CPU gives valid results but meaningless timings"),
    ]


def target_running(
    model: str,
    name: str,
    *other_models: str,
    runtime: str | None = None,
    asked: Callable[[Path], AskedCalls] = lambda _: AskedCalls((), ()),
) -> RunTarget:
    """Return the target of a name that runs a model, and others of its runtime.

    ``asked`` returns what is called of an existing program. A ``runtime`` that is None follows from the model's format.
    """
    return runtime_of(model, runtime).target_for(
        parse_target(name), [Path(path) for path in (model, *other_models)], asked
    )


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
    """Return the target of several variants, each with its model and the name of its target.

    Variants with one runtime and one target name share a target.
    """
    keys = {variant: (runtime_of(*planned).name, name) for variant, (planned, name) in variants.items()}
    models: dict[tuple[str, str], list[PlannedModel]] = {}
    for variant, (planned, _) in variants.items():
        sharing = models.setdefault(keys[variant], [])
        sharing += [] if planned in sharing else [planned]
    target_by_key = {
        (runtime, name): target_running(
            first.model, name, *(planned.model for planned in others), runtime=first.runtime, asked=asked
        )
        for (runtime, name), (first, *others) in models.items()
    }
    if len(target_by_key) == 1:
        return next(iter(target_by_key.values()))
    return VariantTargets({variant: target_by_key[key] for variant, key in keys.items()})


def phone_settings(address: str) -> dict[str, str | None]:
    """Restore settings that an earlier run left changed on a device, by holding it for a moment; return them."""
    from opscope.hosts.adb.device import phone_device

    device = phone_device(address)
    with device.reserved():
        return device.restored


def phone_name(target: str | None, remote_device: str | None, power: str | None) -> str | None:
    """Return the name of a target from the command line's options; None if they name none.

    Raises:
        UsageError: the options contradict each other.
    """
    name = target
    if remote_device is not None:
        if target not in {None, ADB.name}:
            raise UsageError("an Android device", where="--remote-device", hint="leave out --target")
        name = f"{ADB.name}:{remote_device}"
    if power is None:
        return name
    target_name = parse_target(name) if name else None
    if target_name is None or not target_name.kind.android:
        raise UsageError("only Android devices have power profiles", where="--power", hint="--target adb")
    return f"{ADB.name}:{parse_address(target_name.address)._replace(power=power).text()}"


def on_phone(experiments: Experiments, name: str) -> Experiments:
    """Return experiments that run on another Android device than their file says.

    Raises:
        UsageError: the name is no Android device, the file's devices name their own targets, or nothing can be moved.
    """
    if not parse_target(name).kind.android:
        raise UsageError("only an Android device can be named here", where="--target", hint=ADB.form)
    device = next(
        (
            experiment.device
            for experiment in experiments.experiments
            if experiment.device and not experiment.needs_worker
        ),
        None,
    )
    if device:
        hint = f'leave it out, and set the address in the file: [devices.{device}] and below it target = "{name}"'
        raise UsageError("the file's devices name their own targets", where="--target", hint=hint)
    kinds = [kind_named(experiment.target) for experiment in experiments.experiments]
    movable = [
        experiment
        for experiment, kind in zip(experiments.experiments, kinds, strict=True)
        if kind.only_builds or kind.android
    ]
    if not movable:
        hint = "leave it out; only experiments with runners or the target adb can run on a named device"
        raise UsageError("no experiment of the file runs on Android", where="--target", hint=hint)
    moved = tuple(
        msgspec.structs.replace(experiment, target=name) if experiment in movable else experiment
        for experiment in experiments.experiments
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
        """Return the kind of all targets, and every distinct address."""
        targets = [target.describe() for target in self._targets.values()]
        addresses = dict.fromkeys(
            target_description.address for target_description in targets if target_description.address
        )
        return msgspec.structs.replace(targets[0], address=", ".join(addresses))

    def reserved(self, request: LockRequest | None = None) -> AbstractContextManager[MachineHold | None]:
        """Hold the first target: all others are on the same machine."""
        return self._first.reserved(request)

    def capabilities(self) -> Capabilities:
        """Return what the first target can do; nothing is traced if one of the targets traces nothing."""
        by_target = [target.capabilities() for target in self._targets.values()]
        untraceable = next((is_single.untraceable for is_single in by_target if is_single.untraceable), None)
        stand_in = next((is_single.stand_in for is_single in by_target if is_single.stand_in), None)
        always = any(is_single.always_traces for is_single in by_target)
        shared = by_target[0]._replace(untraceable=untraceable, stand_in=stand_in, always_traces=always)
        is_single = len(dict.fromkeys(self._targets.values())) == 1
        return shared if is_single else shared._replace(backend=None, libraries=None)

    def of(self, variant: str) -> RunTarget:
        """Return the target of a variant."""
        try:
            return self._targets[variant]
        except KeyError:
            raise RunError(f"no target given for the variant {variant}") from None

    def probe(self) -> ProbeAnswer:
        """Return the CPU's features as the first target sees them."""
        return self._first.probe()

    def environment(self) -> Environment:
        """Describe the machine as the first target does, with the versions of all runtimes."""
        environments = [target.environment() for target in dict.fromkeys(self._targets.values())]
        names = dict.fromkeys(name for environment in environments for name in environment.versions)
        distinct = {
            name: dict.fromkeys(
                environment.versions[name] for environment in environments if name in environment.versions
            )
            for name in names
        }
        versions = {name: ", ".join(texts) for name, texts in distinct.items()}
        return msgspec.structs.replace(environments[0], versions=versions)

    def conditions(self) -> Conditions:
        """Return the state of the machine now."""
        return self._first.conditions()

    def execute(self, job: Job, directory: Path) -> JobOutcome:
        """Run a job where its variant runs."""
        return self.of(directory.parent.name).execute(job, directory)

    def ceilings(self, variant: Variant) -> Ceilings | None:
        """Measure the ceilings as the first target does."""
        return self._first.ceilings(variant)

    def identity(self) -> MachineIdentity | None:
        """Return what the ceilings of the first target depend on; None if it keeps none."""
        return self._first.identity()

    def ceilings_again(self, sample: Ceilings) -> Ceilings:
        """Measure some ceilings again as the first target does."""
        return self._first.ceilings_again(sample)
