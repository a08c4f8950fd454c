"""Time to first token of a request whose beginning another one has computed, over that of the first, in one run.

Each round has a beginning of its own. The first request computes it, the second shares it and adds tokens of its own;
the same second request with the cache off is the control. The answers' first tokens are compared.

Run: python -m benchmarks.prefix_cache
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.report import Row, criterion, median_and_spread, publish
from mtplx.batching.state import SchedulerMode, StopRules
from mtplx.config import load_settings
from mtplx.sampling_params import SamplingParams
from mtplx.server.assemble import assemble, build_core
from mtplx.server.engine import Cancel, EngineCore, Submit

MOST_OF_THE_FIRST = 0.2


@dataclass(frozen=True, slots=True)
class First:
    """A request's first token, and how long it took from its arrival at an idle engine."""

    token_id: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Round:
    computed: First
    shared: First
    control: First  # the request of `shared` where nothing is shared


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--shared", type=int, default=1024, help="tokens that both requests begin with")
    parser.add_argument("--own", type=int, default=32, help="tokens of each request's own")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--output", type=Path, help="where the JSON goes; default: the results folder")
    options = parser.parse_args()
    given = {
        "model": options.model,
        "threads": options.threads,
        "scheduler_mode": SchedulerMode.AR_BATCH,
        "kv_cache_tokens": 4 * (options.shared + options.own),
    }
    settings = load_settings({name: value for name, value in given.items() if value is not None})
    assembly = assemble(settings)
    runner = assembly.core.runner
    control = build_core(settings.model_copy(update={"prefix_cache": "off"}), runner)
    rounds = [play_round(assembly.core, control, options.shared, options.own, seed) for seed in range(options.rounds)]
    runner.close()
    publish(
        "prefix-cache",
        [
            row_of("first", [one.computed for one in rounds]),
            row_of("second, shared", [one.shared for one in rounds]),
            row_of("second, cache off", [one.control for one in rounds]),
        ],
        model=f"{options.model}, {options.shared} shared tokens and {options.own} of each request's own",
        output=options.output,
        tables={"criteria": list(criteria(rounds))},
    )


def play_round(core: EngineCore, control: EngineCore, num_shared: int, num_own: int, seed: int) -> Round:
    """Three requests, one after the other, on random tokens; the control writes over nothing that is still wanted."""
    rng, vocab_size = random.Random(seed), core.runner.spec.vocab_size
    shared = [rng.randrange(vocab_size) for _ in range(num_shared)]
    first, second = ((*shared, *(rng.randrange(vocab_size) for _ in range(num_own))) for _ in range(2))
    computed, reused = first_of(core, first, 3 * seed), first_of(core, second, 3 * seed + 1)
    found = Round(computed, reused, first_of(control, second, 3 * seed + 2))
    assert found.shared.token_id == found.control.token_id, "a hit has changed an answer"
    return found


def first_of(core: EngineCore, prompt_ids: Sequence[int], seq_id: int) -> First:
    """Runs one greedy request up to its first token."""
    params = SamplingParams(temperature=0)
    start_s = time.perf_counter()
    core.add(Submit(seq_id, tuple(prompt_ids), params, seed=0, choice=0, stops=StopRules(2)))
    outputs = core.step()
    while not outputs:
        outputs = core.step()
    seconds = time.perf_counter() - start_s
    core.cancel(Cancel(seq_id))
    return First(outputs[0].token_ids[0], seconds)


def row_of(request: str, found: Sequence[First]) -> Row:
    median_ms, spread_ms = median_and_spread([1000 * first.seconds for first in found])
    return {"request": request, "ms to the first token": median_ms, "spread": spread_ms}


def criteria(rounds: Sequence[Round]) -> list[Row]:
    return [
        criterion(
            "second over first, time to first token",
            [one.shared.seconds / one.computed.seconds for one in rounds],
            most=MOST_OF_THE_FIRST,
        )
    ]


if __name__ == "__main__":
    main()
