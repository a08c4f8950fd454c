"""The thread that owns the engine: drains the inbox, steps, hands each step's outputs over in one call."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass

from mtplx.batching.state import FinishReason
from mtplx.server.engine import Cancel, EngineCore, SequenceOutput, Submit
from mtplx.telemetry.counters import EngineStatus

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Stop:
    """Ends the thread; whatever is still live fails."""


Message = Submit | Cancel | Stop
Deliver = Callable[[list[SequenceOutput]], None]


class Worker:
    """Runs an `EngineCore` on a thread of its own.

    `status` is a snapshot that is replaced after every step and every drained inbox, before the outputs are delivered:
    whoever has seen an answer also sees it gone from the counts (one that a stop string ended: a step later).
    """

    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self._inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._dead = False
        self.status: EngineStatus = core.status()

    def start(self, deliver: Deliver, on_death: Callable[[BaseException], None]) -> None:
        """Starts the thread, once. `deliver` is called on it with each step's outputs, `on_death` if it can't go on."""
        self._thread = threading.Thread(target=self._run, args=(deliver, on_death), name="mtplx-worker", daemon=True)
        self._thread.start()

    def put(self, message: Message) -> None:
        """Never blocks; callable from any thread."""
        self._inbox.put(message)

    @property
    def is_alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive() and not self._dead

    @property
    def step_started_at_s(self) -> float | None:
        """Monotonic clock at the start of the step in progress, None between steps."""
        return self._core.counters.step_started_at_s

    def join(self, timeout_s: float) -> bool:
        """Waits for the end of the thread that `start` made; True if it has ended."""
        assert self._thread is not None
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self, deliver: Deliver, on_death: Callable[[BaseException], None]) -> None:
        try:
            while self._drain_inbox(deliver):
                outputs = self._core.step()
                self.status = self._core.status()
                if outputs:
                    deliver(outputs)
            deliver(self._core.fail_all("the server is shutting down"))
        except BaseException as error:
            # The last line of defence: a silent dead thread behind a live port is the worst failure there is.
            log.exception("the worker has died")
            self._dead = True
            on_death(error)
        finally:
            self._core.runner.close()

    def _drain_inbox(self, deliver: Deliver) -> bool:
        """Applies all waiting messages, sleeping while there is no work; False once told to stop."""
        changed = False
        while not self._inbox.empty() or not self._core.has_work:
            if changed and self._inbox.empty():
                self.status = self._core.status()  # about to sleep: show what the messages did
            message = self._inbox.get()
            if isinstance(message, Stop):
                return False
            self._apply(message, deliver)
            changed = True
        if changed:
            self.status = self._core.status()
        return True

    def _apply(self, message: Submit | Cancel, deliver: Deliver) -> None:
        if isinstance(message, Cancel):
            self._core.cancel(message)
            return
        try:
            self._core.add(message)
        except Exception:  # what was checked can't fail; if it does, it must cost this request and not the server
            log.exception("sequence %d can't be taken up", message.seq_id)
            error = "the server failed on this request"
            deliver([SequenceOutput(message.seq_id, finish_reason=FinishReason.ERROR, error=error)])
