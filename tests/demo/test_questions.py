"""Questions have one answer, and it is the true one."""

from __future__ import annotations

import random

from demo.questions import KINDS, ask_all, ask_description, describe, place_name, search_phrase
from demo.scenes import Scene, Thing
from demo.stage import make_scene

CIRCLE = Thing(color="blue", shape="circle", radius=12, act="still", start=(80, 60), end=(80, 60))
STAR = Thing(color="red", shape="star", radius=12, act="move", start=(80, 110), end=(80, 20), direction="up")
SQUARE = Thing(
    color="black", shape="square", radius=12, act="turn", start=(20, 20), end=(20, 20), slot=3, becomes="white"
)
STORY = Scene(things=(STAR, CIRCLE, SQUARE), frames=16, height=128, width=160, passing=("behind", CIRCLE))


def answers(story: Scene) -> dict[str, str]:
    return {question.text: question.answer for question in ask_all(random.Random(0), story)}


def test_a_description_has_a_fixed_order() -> None:
    """The worked example, in whatever order the things are painted."""
    right = (
        "A red star moves up behind a blue circle. "
        "A black square turns white at 3.2 seconds. "
        "A blue circle stays still."
    )
    assert describe(STORY) == right
    turned = Scene(things=STORY.things[::-1], frames=16, height=128, width=160, passing=STORY.passing)
    assert describe(turned) == right


def test_the_parts_of_an_answer() -> None:
    """The worked example: an event and its time, a thing and what it passes."""
    when = next(question for question in ask_all(random.Random(0), STORY) if question.kind == "when")
    assert [(part.what, part.first, part.end) for part in when.mentions] == [("event", 0, 3), ("time", 3, 6)]
    whole = ask_description(random.Random(0), STORY)
    told = [(part.what, part.thing.name, whole.answer[part.first : part.end]) for part in whole.mentions]
    assert told == [
        ("thing", "red star", "A red star moves up"),
        ("passing", "red star", " behind a blue circle."),
        ("event", "black square", "A black square turns white at "),
        ("time", "black square", "3.2"),
        ("thing", "blue circle", "A blue circle stays still."),
    ]


def test_a_story_is_asked_about_in_every_way() -> None:
    """All answers of one scene, written out."""
    said = answers(STORY)
    absent = next(text for text, answer in said.items() if text.startswith("Is there") and answer == "no.")
    present = next(text for text, answer in said.items() if text.startswith("Is there") and answer == "yes.")
    assert present in {"Is there a red star?", "Is there a blue circle?", "Is there a black square?"}
    assert absent not in {"Is there a white square?", present}
    del said[absent], said[present]
    assert said == {
        "Does anything move?": "yes.",
        "What color is the moving object?": "red.",
        "What shape is moving?": "star.",
        "Which way does the star move?": "up.",
        "Which way does the moving object go?": "up.",
        "What does the moving object pass?": "a blue circle.",
        "Does the red star pass behind or in front of the blue circle?": "behind.",
        "When does the black square turn white?": "at 3.2 seconds.",
        "What color does the black square become?": "white.",
        "What changes color?": "a black square.",
        "How many objects are there?": "three.",
        "Where is the red star at the end?": "top center.",
        "What does the red star do?": "it moves up.",
        "What color is the star?": "red.",
        "What shape is the red object?": "star.",
        "Where is the blue circle at the end?": "middle center.",
        "What does the blue circle do?": "it stays still.",
        "What color is the circle?": "blue.",
        "What shape is the blue object?": "circle.",
        "Where is the black square at the end?": "top left.",
        "What does the black square do?": "it turns white.",
        "What shape is the black object?": "square.",
    }


def test_events_have_an_order() -> None:
    """First and last are asked about by time, not by place in the scene."""
    leaves = Thing(color="green", shape="star", radius=12, act="disappear", start=(120, 90), end=(120, 90), slot=1)
    said = answers(Scene(things=(SQUARE, leaves), frames=16, height=128, width=160))
    assert said["What happens first?"] == "a green star disappears."
    assert said["What happens last?"] == "a black square turns white."
    assert said["When does the green star disappear?"] == "at 1.2 seconds."
    assert "What happens first?" not in answers(STORY)


def test_no_question_has_two_answers() -> None:
    """Over many scenes: asked the same, the same is answered; every kind turns up and none is unknown."""
    rng, kinds = random.Random(1), set()
    for _ in range(400):
        asked = ask_all(rng, make_scene(rng, "all", frames=16, height=128, width=160))
        kinds |= {question.kind for question in asked}
        pairs = {(question.text, question.answer) for question in asked}
        assert len({text for text, _ in pairs}) == len(pairs)
    assert kinds == set(KINDS) - {"describe"}


def test_places_and_phrases() -> None:
    assert place_name((159, 64), STORY) == "middle right"
    assert search_phrase(SQUARE, STORY) == "a black square turns white"
    assert search_phrase(STAR, STORY) == "a red star moves up behind a blue circle"
