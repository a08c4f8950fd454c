#!/usr/bin/env python3
"""Prompts for `mtplx train-head --data`: sentences as users write them, over topics, one JSON object a line.

Run: python scripts/write_prompts.py COUNT FILE
None of them is among the held-out prompts of benchmarks/data/prompts.jsonl (a test compares).
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

TOPICS = """
photosynthesis; the water cycle; black holes; inflation; compound interest; vaccines; plate tectonics; the Roman
Empire; supply and demand; the French Revolution; machine learning; solar panels; electric cars; the immune system;
gravity; DNA; the Silk Road; jazz; impressionist painting; chess; sourdough bread; green tea; sleep; meditation;
strength training; long-distance running; knitting; beekeeping; home gardening; composting; coral reefs; volcanoes;
whales; migratory birds; the Moon landing; ancient Egypt; the printing press; the telephone; databases; encryption;
version control; web browsers; sorting algorithms; recursion; operating systems; cloud computing; climate change;
recycling; nuclear power; wind turbines; job interviews; time management; public speaking; personal budgets;
mortgages; renting a flat; first aid; bicycle repair; camping; learning a language; Norway; Japan; Brazil; Kenya;
Istanbul; Lisbon; the Alps; the Sahara; Shakespeare; detective novels; science fiction; poetry; Mozart; street
photography; board games; volunteering; pets in small flats; raising teenagers; remote work; burnout; nutrition
labels; vegetarian cooking; pasta; coffee; earthquakes; rainbows; tides; batteries; magnets; fractions; probability;
prime numbers; the Pythagorean theorem; statistics; ecosystems; antibiotics; the heart; the brain; allergies; dental
care; elections; human rights; the United Nations; trade unions; patents; copyright; online privacy; passwords;
phishing; typography; user interfaces; A/B tests"""

SENTENCES = """
What is {t}?; Explain {t} to a ten-year-old.; Can you explain {t} in simple terms?; Give me five facts about {t}.;
Why does {t} matter?; What are the pros and cons of {t}?; Write a short paragraph about {t}.; List three common
mistakes people make with {t}.; How do I get started with {t}?; Write a blog post introduction about {t}.; Summarize
the history of {t} in a few sentences.; What should a beginner know about {t}?; Compare {t} with {u}.; Write a haiku
about {t}.; Tell me a short story that involves {t}.; Give me a step-by-step guide to {t}.; Write a tweet about
{t}.; What questions should I ask an expert on {t}?; Make a quiz with three questions about {t} and give the
answers.; Write an email to a friend about {t}.; Is it true that {t} and {u} are related?; I have a presentation on
{t} tomorrow. What should I say?; Describe {t} using an analogy.; Give me a title and an outline for an essay on
{t}.; tell me about {t}; whats the difference between {t} and {u}; i need help with {t} pls; Write a product
description that mentions {t}.; Suggest three books or resources about {t}.; How has {t} changed over the last
century?; Create a table comparing {t} and {u}.; Write a dialogue between two people who disagree about {t}."""

TASKS = """
reverses a string; counts the vowels in a text; checks whether a number is prime; returns the largest number of a
list; removes duplicates from a list; computes a factorial; merges two sorted lists; counts words in a file;
converts Celsius to Fahrenheit; finds the longest word in a sentence; sums the digits of a number; checks whether
brackets are balanced; reads a CSV file; sorts dictionaries by a key; flattens a nested list; computes the mean and
the median; validates an email address; draws a triangle of stars; rolls two dice; groups words by their first
letter; finds common elements of two lists; parses a date"""

CODE = """
Write a Python function that {c}.; Write a JavaScript function that {c}.; How do I write a program that {c}?; Show
me a Python example that {c}, with comments.; Write a unit test for a function that {c}.; Explain, line by line,
code that {c}."""

PASSAGES = """
The meeting has been moved from Monday to Wednesday because two of the speakers are travelling. Please bring the
printed reports and let Anna know if you need a vegetarian lunch.; Our sales rose by twelve percent in spring,
mostly thanks to the new shop in Leeds. Costs rose too, and the board wants a plan for autumn by the end of June.;
The old bridge was closed after cracks were found in two of its pillars. Engineers say that repairs will take eight
months, and buses will use the road along the river.; Trees in cities cool the streets in summer, hold back rain and
give birds a home. They also need space for their roots, which is often the hardest thing to find.; hi, i wanted to
ask if the order i placed last week has shipped yet because i still have not got any message and the party is on
saturday; The museum opens a new room for children, where they can build simple machines and see how a clock works.
Entry is free on the first Sunday of the month."""

REQUESTS = """
Summarize this in one sentence: {p}; Rewrite this so that it sounds more formal: {p}; Rewrite this in simpler words:
{p}; Fix the grammar: {p}; Turn this into bullet points: {p}; What is the main point of the following text? {p};
Translate into French: {p}; Write a reply to this message: {p}; Give this text a headline: {p}; Make it shorter: {p}"""

SUMS = """
What is {a} plus {b}?; What is {a} times {b}?; A shirt costs {a} dollars and is reduced by {b} percent. What is the
new price?; If I save {a} dollars a month, how much do I have after {b} months?; A train travels {a} kilometres in
{b} minutes. How fast is it?; Tom has {a} marbles and gives {b} away. How many are left?; What is {a} percent of
{b}?; Solve for x: {a}x + {b} = 100."""

LETTERS = """Write an email to; Write a short note to; Help me write to"""

MESSAGES = """
my landlord, asking for a repair of the heating; a colleague, thanking her for her help; a teacher, explaining why
my son is absent; a hotel, asking to change a booking; my boss, asking for two days off; a customer, apologizing for
a late delivery; a neighbour, about loud music; a recruiter, declining an offer; a friend, inviting him to a
birthday; the library, about a lost card"""

SYSTEMS = """
You are a helpful assistant.; You answer in one short paragraph.; You are a patient teacher.; You are a pirate who
helps with everything.; Answer with bullet points only.; You are an expert editor."""


def items(text: str) -> list[str]:
    return [" ".join(item.split()) for item in text.split(";")]


def user_text(luck: random.Random) -> str:
    """One user's message."""
    topic, other = luck.sample(items(TOPICS), 2)
    kind = luck.choices(("topic", "code", "passage", "sum", "message"), (60, 12, 12, 8, 8))[0]
    if kind == "topic":
        return luck.choice(items(SENTENCES)).format(t=topic, u=other)
    if kind == "code":
        return luck.choice(items(CODE)).format(c=luck.choice(items(TASKS)))
    if kind == "passage":
        return luck.choice(items(REQUESTS)).format(p=luck.choice(items(PASSAGES)))
    if kind == "sum":
        return luck.choice(items(SUMS)).format(a=luck.randint(3, 99), b=luck.randint(3, 60))
    return f"{luck.choice(items(LETTERS))} {luck.choice(items(MESSAGES))}."


def prompts(count: int, seed: int = 0) -> Iterator[list[dict[str, str]]]:
    """`count` different conversations, each ending with a user's message; one in eight begins with a system's."""
    luck = random.Random(seed)
    seen: set[str] = set()
    while len(seen) < count:
        text = user_text(luck)
        if text not in seen:
            seen.add(text)
            system = [{"role": "system", "content": luck.choice(items(SYSTEMS))}] if luck.random() < 1 / 8 else []
            yield [*system, {"role": "user", "content": text}]


if __name__ == "__main__":
    count, path = int(sys.argv[1]), Path(sys.argv[2])
    path.write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in prompts(count)))
