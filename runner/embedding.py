"""From an embedding request to pooled sequences: the checkpoint's own template and sampling round what was sent. Owns
the layout of inputs; knows no sockets and never touches the model.
"""

from __future__ import annotations

import msgspec
import numpy as np

from runner.admission import Admission, Laid
from runner.embed_messages import ChatInput, Embed, EmbedInput, TokensInput
from runner.errors import RequestError
from runner.families.base import Family
from runner.families.embedding import EmbeddingPolicy, embedding_policy
from runner.ingest import Caller
from runner.messages import PromptUsage
from runner.pooling import Pooled, check_dimensions
from runner.prompt import Prompt
from runner.requests import ChatMessage, MediaPart, TextPart, VideoOptions
from runner.sequence import Sequence

MAX_INPUTS = 2048


def submit_embedding(
    admission: Admission, request: Embed, arrival: int, caller: Caller
) -> tuple[list[Sequence], tuple[PromptUsage, ...]]:
    """Check, decode, select, lay out: one pooled sequence and one usage an input.

    Raises RequestError, or RequestCancelled once the caller has gone.
    """
    check_request(request, admission.family)
    sequences, usages = [], []
    for index, wanted in enumerate(request.inputs):
        prompt, laid = _lay_out(admission, wanted, request, caller)
        goal = Pooled(dimensions=request.dimensions, normalize=request.normalize)
        sequences.append(
            Sequence(
                request_id=request.request_id, index=index, arrival=arrival, priority=request.priority,
                prompt=prompt, items=() if laid is None else laid.items, goal=goal,
            )
        )  # fmt: skip
        usages.append(PromptUsage(prompt_tokens=len(prompt)) if laid is None else laid.usage)
    return sequences, tuple(usages)


def check_request(request: Embed, family: Family) -> None:
    if not 1 <= len(request.inputs) <= MAX_INPUTS:
        raise RequestError(
            "invalid", f"a request takes 1 to {MAX_INPUTS} inputs, this one has {len(request.inputs)}", param="input"
        )
    wrong = check_dimensions(request.dimensions, family.shape.hidden_size)
    if wrong is not None:
        raise RequestError("invalid", wrong, param="dimensions")


def _lay_out(admission: Admission, wanted: EmbedInput, request: Embed, caller: Caller) -> tuple[Prompt, Laid | None]:
    match wanted:
        case ChatInput(chat=chat):
            laid = admission.lay_out(write_chat(chat, embedding_policy(admission.family)), request.evs, None, caller)
            return laid.prompt, laid
        case TokensInput(token_ids=token_ids):
            return _token_prompt(admission, token_ids), None


def write_chat(chat: tuple[ChatMessage, ...], policy: EmbeddingPolicy) -> tuple[ChatMessage, ...]:
    """The checkpoint's instruction as the first turn where the chat brings none, and its sampling under each part's.

    Worked example, instruction "Represent it.": (user: hello) becomes (system: Represent it., user: hello); a chat
    that begins with a system turn keeps its own.
    """
    turns = tuple(
        msgspec.structs.replace(turn, parts=tuple(_fill_part(part, policy) for part in turn.parts)) for turn in chat
    )
    if policy.instruction is None or (turns and turns[0].role == "system"):
        return turns
    return (ChatMessage(role="system", parts=(TextPart(text=policy.instruction),)), *turns)


def _fill_part(part: TextPart | MediaPart, policy: EmbeddingPolicy) -> TextPart | MediaPart:
    if isinstance(part, TextPart):
        return part
    defaults = policy.image if part.kind == "image" else policy.video
    return msgspec.structs.replace(part, video=merge_options(part.video, defaults))


def merge_options(wanted: VideoOptions, defaults: VideoOptions) -> VideoOptions:
    """What was asked for over the checkpoint's own; a number of frames takes the place of a rate."""
    values = {
        name: value if value is not None else getattr(defaults, name)
        for name, value in msgspec.structs.asdict(wanted).items()
    }
    if wanted.num_frames is not None:
        values["fps"] = wanted.fps
    return VideoOptions(**values)


def _token_prompt(admission: Admission, token_ids: tuple[int, ...]) -> Prompt:
    family = admission.family
    if not token_ids:
        raise RequestError("invalid", "an input has no tokens", param="input")
    marks = {family.placeholder_id(kind) for kind in family.modalities}
    wrong = next((token for token in token_ids if not 0 <= token < family.shape.vocab_size or token in marks), None)
    if wrong is not None:
        raise RequestError("invalid", f"token id {wrong} is not a token of text of this model", param="input")
    admission.check_length(len(token_ids))
    length = len(token_ids)
    return Prompt(
        token_ids=np.asarray(token_ids, dtype=np.int64),
        positions=family.positions(length, (), ()),
        item=np.full(length, -1, dtype=np.int32),
        rank=np.full(length, -1, dtype=np.int64),
        next_position=length,
    )
