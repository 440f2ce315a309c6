"""Signals by which a cluster takes its machine back: SIGTERM and SIGUSR1 end a run after the present step."""

import signal
import threading
from types import FrameType
from typing import Any

SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGUSR1") if hasattr(signal, name))


class StopSignals:
    """Within it, the signals are noted instead of ending the process; ``received`` is the last one's name.

    Only a main thread can receive signals: in any other this changes nothing.
    """

    def __init__(self) -> None:
        self.received: str | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        self.received = signal.Signals(number).name


def leave_to_the_parent(_: int = 0) -> None:
    """For a loader's worker: a signal to the whole job must not end the workers before the last step has its data."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
