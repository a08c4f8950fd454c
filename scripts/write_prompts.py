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
Entry is free on the first Sunday of the month.; I bought these headphones for the train. The sound is warm and the
battery lasts all week, but they press on my ears after an hour and the case is too big for my bag. For half the
price I would buy them again.; Owls fly almost without a sound. The front edge of their feathers is fringed like a
comb, which breaks the air into small streams, and the soft surface swallows what is left. Engineers have copied the
idea for fans and the blades of turbines.; When the ferry left, Ilse noticed that the man beside her held the same
book. He had folded the corner of the same page. "Don't tell me how it ends," he said, and turned towards the
window.; Minutes, 4 May. Present: Ruth, Karim, Joana. The budget for the summer party is 600 euros. Karim asks the
caterer for a price by Friday. Joana books the garden. Open: music, and what we do if it rains.; Dear team, the
office will be closed on 24 and 31 December. Requests for other days off should reach me by the end of November.
Please make sure that somebody answers the support phone. Thank you for a good year. Best wishes, Paula; The company
was founded in 1987 by two sisters, Vera and Nina Halloran, in a garage in Cork. By 1995 it had forty employees and
a factory in Limerick. In 2008 it was sold to a Danish group, and in 2016 the founders bought it back.; We present a
method for estimating the age of glass from the thickness of its weathered layer. On forty samples of known date the
mean error was eleven years. The method needs no laboratory and takes less than a minute a sample."""

REQUESTS = """
Summarize this in one sentence: {p}; Rewrite this so that it sounds more formal: {p}; Rewrite this in simpler words:
{p}; Fix the grammar: {p}; Turn this into bullet points: {p}; What is the main point of the following text? {p};
Translate into French: {p}; Write a reply to this message: {p}; Give this text a headline: {p}; Make it shorter:
{p}; Write three questions that this text answers: {p}; What tone does this have, and why? {p}; Which names, dates
and numbers are in this text? {p}; Continue this text: {p}; Explain this as you would to a child: {p}; Write this as
a news report: {p}; Make this more exciting: {p}; Answer from the text only: what happened, and who did it? {p}"""

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

EVERYDAY = """
How do I {d}?; how can i {d} without spending much; What do I need to {d}?; Give me seven ideas to {d}.; I want to
{d}, but I never have time. What would you do?; Make a plan for a week to {d}.; Write instructions to {d}, for
somebody who has never done it.; Write a checklist for people who want to {d}.; What usually goes wrong when people
{d}?; I tried to {d} and it went badly. What now?; Should I {d} by myself or ask for help?; Best way to {d}?"""

DOINGS = """
clean an oven; fall asleep earlier; move to another city; plan a birthday for a five-year-old; learn to swim; write
a diary; repair a torn jacket; grow tomatoes on a balcony; talk to a difficult neighbour; cook for ten people; start
a small business; stop biting my nails; take better photos; remember names; prepare for an exam; keep a kitchen
tidy; train a puppy; paint a room; save for a car; read more books; make new friends; lose five kilos; get rid of
ants; travel with a baby; write a letter of complaint; choose a laptop; play the guitar; get up at six; sell old
furniture; stay calm in traffic"""

STORIES = """
Write a story about {h} who {e}.; Tell me a short story in which {h} {e}.; Write a poem about {h} who {e}.; Write
the first page of a novel about {h} who {e}.; Write a scene with dialogue: {h} {e}.; Write a fairy tale about {h}
who {e}.; Write a limerick about {h}.; Describe {h} in three sentences.; Write a song in which {h} {e}.; How would a
story end in which {h} {e}?"""

HEROES = """
a baker; an old fisherman; a girl with a red umbrella; a robot; two brothers; a dragon; a retired teacher; a cat; a
night nurse; a violin; the last tree of a town; a detective; a king without a castle; a postman; a fox; a young
astronaut; a painter; a grandmother; a ghost; a lighthouse"""

EVENTS = """
finds a door that nobody has opened; loses a key; wants to see the sea; forgets a promise; meets a stranger on a
train; can't stop laughing; hears a voice in the garden; learns to forgive; hides a letter; wins a prize by mistake;
must choose between two roads; is afraid of the dark; breaks the only rule; comes home after many years"""

FACTS = """
Who discovered {x}?; What is the capital of {n}?; What language do people speak in {n}?; When was {x} invented?; How
does {x} work?; What should I see in {n} in three days?; how far is {n} from the equator; What is {x} made of?; Why
is {x} so important?; Is {x} dangerous?; What do people eat in {n}?; Which rivers and mountains are in {n}?; What is
the difference between {x} and {y}?; Name five things that have to do with {x}."""

THINGS = """
penicillin; the steam engine; the compass; glass; rubber; the microscope; paper; radar; the bicycle; insulin;
cement; the transistor; oxygen; the camera; concrete; the elevator; X-rays; soap; aspirin; the barometer"""

COUNTRIES = """
Portugal; Vietnam; Canada; Morocco; Finland; Peru; India; Greece; New Zealand; Ghana; Austria; Chile; Ireland; South
Korea; Turkey; Egypt"""

SHORT = """
Hello!; hey; Good evening.; What can you do?; Who are you?; thanks!; Tell me something interesting.; I feel sad
today.; Give me a riddle.; What's your favourite colour?; ok; Can you help me?; Surprise me.; say something nice; I
don't know what to cook.; Another one, please.; antonyms of {w}; synonyms of {w}; Use "{w}" in a sentence.; What
does "{w}" mean?; Spell "{w}" backwards.; rhymes with {w}; How do you say "{w}" in Spanish?; Translate "{w}" into
German and Italian."""

WORDS = """
brave; silence; window; quick; gentle; harvest; bright; stubborn; journey; lazy; honest; storm; clever; bitter;
garden; ancient; hungry; calm; shadow; proud"""

DOCUMENTS = """
an agenda for a meeting about {t}; a speech of two minutes about {t}; a press release about a new museum of {t}; a
FAQ about {t}; a letter to the editor about {t}; a lesson plan about {t}; an essay on the future of {t}; a leaflet
about {t} for visitors; a list of rules for a club for {t}; a review of a book about {t}; an advertisement for a
course on {t}; a glossary of ten words about {t}; a timeline of {t}; a recipe, in the style of a text about {t}"""

FOLLOW_UPS = """
Can you make that shorter?; Why?; Give me an example.; And what would you do?; Say it in other words.; Is that
really true?; Thanks! What else should I know?; Turn that into a list.; I didn't understand the last part.; What is
the first step?; Write that as a short poem.; Now explain it to an expert."""

SYSTEMS = """
You are a helpful assistant.; You answer in one short paragraph.; You are a patient teacher.; You are a pirate who
helps with everything.; Answer with bullet points only.; You are an expert editor.; You answer in one sentence.; You
are a friendly librarian.; You are a doctor who explains things simply.; Reply in JSON.; You are the assistant of a
hardware shop.; You are a travel guide.; Use simple words, as for a child.; You are a careful programmer who
comments code."""


def items(text: str) -> list[str]:
    return [" ".join(item.split()) for item in text.split(";")]


def user_text(luck: random.Random) -> str:
    """One user's message."""
    kinds = (SENTENCES, CODE, REQUESTS, SUMS, LETTERS, EVERYDAY, STORIES, FACTS, SHORT, DOCUMENTS)
    kind = luck.choices(kinds, (30, 14, 14, 8, 6, 10, 12, 8, 4, 8))[0]
    topic, other = luck.sample(items(TOPICS), 2)
    thing, another = luck.sample(items(THINGS), 2)
    text = luck.choice(items(kind)).format(
        t=topic,
        u=other,
        x=thing,
        y=another,
        a=luck.randint(3, 99),
        b=luck.randint(3, 60),
        c=luck.choice(items(TASKS)),
        d=luck.choice(items(DOINGS)),
        e=luck.choice(items(EVENTS)),
        h=luck.choice(items(HEROES)),
        n=luck.choice(items(COUNTRIES)),
        p=luck.choice(items(PASSAGES)),
        w=luck.choice(items(WORDS)),
    )
    if kind is LETTERS:
        return f"{text} {luck.choice(items(MESSAGES))}."
    return f"Write {text}." if kind is DOCUMENTS else text


def prompts(count: int, seed: int = 0) -> Iterator[list[dict[str, str]]]:
    """`count` different conversations, each ending with a user's message.

    One in eight begins with a system's message. One in ten goes on after an answer, which is a passage.
    """
    luck = random.Random(seed)
    seen: set[str] = set()
    while len(seen) < count:
        text = user_text(luck)
        if text in seen:
            continue
        seen.add(text)
        talk = [("system", luck.choice(items(SYSTEMS)))] if luck.random() < 1 / 8 else []
        talk.append(("user", text))
        if luck.random() < 1 / 10:
            talk += [("assistant", luck.choice(items(PASSAGES))), ("user", luck.choice(items(FOLLOW_UPS)))]
        yield [{"role": role, "content": content} for role, content in talk]


if __name__ == "__main__":
    count, path = int(sys.argv[1]), Path(sys.argv[2])
    path.write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in prompts(count)))
