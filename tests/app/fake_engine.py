"""A small engine that answers from a script, behind the same interface as runner.client.EngineClient.

Tokens are bytes: token i of its vocabulary is byte i, so a test writes what the model "says" as text.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from tokenizers import Tokenizer, decoders, models
from tokenizers.pre_tokenizers import ByteLevel

from app.detokenize import _CHAR_TO_BYTE
from runner.errors import EngineDeadError, EngineError
from runner.messages import (
    Accepted,
    Delta,
    EngineInfo,
    EvsUsage,
    Generate,
    Progress,
    PromptUsage,
    Render,
    Rendered,
    RenderedItem,
    Stats,
    TokenLogprob,
    VideoUsage,
)
from runner.requests import MediaPart, StoredFile

END = 256
VOCAB_SIZE = 260  # 257 is <think>, an added token that is text; 258 and 259 are padding of the logits
PROMPT_TOKENS = 7


def make_byte_tokenizer() -> Tokenizer:
    vocab = dict(_CHAR_TO_BYTE)
    assert set(vocab) == set(ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    tokenizer.add_tokens(["<think>"])
    return tokenizer


INFO = EngineInfo(
    model="fake",
    family="fake",
    device="cpu",
    dtype="float32",
    parameters=1,
    vocab_size=VOCAB_SIZE,
    max_model_len=4096,
    page_size=16,
    num_pages=10,
    max_num_seqs=4,
    max_num_batched_tokens=64,
    max_media_items=4,
    modalities=("text", "image", "video"),
    eos_token_ids=(END,),
    default_max_tokens=None,
    tokenizer_json=make_byte_tokenizer().to_str(),
    load_s=0.0,
)
CACHED_TOKENS = 3
USAGE = PromptUsage(
    prompt_tokens=PROMPT_TOKENS,
    video_tokens=4,
    evs=EvsUsage(
        method="none", frames=2, slots=1, cells=4, kept=4, kept_per_slot=((4,),), encoder_cells=4, encoder="full"
    ),
    video=(VideoUsage(duration_s=2.0, timestamps_s=(0.0, 1.0), size=(32, 32), fps=1.0),),
)


class FakeStream:
    def __init__(self, engine: FakeEngine, request: Generate) -> None:
        self.accepted = Accepted(request_id=request.request_id, usage=engine.usage, max_tokens=100)
        self._engine = engine
        self._request = request

    async def __aiter__(self) -> AsyncIterator[Delta]:
        try:
            async for delta in self._engine.play(self._request):
                yield delta
        finally:
            self.close()

    def end(self, index: int) -> None:
        self._engine.aborted_answers.append((self._request.request_id, index))

    def close(self) -> None:
        self._engine.live.discard(self._request.request_id)


class FakeEngine:
    """`says` is the answer, a token (a byte) a step. An EngineError in `refuses` is what submission raises."""

    def __init__(
        self,
        says: str | bytes | Sequence[int] = "hello",
        *,
        refuses: EngineError | None = None,
        fails_at: int | None = None,
        dies_at: int | None = None,
        tokens_per_step: int = 1,
        finish: str = "stop",
        usage: PromptUsage = USAGE,
    ) -> None:
        self.usage = usage
        self.info = INFO
        self.is_alive = True
        self.requests: list[Generate | Render] = []
        self.live: set[str] = set()
        self.aborted_answers: list[tuple[str, int]] = []
        self.files: list[bytes] = []
        self.submit_gate = asyncio.Event()
        self.submit_gate.set()
        self.step_gate: Callable[[int], bool] = lambda _: True
        self.reached_submit = asyncio.Event()
        self.closed = False
        self._ids = list(says.encode() if isinstance(says, str) else says)
        self._refuses = refuses
        self._fails_at = fails_at
        self._dies_at = dies_at
        self._tokens_per_step = tokens_per_step
        self._finish = finish

    async def generate(self, request: Generate, *, progress: Callable[[Progress], None] | None = None) -> FakeStream:
        self.requests.append(request)
        self._read_files(request)
        self.live.add(request.request_id)
        self.reached_submit.set()
        try:
            await self.submit_gate.wait()
            if self._refuses is not None:
                raise self._refuses
        except BaseException:
            self.live.discard(request.request_id)
            raise
        return FakeStream(self, request)

    async def play(self, request: Generate) -> AsyncIterator[Delta]:
        limit = request.sampling.max_tokens
        ids = self._ids[:limit]
        cut = limit is not None and limit <= len(self._ids)
        steps = [ids[at : at + self._tokens_per_step] for at in range(0, len(ids), self._tokens_per_step)]
        for place, step in enumerate(steps):
            while not self.step_gate(place):
                await asyncio.sleep(0.005)
            await asyncio.sleep(0)
            if place == self._dies_at:
                self.is_alive = False
                raise EngineDeadError("the engine has stopped")
            for index in range(request.n):
                yield self._delta(request, index, step, place)
                if place == self._fails_at:
                    return
        for index in range(request.n):
            yield Delta(
                request_id=request.request_id,
                index=index,
                token_ids=(),
                finish_reason="length" if cut else self._finish,
                stop_token_id=None if cut else END,
                cached_tokens=CACHED_TOKENS if index == 0 else 0,
            )

    def _delta(self, request: Generate, index: int, step: list[int], place: int) -> Delta:
        logprobs: tuple[TokenLogprob, ...] = ()
        if (count := request.sampling.top_logprobs) is not None:
            logprobs = tuple(
                TokenLogprob(logprob=-0.5, top=tuple((i, -0.5 - i) for i in range(65, 65 + count))) for _ in step
            )
        return Delta(
            request_id=request.request_id,
            index=index,
            token_ids=tuple(step),
            logprobs=logprobs,
            cached_tokens=CACHED_TOKENS if index == 0 else 0,
            finish_reason="error" if place == self._fails_at else None,
            error="secret detail at 0xdeadbeef" if place == self._fails_at else None,
        )

    async def render(self, request: Render) -> Rendered:
        self.requests.append(request)
        if self._refuses is not None:
            raise self._refuses
        item = RenderedItem(
            kind="video",
            timestamps_s=(0.0, 1.0),
            size=(32, 32),
            slots=1,
            grid=(2, 2),
            kept=((0, 1, 2, 3),),
            pixels_sha256="00",
            frames_png=(b"png",) if request.include_frames else (),
        )
        return Rendered(
            request_id=request.request_id, prompt_token_ids=(1, 2), position_ids=((0, 1),), items=(item,), usage=USAGE
        )

    @property
    def trouble(self) -> EngineDeadError | None:
        return None if self.is_alive else EngineDeadError("gone")

    async def stats(self, request_id: str) -> Stats:
        if not self.is_alive:
            raise EngineDeadError("gone")
        return Stats(
            request_id=request_id,
            counters={"vllm:prompt_tokens_total": 12.0, 'evs:route_total{mode="eager",reason="a \\"b\\""}': 2.0},
            gauges={"vllm:num_requests_running": 1.0},
        )

    async def close(self, *, grace_s: float = 5.0) -> None:
        self.closed = True
        self.is_alive = False

    def _read_files(self, request: Generate) -> None:
        for message in request.chat:
            for part in message.parts:
                if isinstance(part, MediaPart) and isinstance(part.source, StoredFile):
                    self.files.append(Path(part.source.path).read_bytes())
