"""Owns the words about a scene: questions with exact answers by kind, descriptions, search phrases. Knows no pixels.

A description has a fixed order: who moves, then timed events by time, then what stays, by name.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from demo.scenes import TIMED, Scene, Thing
from demo.shapes import COLORS, SHAPES

Topic = Literal["thing", "event", "time", "passing"]
NUMBERS = ("zero", "one", "two", "three")
DESCRIBE = (
    "Describe the video.",
    "Describe the video.",
    "What happens?",
    "What happens in the video?",
    "What is happening in this video?",
    "What do you see?",
    "Describe what you see.",
)
DESCRIBE_IMAGE = "Describe the image."
FIRST_KINDS = (
    "moves", "count", "direction", "color", "shape", "exists", "appears", "disappears", "does", "where", "when",
    "describe",
)  # fmt: skip
"""The prototype's kinds of question."""
KINDS = (*FIRST_KINDS, "changes", "becomes", "passes", "order")
CLEAR = 0.035
"""A place is asked for only when it lies this share of the picture away from the border between two answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mention:
    """Characters first to end of an answer tell this of a thing: which one it is and that it moves or stays, the event
    that happens to it, the digits of when that is, or what it passes and on which side."""

    first: int
    end: int
    thing: Thing
    what: Topic


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One question, its only right answer, its kind (one of KINDS), and what the answer tells of which thing."""

    kind: str
    text: str
    answer: str
    mentions: tuple[Mention, ...] = ()


def ask_all(rng: random.Random, scene: Scene) -> list[Question]:
    """Every question that has one answer in this scene, but the description."""
    return [*_ask_motion(scene), *_ask_events(scene), *_ask_things(scene), *_ask_existence(rng, scene)]


def ask_description(rng: random.Random, scene: Scene) -> Question:
    answer, mentions = "", list[Mention]()
    for thing, sentence in _sentences(scene):
        first = len(answer) + bool(answer)
        answer = f"{answer} {sentence}".strip()
        mentions += _mention(thing, sentence, scene, first)
    return Question(kind="describe", text=rng.choice(DESCRIBE), answer=answer, mentions=tuple(mentions))


def _mention(thing: Thing, text: str, scene: Scene, first: int = 0) -> tuple[Mention, ...]:
    """What a text tells of a thing, part by part.

    Worked example: "at 3.2 seconds." of a thing that appears at 3.2 seconds has characters 0 to 3 of its event and 3
    to 6 of its time; "A red star moves up behind a blue circle." is of the star itself up to 19, then of its passing.
    """
    parts: dict[Topic, str] = {"event" if thing.act in TIMED else "thing": text}
    time = scene.time(thing.slot)
    if thing.act in TIMED and f"{time} seconds" in text:
        parts = {"event": text[: text.index(f"{time} seconds")], "time": time}
    elif thing.act == "move" and scene.passing is not None:
        at = text.find(f" {scene.passing[0]} ")
        parts = {"passing": text} if at < 0 else {"thing": text[:at], "passing": text[at:]}
    mentions = list[Mention]()
    for what, part in parts.items():
        mentions.append(Mention(first=first, end=first + len(part), thing=thing, what=what))
        first += len(part)
    return tuple(mentions)


def _sentences(scene: Scene) -> Iterator[tuple[Thing, str]]:
    still = sorted((thing for thing in scene.things if thing.act == "still"), key=lambda thing: thing.name)
    movers = [thing for thing in scene.things if thing.act == "move"]
    for thing in (*movers, *scene.events, *still):
        yield thing, f"{_capital(say(thing, scene))}."


def describe(scene: Scene) -> str:
    """Worked example: "A red star moves up behind a blue circle. A black square turns white at 3.2 seconds." and then
    "A blue circle stays still." """
    return " ".join(sentence for _, sentence in _sentences(scene))


def say(thing: Thing, scene: Scene) -> str:
    """What the thing does: "a red star moves up behind a blue circle", "a black square turns white at 3.2 seconds"."""
    when = f" at {scene.time(thing.slot)} seconds"
    match thing.act:
        case "move":
            past = f" {scene.passing[0]} {a(scene.passing[1].name)}" if scene.passing else ""
            return f"{a(thing.name)} moves {thing.direction}{past}"
        case "still":
            return f"{a(thing.name)} stays still"
        case _:
            return happen(thing) + when


def happen(thing: Thing) -> str:
    """A timed event without its time: "a black square turns white"."""
    act = f"turns {thing.becomes}" if thing.act == "turn" else f"{thing.act}s"
    return f"{a(thing.name)} {act}"


def search_phrase(thing: Thing, scene: Scene) -> str:
    """One thing as a query, without times."""
    return say(thing, scene).rsplit(" at ", 1)[0]


