"""Many at once on hardly any memory, callers who hang up, and values that no sampler expects."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import httpx2
import pytest

from tests.field.talk import CHAT, AnyPart, Talk, body_of, file_of, raw
from tests.oracle import noise_clip, noise_picture
from tests.processes import children_of, wait_until

CLIPS = [raw(file_of(noise_clip(140 + n, num_frames=2 + n % 5, size=(64, 64 + 16 * (n % 3))))) for n in range(8)]
PICTURES = [noise_picture(150 + number, size=(60 + 10 * number, 80)) for number in range(3)]
METHODS: tuple[dict[str, Any], ...] = (
    {"method": "none"},
    {"method": "gate"},
    {"method": "evs", "rate": 0.5},
    {"method": "random", "rate": 0.5, "seed": 1},
)


def make_bodies(seed: int, count: int) -> list[dict[str, Any]]:
    """Words, pictures, clips and mixtures, some of them the same, with short and long answers."""
    rng = random.Random(seed)
    bodies = []
    for _ in range(count):
        parts: list[AnyPart] = ["ask " + "again " * rng.randrange(6)]
        for _ in range(rng.choice((0, 1, 1, 1, 2))):
            parts.insert(rng.randrange(len(parts) + 1), rng.choice((*CLIPS, *PICTURES)))
        bodies.append(body_of(*parts, evs=rng.choice(METHODS), max_tokens=rng.choice((1, 2, 4, 8, 100))))
    return bodies


def tokens_of(reply: httpx2.Response) -> list[list[int]]:
    assert reply.status_code == 200, reply.text
    return [choice["token_ids"] for choice in reply.json()["choices"]]


async def test_sixty_four_at_once_are_each_as_if_alone(talk: Talk, tight: Talk) -> None:
    """B-MIX-1, B-PREEMPT-1, M-MROPE-2, law 4: pages for a few prompts, encodings for one clip, steps of 17 rows, and
    sixteen callers who hang up: whoever stays gets what a roomy server tells them alone; then nothing is held."""
    bodies = make_bodies(1, 64)
    bodies[32].update(n=6, max_tokens=100)  # one after the other, they outgrow the pages
    before = tight.counted("vllm:num_preemptions_total")
    alone = [tokens_of(talk.send(body)) for body in bodies]
    doomed = make_bodies(2, 16)
    rng = random.Random(3)
    async with httpx2.AsyncClient(base_url=tight.server.url, timeout=280) as client:
        staying = [asyncio.create_task(client.post(CHAT, json=body)) for body in bodies]
        leaving = [asyncio.create_task(client.post(CHAT, json={**body, "max_tokens": 60})) for body in doomed]
        for task in leaving:
            await asyncio.sleep(rng.uniform(0, 0.1))
            task.cancel()
        together = [tokens_of(reply) for reply in await asyncio.gather(*staying)]
    assert together == alone
    assert tight.counted("vllm:num_preemptions_total") > before
    tight.wait_for_rest()
    wait_until(lambda: children_of(tight.server.pid) == tight.first_children, what="the end of decoding children")


def test_answers_of_one_request_do_not_depend_on_each_other(talk: Talk, tight: Talk) -> None:
    """n answers of one prompt with a clip: the same on a server that has room for a few of them."""
    fields = {"n": 8, "temperature": 1.2, "seed": 5, "max_tokens": 12, "repetition_penalty": 1.3}
    replies = [t.ask(CLIPS[1], "?", **fields)["choices"] for t in (talk, tight)]
    assert [choice["token_ids"] for choice in replies[0]] == [choice["token_ids"] for choice in replies[1]]
    assert len({tuple(choice["token_ids"]) for choice in replies[0]}) > 4


def test_a_penalty_stays_with_its_owner(talk: Talk) -> None:
    """X-PEN-1: a prompt full of placeholders beside another, both with penalties, equal to each alone."""
    bodies = [
        body_of(*parts, repetition_penalty=1.3, presence_penalty=1.0, frequency_penalty=-0.5, max_tokens=12)
        for parts in ([CLIPS[0], CLIPS[3], "?"], ["only words"], [PICTURES[0], "words"])
    ]
    alone = [tokens_of(talk.send(body)) for body in bodies]

    async def together() -> list[httpx2.Response]:
        async with httpx2.AsyncClient(base_url=talk.server.url, timeout=120) as client:
            return list(await asyncio.gather(*[client.post(CHAT, json=body) for body in bodies * 3]))

    assert [tokens_of(reply) for reply in asyncio.run(together())] == alone * 3


def test_an_answer_past_its_deadline_frees_all_it_held(talk: Talk) -> None:
    """Law 7: however far it came, in the queue, at the encoder or between two tokens."""
    for timeout_s in (0.001, 0.05, 0.3):
        reply = talk.send(body_of(CLIPS[2], "?", max_tokens=3000, timeout_s=timeout_s))
        assert (reply.status_code, reply.json()["error"]["param"]) == (504, "timeout_s")
    talk.wait_for_rest()
    assert talk.ask(CLIPS[2], "?", timeout_s=100)


# -------------------------------------------------------------------------------------------------------------- values

EXTREMES: list[dict[str, Any]] = [
    {"temperature": 5e-324},
    {"temperature": 1e-310, "top_k": 3},
    {"temperature": 2, "top_p": 5e-324},
    {"temperature": 2, "min_p": 1},
    {"temperature": 1, "top_k": 2**31 - 1},
    {"temperature": 1, "top_k": -1, "repetition_penalty": 0.01},
    {"temperature": 1, "presence_penalty": -2, "frequency_penalty": 2},
    {"temperature": 1, "seed": -(2**63)},
    {"temperature": 1, "seed": 2**63 - 1, "n": 16},
    {"temperature": 0, "priority": 2**31 - 1},
    {"temperature": 1, "logit_bias": {str(token): -100 for token in range(288)}},
    {"temperature": 1e-320, "logit_bias": {str(token): 100 for token in range(0, 288, 2)}},
    {"stop_token_ids": list(range(128)), "min_tokens": 4},
    {"stop": ["a", "b", "ab", "\ufffd", "👩"], "include_stop_str_in_output": True},
    {"logprobs": True, "top_logprobs": 20, "temperature": 1e-310},
    {"ignore_eos": False, "min_tokens": 4, "logit_bias": {"282": 100}},
]


@pytest.mark.parametrize("fields", EXTREMES, ids=str)
@pytest.mark.parametrize("parts", [["words"], [CLIPS[2], "?"]], ids=["text", "clip"])
def test_extreme_values_are_values(talk: Talk, fields: dict[str, Any], parts: list[AnyPart]) -> None:
    """Law 8: what the documents allow is answered, whole and streamed, and nobody else notices."""
    body = body_of(*parts, **{"temperature": 0.7, "seed": 1, **fields})
    whole = talk.send(body)
    assert whole.status_code == 200, whole.text
    streamed = talk.send({**body, "stream": True})
    assert streamed.status_code == 200
    assert streamed.text.rstrip().endswith("data: [DONE]")
    assert '"error"' not in streamed.text


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 0},
        {"n": 2**31},
        {"n": 10**30},
        {"temperature": 2.5},
        {"temperature": -1e-300},
        {"top_p": 0},
        {"top_k": -2},
        {"top_k": 1.5},
        {"max_tokens": 0},
        {"max_tokens": 10**30},
        {"max_tokens": 4097},
        {"min_tokens": 5},
        {"seed": 2**63},
        {"seed": 1.5},
        {"repetition_penalty": 1e-320},
        {"logit_bias": {"288": 1}},
        {"logit_bias": {"-1": 1}},
        {"logit_bias": {"9" * 30: 1}},
        {"logit_bias": {"x": 1}},
        {"logit_bias": {"1": 101}},
        {"stop_token_ids": [288]},
        {"stop": ""},
        {"stop": ["x"] * 17},
        {"top_logprobs": 5},
        {"logprobs": True, "top_logprobs": 21},
        {"priority": 2**31},
        {"model": "another"},
        {"stream": "yes"},
        {"bogus": None},
    ],
    ids=str,
)
def test_senseless_values_are_refused_by_name(talk: Talk, fields: dict[str, Any]) -> None:
    """Law 9: each is a 4xx that names its key, before anything is done."""
    error = talk.refusal("?", **fields)
    assert error["status"] in (400, 404)
    assert any(name in error["message"] + str(error["param"]) for name in fields)


NO_REQUESTS = (
    *("", "null", "[]", '"x"', "{", "{}{}", "\x00", '{"a": NaN}', "1e999"),
    *("[" * 5000, '{"messages": ' + "[" * 3000),
)


@pytest.mark.parametrize("text", NO_REQUESTS, ids=lambda text: repr(text[:12]))
def test_bodies_that_are_no_requests_are_refused(talk: Talk, text: str) -> None:
    """Law 8: however deep or short."""
    reply = httpx2.post(talk.server.url + CHAT, content=text, headers={"Content-Type": "application/json"}, timeout=60)
    assert reply.status_code == 400
    assert set(reply.json()) == {"error"}
    assert len(reply.text) < 1000
