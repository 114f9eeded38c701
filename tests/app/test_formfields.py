"""Form fields are text; each becomes what its place in the model needs, and unknown ones stay to be refused."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from app.formfields import build_json
from app.schemas import AskRequest
from runner.errors import RequestError


def build(**fields: str) -> dict:
    return json.loads(build_json(fields, AskRequest))


def test_fields_become_json() -> None:
    assert build(prompt="12", temperature="0.5", stream="true", stop="END", user="7", seed="3") == {
        "prompt": "12",
        "temperature": 0.5,
        "stream": True,
        "stop": "END",
        "user": "7",
        "seed": 3,
    }


def test_objects_and_dotted_fields_are_the_same() -> None:
    assert build(evs='{"method": "gate", "rate": 0.5}') == build(**{"evs.method": "gate", "evs.rate": "0.5"})
    assert build(**{"video.fps": "2"}) == {"video": {"fps": 2}}
    assert build(stop='["a", "b"]') == {"stop": ["a", "b"]}


def test_empty_inputs_of_a_form_are_absent() -> None:
    assert build(prompt="", temperature="") == {"prompt": ""}


@pytest.mark.parametrize("text", ["abc", "NaN", "Infinity", "True", "1,5", "{"])
def test_what_is_not_json_is_refused_by_name(text: str) -> None:
    with pytest.raises(RequestError) as caught:
        build(temperature=text)
    assert caught.value.param == "temperature"


def test_object_and_dotted_fields_mix_or_are_refused() -> None:
    assert build(evs='{"rate": 0.5}', **{"evs.refresh": "3"}) == {"evs": {"rate": 0.5, "refresh": 3}}
    with pytest.raises(RequestError):
        build(evs="3", **{"evs.rate": "0.5"})


@pytest.mark.parametrize("name", ["bogus", "fps", "evs.bogus", "bogus.x"])
def test_unknown_fields_reach_the_model_and_are_refused(name: str) -> None:
    with pytest.raises(ValidationError):
        AskRequest.model_validate_json(build_json({"prompt": "a", name: "1"}, AskRequest))
