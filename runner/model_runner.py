"""Runs one planned step on the device: encode, fill the inputs, route, decode, sample. Owns the order of these; decides
neither what runs nor what becomes of the tokens.

`execute` asks the device for all of a step, and `sample` waits for its tokens: what the host does between the two costs
nothing on CUDA. On a CPU, `execute` computes.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from attention.leading import lead_rows
from attention.protocol import AttentionBackend
from runner.config import EngineConfig
from runner.draft_depth import depths_up_to
from runner.encoder_graphs import EncoderGraphs
from runner.encoder_runner import EncoderRunner
from runner.encoder_store import EncoderStore
from runner.families.base import Family
from runner.families.embedding import embedding_policy
from runner.graph_policy import GraphChoice
from runner.graphs import DecodeGraphs, capture_decodes
from runner.inputs import InputBuffers, StepInputs
from runner.plan import RowsWork, StepPlan
from runner.pooling import Pooled, pool_rows
from runner.route import DecodeBucket, Route, decode_ladder, route
from runner.row_ladder import choose_row_count
from runner.sampler import Sampled, SampleRow, sample_runs
from runner.states_read import StatesRead, states_read
from runner.threads import ComputeThreads
from runner.tokens_out import TokensOut, accept, is_quiet
from vision.towers.arranged import Tower

log = logging.getLogger("evserve.engine")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """The tokens drawn for each work that samples, one and those that its draft guessed, and one vector for each pooled
    sequence that is through, in the plan's order."""

    tokens: tuple[tuple[Sampled, ...], ...] = ()
    vectors: tuple[np.ndarray, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExecutedStep:
    """A step that the device was asked for. logits: (n, V) of the rows that sample, on the device; best: their
    likeliest tokens on their way to the host, where nothing else is needed."""

    rows: tuple[SampleRow, ...] = ()
    logits: torch.Tensor | None = None
    best: TokensOut | None = None
    vectors: tuple[np.ndarray, ...] = ()


class ModelRunner:
    """The model's thread alone calls this."""

    def __init__(
        self,
        config: EngineConfig,
        family: Family,
        backend: AttentionBackend,
        store: EncoderStore,
        *,
        max_model_len: int,
        dtype: torch.dtype,
        graphs: GraphChoice,
        threads: ComputeThreads | None = None,
    ) -> None:
        """threads: adjusted before each step; None leaves torch's as they are."""
        self._config = config
        self._family = family
        self.backend = backend
        self._store = store
        self.threads = threads
        self._pooling = embedding_policy(family).pooling
        self._depths: tuple[int, ...] = (1,)
        if config.speculating.method != "none":
            self._depths += tuple(1 + depth for depth in depths_up_to(config.speculating.max_tokens))
        device = backend.layout.device
        self._row_count = choose_row_count(device.type)
        self._inputs = InputBuffers(
            config, family.shape, backend, max_model_len=max_model_len, dtype=dtype, with_graphs=graphs.refusal is None,
            row_count=self._row_count, max_rows_per_seq=max(self._depths),
        )  # fmt: skip
        tower: Tower | None = getattr(family, "tower", None)
        encoder_graphs = EncoderGraphs(tower, device, policy=config.graphs, refusal=graphs.refusal)
        self.encoder = EncoderRunner(family, store, encoder_graphs, self._row_count)
        self.routes: Counter[tuple[str, str]] = Counter()
        self.graphs: DecodeGraphs | None = None
        self._refusal = graphs.refusal
        if graphs.refusal is None:
            self._capture(must=config.graphs == "always")

    def _capture(self, *, must: bool) -> None:
        buckets = decode_ladder(
            max_num_seqs=self._config.max_num_seqs,
            num_pages=self._inputs.columns,
            depths=self._depths,
            by_length=self.backend.capabilities.static_cost == "nameable",
        )
        self.graphs = capture_decodes(self._family, self.backend, self._inputs, buckets, must=must)
        self._refusal = "capture_failed" if self.graphs is None else None

    def run(self, plan: StepPlan) -> StepResult:
        return self.sample(self.execute(plan))

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> ExecutedStep:
        if self.threads is not None:
            self.threads.adjust(plan.num_rows, encodes=bool(plan.encoder))
        if plan.encoder:
            self.encoder.run(plan.encoder)
        if not plan.rows:
            return ExecutedStep()
        chosen = self._route(plan.rows)
        inputs = self._inputs.fill(plan.rows, self._store, self._family.embed, chosen.bucket)
        rows = tuple(_sample_row(work) for work in plan.rows if work.samples)
        read = states_read(plan.rows, self._pooling)
        hidden, logits = self._forward(inputs, chosen.bucket, read)
        vectors = tuple(self._pool(plan.rows, hidden, read))
        if logits is None:
            return ExecutedStep(vectors=vectors)
        if logits.device.type == "cuda" and is_quiet(rows):
            best = TokensOut(logits, rows[0].drawing.suppressed)
            return ExecutedStep(rows=rows, logits=logits, best=best, vectors=vectors)
        return ExecutedStep(rows=rows, logits=logits, vectors=vectors)

    @torch.inference_mode()
    def sample(self, executed: ExecutedStep) -> StepResult:
        if executed.logits is None:
            return StepResult(vectors=executed.vectors)
        if executed.best is not None:
            tokens = tuple(accept(executed.best.wait(), executed.rows))
        else:
            tokens = tuple(sample_runs(executed.logits.cpu(), executed.rows))
        return StepResult(tokens=tokens, vectors=executed.vectors)

    def _route(self, rows: Sequence[RowsWork]) -> Route[DecodeBucket]:
        captured = () if self.graphs is None else self.graphs.captured
        shape = self._inputs.shape_of(rows)
        chosen = route(shape, policy=self._config.graphs, captured=captured, refusal=self._refusal)
        if not self.routes[chosen.mode, chosen.reason]:
            log.info("steps run %s (%s)", "as graphs" if chosen.mode == "graph" else "eagerly", chosen.reason)
        self.routes[chosen.mode, chosen.reason] += 1
        return chosen

    def _forward(
        self, inputs: StepInputs, bucket: DecodeBucket | None, read: StatesRead
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Hidden states of the rows that are read, and logits of those that sample."""
        device = inputs.embeds.device
        if bucket is not None:
            assert self.graphs is not None
            hidden, logits = self.graphs.run(bucket, inputs.attention)
            hidden = hidden if read.rows is None else hidden[torch.from_numpy(read.rows).to(device)]
            return hidden, logits[inputs.sample_rows] if len(read.samples) else None
        hidden = self._decode(inputs, read.rows)
        if not len(read.samples):
            return hidden, None
        is_all = len(read.samples) == len(hidden)
        return hidden, self._family.logits(hidden if is_all else hidden[torch.from_numpy(read.samples).to(device)])

    def _decode(self, inputs: StepInputs, read: np.ndarray | None) -> torch.Tensor:
        """Hidden states of the rows that are read (n,), or of all, run eagerly."""
        count = inputs.num_rows if read is None else len(read)
        planned = lead_rows(self.backend.plan(inputs.attention), inputs.num_rows, of=len(inputs.embeds))
        wanted = None
        if read is not None:  # the last one again and again, up to a number of rows that kernels know
            again = np.pad(read, (0, self._row_count(count) - count), mode="edge") if count else read
            wanted = torch.from_numpy(again).to(inputs.embeds.device)
        hidden = self._family.forward(inputs.embeds, inputs.positions, inputs.visual, planned, wanted)
        return hidden[:count]

    def _pool(self, rows: Sequence[RowsWork], hidden: torch.Tensor, read: StatesRead) -> Iterator[np.ndarray]:
        """Vectors of pooled sequences; hidden (n, D), the states that are read."""
        first = 0
        for work, count in zip(rows, read.counts, strict=True):
            states = hidden[first : first + count]
            first += count
            if count and isinstance(work.sequence.goal, Pooled):
                pooling, length, start = self._pooling, len(work.sequence), work.stop - count
                vector = pool_rows(work.sequence.goal, states, start=start, length=length, pooling=pooling)
                if vector is not None:
                    yield vector


def _sample_row(work: RowsWork) -> SampleRow:
    sequence = work.sequence
    return SampleRow(
        drawing=sequence.drawing, prompt=sequence.prompt.token_ids, output=sequence.drawn,
        num_in_both=len(sequence.drawn_before), draft=work.draft,
    )  # fmt: skip
