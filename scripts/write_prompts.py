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
phishing; typography; user interfaces; A/B tests; rain gutters; glaciers; the Olympic Games; the Renaissance;
haikus; opera; the violin; ballet; film noir; comics; fermented food; spices; cheese; chocolate; rice; bread
machines; kitchen knives; houseplants; roses; mushrooms; bees; owls; wolves; sharks; octopuses; dinosaurs; fossils;
deserts; rainforests; rivers; clouds; thunderstorms; snow; the ozone layer; comets; Mars; telescopes; satellites;
the speed of light; atoms; the periodic table; acids and bases; friction; lenses; sound waves; electric motors;
bridges; skyscrapers; elevators; clocks; maps; calendars; coins; banks; taxes; pensions; insurance; stock markets;
credit scores; startups; marketing; negotiation; teamwork; feedback at work; meetings; e-mail; spreadsheets; slide
decks; note-taking; essays; grammar; spelling; proverbs; sign language; Latin; Arabic numerals; Esperanto;
libraries; newspapers; radio; podcasts; photography; drones; robots; 3D printing; video games; social media; search
engines; recommendation systems; neural networks; chatbots; binary numbers; linked lists; hash functions; unit
tests; code review; Docker; HTTP; JSON; regular expressions; SQL joins; Linux; backups; two-factor authentication;
Canada; Iceland; Mexico; Thailand; Berlin; Rome; New York; the Amazon; the Nile; Vikings; samurai; castles; pirates;
the Cold War; the Industrial Revolution; democracy; constitutions; juries; refugees; kindergartens; homework;
bilingual children; dyslexia; vision; hearing; vitamins; sugar; salt; back pain; headaches; colds; stress;
breathing; yoga; swimming; cycling; football; tennis; hiking; sailing; fishing; woodworking; pottery; watercolours;
sewing; origami; magic tricks; puzzles; weddings; funerals; gifts; good manners; friendship; loneliness; grief;
forgiveness; happiness; luck; courage; dreams; memory; habits; procrastination"""

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
letter; finds common elements of two lists; parses a date; prints the multiplication table; finds the smallest
number of a list; counts how often each letter occurs; checks whether a year is a leap year; checks whether a word
is a palindrome; generates a random password; converts a number to binary; adds two matrices; swaps two variables;
finds the greatest common divisor; prints the first n Fibonacci numbers; removes all spaces from a text; capitalizes
every word; finds the index of a value in a sorted list; rotates a list by k places; reads a number and says whether
it is even; writes a list to a file; downloads a web page; counts the lines of a file; joins a list of words with
commas; rounds prices to two decimals; converts seconds into hours, minutes and seconds; picks a random item from a
list; checks whether two words are anagrams; computes the distance of two points; sorts names by length; inverts a
dictionary; filters numbers above a limit; shows the current date; renames all files in a folder; simulates a
traffic light; keeps a to-do list; guesses a number between 1 and 100; computes compound interest; splits a bill
among friends"""

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
mean error was eleven years. The method needs no laboratory and takes less than a minute a sample.; Wash the lentils
and put them into a pot with three cups of water, a bay leaf and a carrot. Simmer for half an hour. Fry an onion in
oil until it is brown, add a spoon of cumin, and stir both into the lentils with salt and lemon.; The library will
change its opening hours in September. On weekdays it opens at nine instead of ten, and on Saturdays it closes at
four. Books can be returned at any time through the slot beside the door.; A volcano is a place where melted rock
from deep inside the Earth comes out. Some erupt with a bang and throw ash many kilometres high, others let the lava
flow quietly. The soil around them is rich, which is why people live there all the same.; Hi Marta, the printer on
the second floor is broken again. I have called the service, but they can't come before Thursday. Could everybody
please use the one in room 114 until then? Sorry for the trouble. Ben; My grandfather mended radios. In his workshop
it smelled of dust and warm metal, and every evening he switched on one of his patients to hear whether it would
speak. When it did, he smiled as though he had been told a secret.; Yesterday evening a lorry lost its load of
oranges on the ring road. Nobody was hurt, but the road was closed for three hours. Drivers got out and filled their
bags, and the police let them. The company thanked everybody for the help.; The study followed 2,300 adults for six
years. Those who walked for at least thirty minutes a day had fewer colds, slept longer and reported less stress.
The authors warn that healthy people may simply walk more.; Our app had an outage on Tuesday between 14:05 and
15:20. A certificate had expired, and the alarm went to an address that nobody reads any more. We have renewed it,
changed the address, and added a second alarm.; Dear Sir or Madam, I ordered a lamp on 3 March and received a chair.
I have written to you twice and heard nothing. Please collect the chair and send the lamp, or return my money within
ten days. Yours faithfully, G. Lund; In spring the storks come back to our village. They repair last year's nest
with twigs and grass, and for weeks one hears them clap their beaks from the roof of the school. The children count
the young ones, and in August they are gone.; A good password is long rather than complicated. Four random words are
easier to remember than eight odd characters, and harder to guess. Use another one for each account, and let a
program remember them.; Once a week the three neighbours cook together. One brings the vegetables, one the wine, and
one washes up. They have never agreed on politics, and they have never missed a Thursday."""

LANGUAGES = """French; Spanish; German; Italian; Portuguese; Dutch"""

PHRASES = """
Where is the station?; I would like a table for two.; It has been raining since this morning.; My brother works in a
hospital.; How much does this cost?; We are going to the sea next summer.; The train is late again.; Could you help me,
please?; She has two cats and a dog.; I don't understand the question.; Yesterday we ate at my aunt's house.; The book
is on the kitchen table.; When does the shop open?; He speaks three languages.; I forgot my umbrella at the office.; The
children are asleep.; Happy birthday, and many thanks for the invitation!; There is no milk left.; Tomorrow I have to
get up early.; The museum is closed on Mondays.; Can I pay by card?; What a beautiful day!; My friends live in a small
village near the mountains.; Turn left after the bridge.; I have been learning for two years.; The soup is too hot.; We
have lost our luggage.; Who wrote this letter?; I am looking for a present for my mother.; The weather will be better
on Friday.; Please close the window.; They bought an old house and painted it blue."""

TRANSLATIONS = """
Translate into {l}: {s}; How do I say this in {l}? {s}; Translate this sentence to {l}, please: "{s}"; What is "{s}" in
{l}?; Translate to {l} and {m}: {s}; Please translate from English to {l}: {s} {r}; i need this in {l}: {s} {r}"""

READINGS = """
What does this code do?; Explain this code line by line:; Is there a bug in this code?; Add comments to this code:; Make
this code simpler:; Rewrite this in Python:; Write a test for this:; This fails, why?; Review this code, please."""

SNIPPETS = (
    "def total(items):\n    result = 0\n    for item in items:\n        result += item.price\n    return result",
    "for (let i = 0, i < 10, i++) {\n  console.log(i)\n}",
    "def is_even(n):\n    return n % 2 == 1",
    "SELECT name, COUNT(*) FROM orders GROUP BY name ORDER BY 2 DESC;",
    'int main() {\n  int x = 5;\n  while (x > 0) {\n    printf("%d\\n", x);\n  }\n}',
    "words = text.split()\nlongest = max(words, key=len)\nprint(longest)",
    "def add(a, b=[]):\n    b.append(a)\n    return b",
    "squares = [x ** 2 for x in range(10) if x % 2 == 0]",
    'public class Dog extends Animal {\n  void speak() {\n    System.out.println("Woof");\n  }\n}',
    'with open("notes.txt") as file:\n    for line in file:\n        print(line.strip())',
    "def fib(n):\n    return n if n < 2 else fib(n - 1) + fib(n - 2)",
    "const names = users.filter(u => u.age > 18).map(u => u.name);",
    'if x = 5:\n    print("five")',
    'grep -r "TODO" src | wc -l',
    "class Account:\n    def __init__(self, owner):\n        self.owner = owner\n        self.balance = 0",
    "numbers = [3, 1, 2]\nnumbers = numbers.sort()\nprint(numbers[0])",
)

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
furniture; stay calm in traffic; wash a wool sweater; descale a kettle; sharpen a knife; pack a suitcase; write a
CV; ask for a raise; cancel a contract; choose a mattress; bake a cake without eggs; make yoghurt; freeze
vegetables; store potatoes; plant a hedge; prune an apple tree; build a bird house; hang a picture; fix a dripping
tap; unclog a sink; save electricity; heat a flat for less; get over jet lag; stop a cold early; drink more water;
walk more; run five kilometres; learn to draw; learn chess; learn the alphabet of another language; speak in front
of a class; write a speech for a wedding; comfort a friend; apologize to my sister; end a phone call politely; find
a flatmate; move house with a cat; help a child with homework; explain death to a child; organize a school trip;
plan a weekend in the mountains; rent a car abroad; pay off a debt; keep a budget; start a blog; back up my photos;
speed up an old computer; protect my accounts; learn Python; understand a contract; prepare for winter; choose a
present for my father"""

