"""What the model and its memory can hold, and whether more rows fit a live sequence. Owns the sums; knows no queue and
computes nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from runner.appending import Addition
from runner.encoder_store import EncoderStore
from runner.errors import RequestError
from runner.pooling import Pooled
from runner.ranges import longest_range
from runner.sequence import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the model and its memory can hold."""

    max_model_len: int
    max_positions: int
    kv_tokens: int
    max_media_items: int
    step_tokens: int  # rows of one step, which a range of rows that see each other must fit

    @property
    def context(self) -> int:
        """Rows of one sequence: the model's bound, and what all pages hold."""
        return min(self.max_model_len, self.kv_tokens)


def check_addition(
    limits: Limits, store: EncoderStore, sequence: Sequence, waiting: Iterable[Addition], addition: Addition
) -> None:
    """Raises RequestError where a sequence that is given these rows, behind those that wait to be appended to it, could
    not be computed to the end of all it may still draw. Nothing is changed.

    Worked example: a sequence of 20 rows, 3 of them drawn of at most 8, may become one of 25. In a context of 40 it
    takes 15 rows more, in one go or in several.
    """
    pooled = isinstance(sequence.goal, Pooled)
    to_draw = 0 if pooled else sequence.drawing.max_tokens - sequence.num_drawn
    more = [*(other.prompt for other in waiting), addition.prompt]
    rows = len(sequence) + to_draw + sum(map(len, more))
    if rows > limits.context:
        raise _too_long(f"the sequence would have {rows} tokens, with {to_draw} still to be drawn", limits.context)
    drawn = len(sequence.output)
    positions = sequence.prompt.next_position + drawn + to_draw + sum(prompt.next_position for prompt in more)
    if positions > limits.max_positions:
        raise _too_long(f"the sequence would reach position {positions}", limits.max_positions)
    if (longest := longest_range(addition.prompt.ranges)) > limits.step_tokens:
        raise _too_long(f"{longest} of these tokens are read at once", limits.step_tokens)
    for found in addition.prompt.ranges:
        store.check_together([addition.items[index] for index in addition.prompt.items_within(found)])


def _too_long(what: str, most: int) -> RequestError:
    message = f"{what}, and the server holds at most {most}; append less, or begin anew"
    return RequestError("invalid", message, code="context_length_exceeded")
