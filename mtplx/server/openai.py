"""The server process: `python -m mtplx.server.openai serve --scheduler-mode ar_batch`, also reached by `mtplx serve`.

Owns the order of start-up and shut-down. Nothing that this module imports may import it: it may run as __main__.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import uvicorn

from mtplx import __version__
from mtplx.config import Parser, Settings, add_settings_arguments, resolve_settings
from mtplx.errors import ConfigError, EngineDeadError, MtplxError
from mtplx.server.app import create_app, observers_of
from mtplx.server.assemble import Assembly, assemble, start_up_lines
from mtplx.server.boundary import MAX_HEAD_BYTES
from mtplx.server.connections import ConnectionLimits, bounded_protocol
from mtplx.server.context import ServerContext
from mtplx.server.stream import Streams
from mtplx.server.worker import Stop, Worker
from mtplx.telemetry.logs import configure_logging
from mtplx.telemetry.record import Observer

if TYPE_CHECKING:
    from mtplx.telemetry.tracing import RequestTracer

DEATH_GRACE_S = 3.0  # a dead engine answers 503 this long, so that whoever watches sees why, then the process ends
FAREWELL_S = 1.0  # for the last words to clients when a second SIGINT cuts everything short
BACKSTOP_S = 60  # beyond the drain limit, which ends all by itself: a machine at a standstill must not cut last words
WORKER_JOIN_S = 10.0
LISTEN_BACKLOG = 2048
KEEP_ALIVE_S = 10  # longer than httpx, and so the official clients, keep a quiet connection: else both may act at once
SPARE_CONNECTIONS = 512  # beyond those whose requests wait, where nothing else is asked for
INTERRUPTED = 130

log = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(prog="python -m mtplx.server.openai", description="serve a model, OpenAI API")
    commands = parser.add_subparsers(dest="command", required=True)
    add_settings_arguments(commands.add_parser("serve", help="start the server"))
    try:
        settings = resolve_settings(parser.parse(sys.argv[1:] if argv is None else argv))
    except ConfigError as error:
        return _refuse(error)
    return serve(settings)


def serve(settings: Settings) -> int:
    """Runs a server until it is told to stop; returns the process's exit code.

    0 after SIGTERM or SIGINT (130 while loading), 1 for a model or an engine that failed, 2 for a refused setting.
    """
    configure_logging(settings.log_level, settings.log_format)
    try:
        _check_tracing(settings)
        with _bind(settings) as listener:
            service = Service(assemble(settings))
            # uvicorn raises the signal again once it has shut down; by then it has been obeyed
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, lambda *_: None)
            listener.listen(LISTEN_BACKLOG)
            return asyncio.run(service.run(listener))
    except MtplxError as error:
        return _refuse(error)
    except KeyboardInterrupt:  # while the model was loading; later it is a graceful shut-down
        return INTERRUPTED


def _refuse(error: MtplxError) -> int:
    print(f"mtplx: {error}", file=sys.stderr)
    return 2 if isinstance(error, ConfigError) else 1


def _bind(settings: Settings) -> socket.socket:
    """Takes the address before anything slow; nobody can connect until it listens, when there is a model to ask."""
    listener = socket.socket(socket.AF_INET6 if ":" in settings.host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        raise ConfigError(f"can't listen on {settings.host}:{settings.port}: {error.strerror}", "--port") from error
    return listener


class Service:
    """A worker, its streams and an HTTP server around one assembly; `run` it once, on one event loop."""

    def __init__(self, assembly: Assembly) -> None:
        self.worker = Worker(assembly.core)
        self.streams = Streams(
            assembly.tokenizer,
            assembly.limits,
            send=self.worker.put,
            read_status=lambda: self.worker.status,
            read_step_start=lambda: self.worker.step_started_at_s,
        )
        self._assembly = assembly
        self._tracer = _make_tracer(assembly)
        observers = (self._tracer.trace,) if self._tracer else ()
        config = _uvicorn_config(assembly, self.streams, observers)
        self._server = _Server(config, self.streams, assembly.settings.drain_timeout_s)

    async def run(self, listener: socket.socket) -> int:
        """Serves until stopped or dead; returns the exit code."""
        loop, recorder = asyncio.get_running_loop(), self._assembly.core.recorder
        self.worker.start(
            deliver=lambda outputs: _post(loop, recorder.delivery(self.streams.dispatch), outputs),
            on_death=lambda _error: _post(loop, self._on_death, loop),
        )
        for line in (*start_up_lines(self._assembly), f"address {_url(listener)}"):
            print(line, flush=True)
        await self._server.serve(sockets=[listener])
        survived = self.worker.is_alive
        self.worker.put(Stop())
        await asyncio.to_thread(self.worker.join, WORKER_JOIN_S)
        if self._tracer:
            await asyncio.to_thread(self._tracer.close)
        return 0 if survived else 1

    def stop(self) -> None:
        """Begins the graceful shut-down, as SIGTERM does; callable from any thread."""
        self._server.should_exit = True

    def _on_death(self, loop: asyncio.AbstractEventLoop) -> None:
        self.streams.fail_all(EngineDeadError("the engine has died; this server is about to exit"))
        loop.call_later(DEATH_GRACE_S, self.stop)


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _post(loop: asyncio.AbstractEventLoop, call: Callable[..., None], *args: object) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(call, *args)


def _check_tracing(settings: Settings) -> None:
    """Raises: ConfigError: traces are asked for, and what makes them isn't installed."""
    if settings.otlp_endpoint is None:
        return
    try:
        import mtplx.telemetry.tracing  # noqa: F401 - whether all that it needs is there
    except ImportError as error:
        raise ConfigError(
            f"--otlp-endpoint needs OpenTelemetry, which the extra mtplx[otel] brings: {error}", "--otlp-endpoint"
        ) from error