STORIES = """
Write a story about {h} who {e}.; Tell me a short story in which {h} {e}.; Write a poem about {h} who {e}.; Write
the first page of a novel about {h} who {e}.; Write a scene with dialogue: {h} {e}.; Write a fairy tale about {h}
who {e}.; Write a limerick about {h}.; Describe {h} in three sentences.; Write a song in which {h} {e}.; How would a
story end in which {h} {e}?"""

HEROES = """
a baker; an old fisherman; a girl with a red umbrella; a robot; two brothers; a dragon; a retired teacher; a cat; a
night nurse; a violin; the last tree of a town; a detective; a king without a castle; a postman; a fox; a young
astronaut; a painter; a grandmother; a ghost; a lighthouse; a clockmaker; a shy giant; twins; a mouse; a snowman; a
bus driver; an inventor; a mermaid; a pilot; a librarian; a lonely planet; a farmer; a thief with good manners; an
elephant; a princess who hates dresses; a wooden puppet; a sailor; a lost letter; a street musician; a spider; two
old friends; a boy with a telescope; a wizard; a tailor"""

EVENTS = """
finds a door that nobody has opened; loses a key; wants to see the sea; forgets a promise; meets a stranger on a
train; can't stop laughing; hears a voice in the garden; learns to forgive; hides a letter; wins a prize by mistake;
must choose between two roads; is afraid of the dark; breaks the only rule; comes home after many years; builds a
boat; finds a map in an old book; falls asleep in a museum; is invited by the moon; learns to fly; loses the last
train; saves a village; bakes a bread that nobody can cut; talks to the wind; plants a strange seed; has to tell the
truth for one day; finds out who lives next door; forgets her own name; waits for a letter; sells time; teaches a
bird to sing; climbs the highest tower; meets an older self; swaps lives with a friend; looks for the end of a
rainbow"""

