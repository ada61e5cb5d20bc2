"""Ctrl-C and the polite request to end, neither of which is lost."""

from __future__ import annotations

import signal
import sys
import threading
from typing import TYPE_CHECKING

from opscope.core.errors import InterruptedRunError

if TYPE_CHECKING:
    from types import FrameType

_MOMENT_SECONDS = 0.05


def catch_signals() -> None:
    """Treat SIGTERM like Ctrl-C, and give either again where Python had to drop what it raised.

    An exception cannot leave what Python runs while it disposes of an object: it is reported and forgotten, and the
    command would go on as if nobody had asked it to end.
    """
    signal.signal(signal.SIGTERM, _terminate)
    sys.unraisablehook = _give_again


def _terminate(_number: int, _frame: FrameType | None) -> None:
    """Leave the bundle in order, as after Ctrl-C."""
    raise InterruptedRunError("ended by a signal")


def _give_again(dropped: sys.UnraisableHookArgs) -> None:
    number = _number(dropped.exc_value)
    main_thread = threading.main_thread().ident
    if number is None or main_thread is None:
        sys.__unraisablehook__(dropped)
        return
    again = threading.Timer(_MOMENT_SECONDS, signal.pthread_kill, (main_thread, number))
    again.daemon = True
    again.start()


def _number(dropped: BaseException | None) -> signal.Signals | None:
    """The signal that raised it, if one did."""
    if isinstance(dropped, InterruptedRunError):
        return signal.SIGTERM
    return signal.SIGINT if isinstance(dropped, KeyboardInterrupt) else None
