"""What `opscope profile` is asked for: how a model is measured, and where."""

from __future__ import annotations

from typing import Annotated

from opscope.bundle.settings import ExperimentSettings, Limit, Text, option
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
            "Your model directory.",
            metavar="DIR",
            usual="$OPSCOPE_MODELS, else opscope-models",
            group="Model and inputs",
        ),
    ] = None
    lock: Annotated[
        LockMode,
        option(
            "If another run is measuring on the machine: wait in line up to lock-limit and then run alongside it; run "
            "alongside at once; or fail. Concurrent runs are marked.",
            metavar="wait|warn|fail",
            group="Target",
        ),
    ] = "wait"
    lock_limit: Annotated[
        Limit | None,
        option(
            "Maximum wait for a machine that another run uses; a named device is then an error.",
            metavar="SECONDS",
            usual="60, and none for a named device",
            group="Target",
        ),
    ] = None
    keep_going: Annotated[bool, option("Run all processes even if the first ones fail alike.", group="Repetitions")] = (
        False
    )
