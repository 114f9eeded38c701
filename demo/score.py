"""Ask a running server every question of sample_videos/answers.json and count the exact answers.

    python demo/score.py [URL]

Owns the count and nothing else: it is a client like any other and knows nothing of the engine.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

SAMPLES = Path(__file__).parents[1] / "sample_videos"
DEFAULT_URL = "http://127.0.0.1:8000"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One question, what is true and what the server said."""

    clip: str
    question: str
    expected: str
    got: str

    @property
    def is_exact(self) -> bool:
        return self.got.strip() == self.expected


def ask_all(client: httpx.Client, *, model: str, answers: dict[str, dict[str, str]]) -> Iterator[Answer]:
    """Ask each question alone, greedily."""
    for clip, questions in answers.items():
        url = "data:video/mp4;base64," + base64.b64encode((SAMPLES / clip).read_bytes()).decode()
        for question, expected in questions.items():
            got = ask_question(client, model=model, video_url=url, question=question)
            yield Answer(clip=clip, question=question, expected=expected, got=got)


def ask_question(client: httpx.Client, *, model: str, video_url: str, question: str) -> str:
    content = [{"type": "video_url", "video_url": {"url": video_url}}, {"type": "text", "text": question}]
    body = {"model": model, "messages": [{"role": "user", "content": content}], "temperature": 0}
    response = client.post("/v1/chat/completions", json=body)
    response.raise_for_status()
    text: str = response.json()["choices"][0]["message"]["content"]
    return text


def main(url: str) -> None:
    answers = json.loads((SAMPLES / "answers.json").read_text())
    with httpx.Client(base_url=url, timeout=120) as client:
        model = client.get("/v1/models").raise_for_status().json()["data"][0]["id"]
        results = list(ask_all(client, model=model, answers=answers))
    for wrong in (r for r in results if not r.is_exact):
        print(f"{wrong.clip}: {wrong.question}\n    expected {wrong.expected}\n    got      {wrong.got}")
    print(json.dumps({"model": model, "exact": sum(r.is_exact for r in results), "asked": len(results)}))


if __name__ == "__main__":
    main(*(sys.argv[1:] or [DEFAULT_URL]))