def a(name: str) -> str:
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def place_name(point: tuple[float, float], scene: Scene) -> str:
    """The third of the picture, for example "top left", "middle center"."""
    x, y = point[0] / scene.width, point[1] / scene.height
    row = "top" if y < 1 / 3 else "bottom" if y > 2 / 3 else "middle"
    return f"{row} {'left' if x < 1 / 3 else 'right' if x > 2 / 3 else 'center'}"


def _ask_motion(scene: Scene) -> Iterator[Question]:
    mover = scene.mover
    yield Question(kind="moves", text="Does anything move?", answer="yes." if mover else "no.")
    if mover is None:
        return
    yield Question(kind="color", text="What color is the moving object?", answer=f"{mover.color}.")
    yield Question(kind="shape", text="What shape is moving?", answer=f"{mover.shape}.")
    alone = sum(thing.shape == mover.shape for thing in scene.things) == 1
    who = mover.shape if alone else mover.name
    yield Question(kind="direction", text=f"Which way does the {who} move?", answer=f"{mover.direction}.")
    yield Question(kind="direction", text="Which way does the moving object go?", answer=f"{mover.direction}.")
    if scene.passing is not None:
        side, other = scene.passing
        which = f"Does the {mover.name} pass behind or in front of the {other.name}?"
        for text, answer in (("What does the moving object pass?", f"{a(other.name)}."), (which, f"{side}.")):
            yield Question(kind="passes", text=text, answer=answer, mentions=_mention(mover, answer, scene))


def _ask_events(scene: Scene) -> Iterator[Question]:
    def ask(kind: str, text: str, answer: str, thing: Thing) -> Question:
        return Question(kind=kind, text=text, answer=answer, mentions=_mention(thing, answer, scene))

    events = scene.events
    acts = [thing.act for thing in events]
    for thing in events:
        verb = f"turn {thing.becomes}" if thing.act == "turn" else thing.act
        yield ask("when", f"When does the {thing.name} {verb}?", f"at {scene.time(thing.slot)} seconds.", thing)
        if thing.act == "turn":
            yield ask("becomes", f"What color does the {thing.name} become?", f"{thing.becomes}.", thing)
        if acts.count(thing.act) > 1:
            continue
        if thing.act == "turn":
            yield ask("changes", "What changes color?", f"{a(thing.name)}.", thing)
        else:
            yield ask(f"{thing.act}s", f"What {thing.act}s?", f"{a(thing.name)}.", thing)
    if len(events) > 1:
        yield ask("order", "What happens first?", f"{happen(events[0])}.", events[0])
        yield ask("order", "What happens last?", f"{happen(events[-1])}.", events[-1])


def _ask_things(scene: Scene) -> Iterator[Question]:
    yield Question(kind="count", text="How many objects are there?", answer=f"{NUMBERS[len(scene.things)]}.")
    shapes = [thing.shape for thing in scene.things]
    colors = [color for thing in scene.things for color, _ in thing.looks]
    for thing in scene.things:
        x, y = thing.end[0] / scene.width, thing.end[1] / scene.height
        if thing.act != "disappear" and min(abs(v - edge) for v in (x, y) for edge in (1 / 3, 2 / 3)) > CLEAR:
            text = f"Where is the {thing.name} at the end?"
            yield Question(kind="where", text=text, answer=f"{place_name(thing.end, scene)}.")
        does = {"move": f"moves {thing.direction}", "still": "stays still", "turn": f"turns {thing.becomes}"}
        text = f"What does the {thing.name} do?"
        answer = f"it {does.get(thing.act, f'{thing.act}s')}."
        mentions = _mention(thing, answer, scene) if thing.act in TIMED else ()
        yield Question(kind="does", text=text, answer=answer, mentions=mentions)
        if shapes.count(thing.shape) == 1 and thing.act != "turn":
            yield Question(kind="color", text=f"What color is the {thing.shape}?", answer=f"{thing.color}.")
        if colors.count(thing.color) == 1:
            yield Question(kind="shape", text=f"What shape is the {thing.color} object?", answer=f"{thing.shape}.")


def _ask_existence(rng: random.Random, scene: Scene) -> Iterator[Question]:
    """One thing that is there, and one that never is: half the time of the same colour or shape as the first."""
    thing = rng.choice(scene.things)
    yield Question(kind="exists", text=f"Is there {a(thing.name)}?", answer="yes.")
    seen = {look for other in scene.things for look in other.looks}
    absent = [(color, shape) for color in COLORS for shape in SHAPES if (color, shape) not in seen]
    near = [look for look in absent if (look[0] == thing.color) != (look[1] == thing.shape)]
    color, shape = rng.choice(near if rng.random() < 0.5 else absent)
    yield Question(kind="exists", text=f"Is there {a(f'{color} {shape}')}?", answer="no.")
