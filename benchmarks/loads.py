"""Loads of requests that share much, and one that shares nothing: made from a seed, in chat form, without a model.

Each load is a list in the order of arrival. Another seed gives other documents, names and numbers, so that a server
can't know an answer from the round before.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.engines import PROMPTS

SAMPLES_A_PROMPT = 8
TURNS_A_TASK = 5
Message = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """One answer that is asked for; of several samples of one prompt each has its number in `choice`."""

    messages: tuple[Message, ...]
    choice: int = 0


def samples(number: int, seed: int) -> list[LoadRequest]:
    """n samples of one prompt, for one prompt after the other: sums in words, of which a vote takes the likeliest."""
    rng = random.Random(f"samples {seed}")
    questions = [_sum_in_words(rng) for _ in range(-(-number // SAMPLES_A_PROMPT))]
    task = "Solve the problem step by step. First repeat what is given, then calculate, then say the answer."
    return [
        LoadRequest(_chat(task, questions[index // SAMPLES_A_PROMPT]), choice=index % SAMPLES_A_PROMPT)
        for index in range(number)
    ]


def filled_template(number: int, seed: int) -> list[LoadRequest]:
    """One prompt with examples, filled in with other facts each time; the answers have one form."""
    rng = random.Random(f"template {seed}")
    example, *cases = (_case(rng) for _ in range(number + 1))
    rules = (
        "Write the delivery notice for each order, in exactly the form of the example.\n\n"
        f"Order: {example.order}\nNotice: {example.notice}"
    )
    return [LoadRequest(_chat(rules, f"Order: {case.order}\nNotice:")) for case in cases]


def agent_turns(number: int, seed: int) -> list[LoadRequest]:
    """Conversations that grow by a tool's output, which is quoted again in the turns after it."""
    rng = random.Random(f"agent {seed}")
    requests: list[LoadRequest] = []
    while len(requests) < number:
        names = rng.sample(_FILES, TURNS_A_TASK)
        listing = "\n".join(f"{name}  {rng.randint(100, 9999)} bytes  {rng.choice(_STATES)}" for name in names)
        messages = [*_chat("You are an agent. Quote the tool's output line by line.", f"TOOL OUTPUT\n{listing}")]
        for name in names:
            requests.append(LoadRequest(tuple(messages)))
            messages.append({"role": "assistant", "content": f"TOOL OUTPUT\n{listing}"})
            listing = listing.replace(f"{name}  ", f"{name}  (checked) ", 1)
            messages.append({"role": "user", "content": f"TOOL OUTPUT\n{listing}"})
    return requests[:number]


def edits(number: int, seed: int) -> list[LoadRequest]:
    """One document and many wishes for a small change of it; each answer is nearly the document."""
    rng = random.Random(f"edits {seed}")
    names = rng.sample(_PEOPLE, 4)
    document = f"{names[0]} and {names[1]} live in {rng.choice(_PLACES)}. {_sentences(rng, 6, names)}"
    task = "Repeat the text word for word, with the one change that is asked for.\n\nText: " + document
    return [
        LoadRequest(_chat(task, f"Write {other} instead of {rng.choice(names)}, and repeat the whole text."))
        for other in (f"{rng.choice(_PEOPLE)} {index}" for index in range(number))
    ]


def unshared(number: int, seed: int) -> list[LoadRequest]:
    """Held-out conversations that have nothing to do with each other."""
    entries = [json.loads(line) for line in PROMPTS.read_text(encoding="utf-8").splitlines()]
    random.Random(f"unshared {seed}").shuffle(entries)
    return [LoadRequest(tuple(entries[index % len(entries)]["messages"])) for index in range(number)]


LOADS: Mapping[str, Callable[[int, int], list[LoadRequest]]] = {
    "samples": samples,
    "template": filled_template,
    "agent": agent_turns,
    "edits": edits,
    "unshared": unshared,
}
"""By name: from a number of requests and a seed to the load."""


@dataclass(frozen=True, slots=True)
class _Case:
    order: str
    notice: str


def _case(rng: random.Random) -> _Case:
    name, place, thing = rng.choice(_PEOPLE), rng.choice(_PLACES), rng.choice(_THINGS)
    number, day = rng.randint(1000, 9999), rng.choice(_DAYS)
    return _Case(
        f"{number}; {name}; {place}; {thing}; {day}",
        f"Dear {name}, thank you for your order number {number}. We are happy to tell you that {thing} will be brought "
        f"to your door in {place} on {day} between nine and twelve. If you are not at home, our driver will leave a "
        "card with a telephone number. Please have your order number at hand when you call us.",
    )


def _sum_in_words(rng: random.Random) -> str:
    name, trade, place = rng.choice(_PEOPLE), rng.choice(_TRADES), rng.choice(_PLACES)
    first, second = rng.sample(_DAYS, 2)
    return (
        f"{name}, the {trade}, sells {rng.randint(11, 60)} lamps in {place} on {first} and {rng.randint(11, 60)} lamps "
        f"on {second}. Each lamp costs {rng.randint(3, 9)} coins, and {name} pays {rng.randint(20, 90)} coins for the "
        f"place at the market. How many coins does {name} have in the end?"
    )


def _chat(system: str, user: str) -> tuple[Message, ...]:
    return ({"role": "system", "content": system}, {"role": "user", "content": user})


def _sentences(rng: random.Random, number: int, names: Sequence[str] | None = None) -> str:
    return " ".join(
        f"On {rng.choice(_DAYS)} {rng.choice(names or _PEOPLE)}, the {rng.choice(_TRADES)}, brought "
        f"{rng.choice(_THINGS)} from {rng.choice(_PLACES)} and everybody was {rng.choice(_MOODS)}."
        for _ in range(number)
    )


_PEOPLE = ("Anna", "Boris", "Chidi", "Dora", "Emil", "Fatima", "Goran", "Hana", "Ivo", "Jamal", "Kirsten", "Luis")
_PLACES = ("the harbour", "Lindau", "the old mill", "Porto", "the market square", "Tromso", "the valley", "Split")
_TRADES = ("baker", "clockmaker", "sailor", "gardener", "painter", "doctor", "shepherd", "tailor")
_THINGS = ("a silver key", "two loaves of bread", "a broken lamp", "an old map", "a green umbrella", "a box of nails")
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MOODS = ("glad", "surprised", "tired", "a little sad", "curious", "very quiet")
_FILES = ("main.py", "server.log", "notes.md", "table.csv", "Makefile", "index.html", "setup.cfg", "data.json")
_STATES = ("modified", "untracked", "unchanged", "staged")
