"""Work for workers that die in it."""

from __future__ import annotations

import os
import signal
from pathlib import Path


def die_on_first_tries(argument: tuple[str, str, int]) -> tuple[str, int]:
    """Kill this process so many times, by SIGKILL in mid-task, then return the name and the tries before.

    The argument is a directory in which the processes that began leave their numbers, a name, and how many die.
    """
    directory, name, deaths = argument
    tries = len(list(Path(directory).glob(f"{name}-*")))
    Path(directory, f"{name}-{os.getpid()}").touch()
    if tries < deaths:
        os.kill(os.getpid(), signal.SIGKILL)
    return name, tries
