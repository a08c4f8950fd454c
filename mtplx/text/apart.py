"""Renders a chat template in a process of its own, with limits that hold: a thread that loops can't be ended.

The process reads a template and its values from stdin as JSON, writes what came of them to stdout, and is gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from jinja2 import TemplateError

from mtplx.errors import OverloadedError, RequestError
from mtplx.text.sandbox import chat_environment, render
from mtplx.text.tools.history import with_readable_calls

CPU_S = 5
WALL_S = 60.0  # a backstop, long: a busy machine gives a process its CPU seconds late
MEMORY_BYTES = 2**30
OVER_LIMIT = "template_over_limit"


def render_apart(source: str, values: Mapping[str, Any], *, cpu_s: int = CPU_S) -> str:
    """The template's text for `values`, which must be JSON; blocks for as long as that takes, some tenths of a second.

    Raises:
        RequestError: as `render`; or, with the code OVER_LIMIT, it took too long or too much memory.
        OverloadedError: nothing came of it in a minute; it wasn't refused.
    """
    request = json.dumps({"source": source, "values": values, "cpu_s": cpu_s}).encode()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-m", "mtplx.text.apart"]
    try:
        child = subprocess.run(command, input=request, capture_output=True, timeout=WALL_S, env=environment)
        answer = json.loads(child.stdout)
    except subprocess.TimeoutExpired:
        raise OverloadedError("this machine is too busy to render a chat template; try again later") from None
    except ValueError:  # it was ended by a limit, and so said nothing
        limits = f"{cpu_s} seconds or {MEMORY_BYTES // 2**20} MiB"
        raise RequestError(f"the model's chat template takes more than {limits}", "messages", OVER_LIMIT) from None
    if answer["error"] is not None:
        raise RequestError(answer["error"], "messages")
    return str(answer["text"])


def _main() -> None:
    """The process's own part; says nothing where memory was short."""
    request = json.load(sys.stdin.buffer)
    _limit_this_process(request["cpu_s"])
    answer: dict[str, str | None] = {"text": None, "error": None}
    try:
        values = request["values"]
        values["messages"] = with_readable_calls(values["messages"], has_short_ids=False)
        answer["text"] = render(chat_environment().from_string(request["source"]), values)
    except RequestError as error:
        answer["error"] = str(error)
    except (TemplateError, SyntaxError, RecursionError):
        answer["error"] = "the model's chat template can't be compiled"
    except MemoryError:
        return
    json.dump(answer, sys.stdout)


def _limit_this_process(cpu_s: int) -> None:
    with contextlib.suppress(ImportError, OSError, ValueError):  # not all systems have all limits
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


if __name__ == "__main__":
    _main()
