"""What `opscope profile` is asked for: how a model is measured, and where."""

from __future__ import annotations

from typing import Annotated

from opscope.bundle.settings import ExperimentSettings, Text, option
from opscope.hosts.lock import LockMode  # noqa: TC001 - msgspec reads the annotations at run time
from opscope.hosts.target_kinds import AUTO, KINDS, forms


class Settings(ExperimentSettings, frozen=True, kw_only=True):
    """How a model is profiled, and where; each field says itself what it means."""

    target: Annotated[Text, option(f"Where to run: {forms(KINDS)}.", metavar="NAME", group="Target", common=True)] = (
        AUTO.name
    )
    models: Annotated[
        Text | None,
        option(
            "Your directory of models.",
            metavar="DIR",
            usual="$OPSCOPE_MODELS, else opscope-models",
            group="Model and inputs",
        ),
    ] = None
    lock: Annotated[
        LockMode,
        option(
            "When another run measures on the machine: wait for it, at most 60 s, and then run beside it (a device "
            "with a name in a configuration: until it is free); run beside it at once; or fail. Runs beside each "
            "other are marked.",
            metavar="wait|warn|fail",
            group="Target",
        ),
    ] = "wait"
    keep_going: Annotated[
        bool, option("Run all processes although the first ones failed alike.", group="Repetitions")
    ] = False