FACTS = """
Who discovered {x}?; What is the capital of {n}?; What language do people speak in {n}?; When was {x} invented?; How
does {x} work?; What should I see in {n} in three days?; how far is {n} from the equator; What is {x} made of?; Why
is {x} so important?; Is {x} dangerous?; What do people eat in {n}?; Which rivers and mountains are in {n}?; What is
the difference between {x} and {y}?; Name five things that have to do with {x}."""

THINGS = """
penicillin; the steam engine; the compass; glass; rubber; the microscope; paper; radar; the bicycle; insulin;
cement; the transistor; oxygen; the camera; concrete; the elevator; X-rays; soap; aspirin; the barometer; the wheel;
gunpowder; the telescope; the light bulb; plastic; the zip; the fridge; the aeroplane; the telegraph; DNA; the
pendulum clock; porcelain; steel; the sewing machine; television; the laser; the internet; nylon; the umbrella; ice
cream; matches; the pencil; the magnet; helium"""

COUNTRIES = """
Portugal; Vietnam; Canada; Morocco; Finland; Peru; India; Greece; New Zealand; Ghana; Austria; Chile; Ireland; South
Korea; Turkey; Egypt; Spain; Sweden; Poland; Argentina; Cuba; Ethiopia; Nepal; Mongolia; Australia; Belgium;
Switzerland; Colombia; Iran; Indonesia; Ukraine; Scotland; the Netherlands; Denmark; Bolivia; Tunisia"""

SHORT = """
Hello!; hey; Good evening.; What can you do?; Who are you?; thanks!; Tell me something interesting.; I feel sad
today.; Give me a riddle.; What's your favourite colour?; ok; Can you help me?; Surprise me.; say something nice; I
don't know what to cook.; Another one, please.; antonyms of {w}; synonyms of {w}; Use "{w}" in a sentence.; What
does "{w}" mean?; Spell "{w}" backwards.; rhymes with {w}; How do you say "{w}" in Spanish?; Translate "{w}" into
German and Italian."""

WORDS = """
brave; silence; window; quick; gentle; harvest; bright; stubborn; journey; lazy; honest; storm; clever; bitter;
garden; ancient; hungry; calm; shadow; proud; river; candle; mirror; patient; generous; curious; fragile; thunder;
autumn; courage; whisper; narrow; sudden; brilliant; humble; distant; bridge; feather; market; promise"""

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
    kinds = (
        SENTENCES,
        CODE,
        REQUESTS,
        SUMS,
        LETTERS,
        EVERYDAY,
        STORIES,
        FACTS,
        SHORT,
        DOCUMENTS,
        TRANSLATIONS,
        READINGS,
    )
    kind = luck.choices(kinds, (26, 14, 16, 8, 6, 10, 12, 8, 4, 8, 8, 4))[0]
    topic, other = luck.sample(items(TOPICS), 2)
    thing, another = luck.sample(items(THINGS), 2)
    language, second = luck.sample(items(LANGUAGES), 2)
    phrase, next_phrase = luck.sample(items(PHRASES), 2)
    passages = luck.sample(items(PASSAGES), luck.choice((1, 1, 2, 3)))
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
        l=language,
        m=second,
        p="\n\n".join(passages),
        r=next_phrase,
        s=phrase,
        w=luck.choice(items(WORDS)),
    )
    if kind is LETTERS:
        return f"{text} {luck.choice(items(MESSAGES))}."
    if kind is READINGS:
        return f"{text}\n\n{luck.choice(SNIPPETS)}"
    return f"Write {text}." if kind is DOCUMENTS else text


def prompts(count: int, seed: int = 0) -> Iterator[list[dict[str, str]]]:
    """`count` different conversations, each ending with a user's message.

    One in eight begins with a system's message. One in seven goes on after an answer, which is a passage.
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
        if luck.random() < 1 / 7:
            talk += [("assistant", luck.choice(items(PASSAGES))), ("user", luck.choice(items(FOLLOW_UPS)))]
        yield [{"role": role, "content": content} for role, content in talk]


if __name__ == "__main__":
    count, path = int(sys.argv[1]), Path(sys.argv[2])
    path.write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in prompts(count)))