def _make_tracer(assembly: Assembly) -> RequestTracer | None:
    endpoint = assembly.settings.otlp_endpoint
    if endpoint is None:
        return None
    from mtplx.telemetry.tracing import RequestTracer, otlp_processor

    return RequestTracer(otlp_processor(endpoint), model_name=assembly.model_name, version=__version__)


def _uvicorn_config(assembly: Assembly, streams: Streams, observers: tuple[Observer, ...]) -> uvicorn.Config:
    settings = assembly.settings
    context = ServerContext(
        settings=settings,
        api_keys=assembly.api_keys,
        streams=streams,
        tokenizer=assembly.tokenizer,
        chat_template=assembly.chat_template,
        answer_format=assembly.answer_format,
        grammars=assembly.grammars,
        spec=assembly.core.runner.spec,
        runner_info=assembly.core.runner.info,
        recorder=assembly.core.recorder,
        model_name=assembly.model_name,
        created=int(time.time()),
        version=__version__,
        fingerprint=assembly.fingerprint,
        observers=observers,
    )
    limits = ConnectionLimits(
        settings.max_connections or settings.max_queue + SPARE_CONNECTIONS,
        settings.receive_timeout_s,
        settings.send_timeout_s,
    )
    app = create_app(context)
    return uvicorn.Config(
        app,
        http=bounded_protocol(limits, observers_of(app)),
        ws="none",
        lifespan="off",
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        timeout_keep_alive=KEEP_ALIVE_S,
        server_header=False,
        log_config=None,
        access_log=False,  # the app's own knows more
        timeout_graceful_shutdown=int(settings.drain_timeout_s) + BACKSTOP_S,
    )


class _Server(uvicorn.Server):
    """Drains on shutdown: admits nothing, lets live requests end up to the limit, then fails them in words.

    SIGINT a second time is the limit, now.
    """

    def __init__(self, config: uvicorn.Config, streams: Streams, drain_timeout_s: float) -> None:
        super().__init__(config)
        self._streams = streams
        self._drain_timeout_s = drain_timeout_s

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        error = EngineDeadError("the server is shutting down")
        self._streams.shut(error)
        asyncio.get_running_loop().call_later(self._drain_timeout_s, self._streams.fail_all, error)
        await super().shutdown(sockets)
        if self.force_exit:  # a second SIGINT: nobody waits for answers, but whoever does is told
            self._streams.fail_all(error)
            if answering := set(self.server_state.tasks):
                await asyncio.wait(answering, timeout=FAREWELL_S)


if __name__ == "__main__":
    sys.exit(main())
