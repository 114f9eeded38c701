"""Submission: from a request to sequences that are sure to run. Owns every check a user can fail, and ends before the
first token; knows no sockets and never touches the model.

Runs in threads beside the model's: decoding waits in a child process, the rest is arithmetic on small arrays.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from runner.config import EvsServing
from runner.entering import encoders_of
from runner.errors import RequestCancelled, RequestError
from runner.evs_options import settle_policy
from runner.families.base import Family
from runner.ingest import Caller, Chosen, Ingest
from runner.items import MediaItem
from runner.limits import Limits
from runner.messages import Generate, PromptUsage
from runner.prompt import Prompt, build_prompt
from runner.ranges import longest_range
from runner.requests import ChatMessage, EvsOptions, MediaPart
from runner.sampling import Drawing, settle_sampling
from runner.sequence import Sequence
from runner.tokenizer import PromptTokenizer
from runner.usage import prompt_usage

MAX_ANSWERS = 128
LONG_TEXT_CHARS = 8  # for each token of the context: longer texts are looked at in slices first


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Laid:
    """A chat with its media decoded and selected and its prompt laid out. `room`: tokens that may be generated."""

    items: tuple[MediaItem, ...]
    prompt: Prompt
    usage: PromptUsage
    room: int


class Admission:
    """Shared by the submitting threads; holds no request's state. With `seed`, requests that give none draw from their
    order of arrival, and not from chance."""

    def __init__(
        self,
        family: Family,
        tokenizer: PromptTokenizer,
        ingest: Ingest,
        limits: Limits,
        *,
        evs: EvsServing,
        seed: int | None,
    ) -> None:
        self.family = family
        self.ingest = ingest
        self.limits = limits
        self._tokenizer = tokenizer
        self.evs = evs
        self._seed = seed

    def submit(self, request: Generate, arrival: int, caller: Caller) -> tuple[list[Sequence], PromptUsage]:
        """Check, decode, select, lay out. Raises RequestError, or RequestCancelled once the caller has gone."""
        if not 1 <= request.n <= MAX_ANSWERS:
            raise RequestError("invalid", f"n must be between 1 and {MAX_ANSWERS}, got {request.n}", param="n")
        self._settle(request, room=1, seed=0, stream=0)  # what is wrong with the values is wrong before any decoding
        laid = self.lay_out(request.chat, request.evs, request.sampling.max_tokens, caller)
        seed = self._seed_of(request, arrival)
        sequences = [
            Sequence(
                request_id=request.request_id,
                index=index,
                arrival=arrival,
                priority=request.priority,
                prompt=laid.prompt,
                items=laid.items,
                goal=self._settle(request, room=laid.room, seed=seed, stream=index),
                wants_progress=request.progress,
            )
            for index in range(request.n)
        ]
        return sequences, laid.usage

    def lay_out(self, chat: tuple[ChatMessage, ...], evs: EvsOptions, max_tokens: int | None, caller: Caller) -> Laid:
        """Decode and select every part in written order and build the prompt. Lengths are checked before anything is
        encoded: where the places of kept cells are still to come, their count is known."""
        policy = settle_policy(evs, self.evs, encoders=encoders_of(self.family))
        parts = [part for message in chat for part in message.parts if isinstance(part, MediaPart)]
        self._check_parts(chat, parts)
        self._check_texts(chat)
        chosen: list[Chosen] = []
        for part in parts:
            siblings = sum(other.kind == part.kind for other in parts)
            chosen.append(self.ingest.choose(part, siblings, policy, caller.cancel))
            caller.tell_decoded(len(chosen), len(parts))
        prompt, items = self.build(chat, [choice.provisional_item for choice in chosen])
        promised = sum(choice.num_promised_drops for choice in chosen)
        room = self._room(len(prompt) - promised, prompt.next_position, max_tokens)
        self._check_ranges(prompt, items, promised)
        if promised:
            prompt, items = self.build(chat, [self.ingest.finish(choice, caller) for choice in chosen])
            self._check_ranges(prompt, items, 0)
        if caller.cancel.is_set():
            raise RequestCancelled
        return Laid(items=items, prompt=prompt, usage=prompt_usage(prompt, items, policy), room=room)

    def build(self, chat: tuple[ChatMessage, ...], items: Seq[MediaItem]) -> tuple[Prompt, tuple[MediaItem, ...]]:
        return build_prompt(self.family, self._tokenizer, chat, items)

    def _settle(self, request: Generate, *, room: int, seed: int, stream: int) -> Drawing:
        family = self.family
        return settle_sampling(
            request.sampling, family.defaults, vocab_size=family.shape.vocab_size, room=room, seed=seed, stream=stream
        )

    def _seed_of(self, request: Generate, arrival: int) -> int:
        if request.sampling.seed is not None:
            return request.sampling.seed
        return secrets.randbits(64) if self._seed is None else self._seed + (arrival << 16)

    def _check_parts(self, chat: tuple[ChatMessage, ...], parts: list[MediaPart]) -> None:
        if not any(message.parts for message in chat):
            raise RequestError("invalid", "messages hold no content at all", param="messages")
        if len(parts) > self.limits.max_media_items:
            raise RequestError(
                "invalid",
                f"a request may hold {self.limits.max_media_items} images and videos, this one holds {len(parts)}",
                param="messages",
            )
        for part in parts:
            if part.kind not in self.family.modalities:
                raise RequestError("invalid", f"this model takes no {part.kind} input", param="messages")

    def _check_texts(self, chat: tuple[ChatMessage, ...]) -> None:
        """Raises RequestError for a text that is far too long, before all of it is tokenised."""
        limit = self.limits.context
        texts = [part.text for message in chat for part in message.parts if not isinstance(part, MediaPart)]
        for text in texts:
            if len(text) > limit * LONG_TEXT_CHARS and self._tokenizer.exceeds(text, limit):
                raise RequestError(
                    "invalid",
                    f"a text of {len(text)} characters has more tokens than the server's context, {limit}; shorten it",
                    param="messages",
                    code="context_length_exceeded",
                )

    def check_length(self, tokens: int) -> None:
        """Raises RequestError for a prompt of text of so many tokens that cannot be read whole."""
        self._room(tokens, tokens, None)

    def _check_ranges(self, prompt: Prompt, items: Seq[MediaItem], promised: int) -> None:
        """Rows that see each other are computed in one step, with all their encodings at hand. Raises RequestError
        where that cannot be, though `promised` rows may still be dropped."""
        longest, most = longest_range(prompt.ranges) - promised, self.limits.step_tokens
        if longest > most:
            raise RequestError(
                "invalid",
                f"this model reads {longest} tokens of the prompt at once and the server computes at most {most} in a "
                "step: sample fewer frames, shorten the text, or serve with a larger --max-num-batched-tokens",
                param="messages",
                code="context_length_exceeded",
            )
        if not promised:
            for found in prompt.ranges:
                self.ingest.store.check_together([items[index] for index in prompt.items_within(found)])

    def _room(self, prompt_tokens: int, next_position: int, max_tokens: int | None) -> int:
        """Tokens that may still be generated; raises when the prompt and max_tokens cannot fit."""
        limits = self.limits
        room = limits.context - prompt_tokens
        if room < 1:
            raise RequestError(
                "invalid",
                f"the prompt has {prompt_tokens} tokens and the server's context is "
                f"{limits.context}; sample fewer frames or shorten the text",
                param="messages",
                code="context_length_exceeded",
            )
        room = min(room, limits.max_positions - next_position)
        if room < 1 or (max_tokens is not None and max_tokens > room):
            raise RequestError(
                "invalid",
                f"the prompt has {prompt_tokens} tokens, which leaves room for {max(room, 0)} more; "
                f"max_tokens asks for {max_tokens or 1}",
                param="max_tokens",
                code="context_length_exceeded",
            )
        return room
