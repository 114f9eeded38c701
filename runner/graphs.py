"""Steps of fixed shape that are run again and again over persistent buffers: CUDA graphs on CUDA, and on a CPU the same
functions of no arguments, which can read nothing else either. Owns the capture; decides nothing and knows no queues.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Any

import torch

from attention.protocol import AttentionBackend, AttentionMetadata, StaticAttention
from runner.errors import EngineStartError
from runner.families.base import Family
from runner.inputs import InputBuffers
from runner.route import DecodeBucket

log = logging.getLogger("evserve.engine")

Outputs = tuple[torch.Tensor, ...]
WARM_UPS = 2  # kernels are chosen, and their workspaces taken, before the capture


class StaticStep:
    """body() reads and writes persistent tensors alone, and gives tensors. `replay` runs it for what these hold now;
    what it gives is valid until the next replay of any step that shares `pool`."""

    def __init__(self, body: Callable[[], Outputs], device: torch.device, pool: Any = None) -> None:
        self._body = body
        self._graph: Any = None
        self._outputs: Outputs = ()
        if device.type == "cuda":
            self._capture(pool)

    def _capture(self, pool: Any) -> None:
        cuda: Any = torch.cuda
        current, side = cuda.current_stream(), cuda.Stream()
        side.wait_stream(current)
        with cuda.stream(side):
            for _ in range(WARM_UPS):
                self._body()
        current.wait_stream(side)
        cuda.synchronize()
        self._graph = cuda.CUDAGraph()
        with cuda.graph(self._graph, pool=pool):
            self._outputs = self._body()

    def replay(self) -> Outputs:
        if self._graph is None:
            return self._body()
        self._graph.replay()
        return self._outputs


class DecodeGraphs:
    """Graphs of the decoder and its head, for steps of these shapes. Captured the largest first, into one pool of
    memory: what a smaller one needs fits in it. All leave what they give in the same two tensors."""

    def __init__(
        self, family: Family, backend: AttentionBackend, inputs: InputBuffers, buckets: Collection[DecodeBucket]
    ) -> None:
        device, rows = backend.layout.device, max(bucket.num_rows for bucket in buckets)
        shape = family.shape
        self._hidden = torch.zeros((rows, shape.hidden_size), dtype=inputs.embeds.dtype, device=device)
        self._logits = torch.zeros((rows, shape.vocab_size), device=device)
        self._pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None
        self._steps: dict[DecodeBucket, tuple[StaticAttention, StaticStep]] = {}
        for bucket in buckets:
            attention = backend.plan_static(inputs.tables(bucket))
            attention.refresh(inputs.idle(bucket))
            body = _decode_body(family, attention, inputs, bucket, self._outputs(bucket))
            self._steps[bucket] = attention, StaticStep(body, device, self._pool)

    @property
    def captured(self) -> Collection[DecodeBucket]:
        return self._steps.keys()

    def run(self, bucket: DecodeBucket, metadata: AttentionMetadata) -> tuple[torch.Tensor, torch.Tensor]:
        """Hidden states (rows, D) and logits (rows, V) of the batch that the inputs hold, filled up to the bucket."""
        attention, step = self._steps[bucket]
        attention.refresh(metadata)
        step.replay()
        hidden, logits = self._outputs(bucket)
        return hidden, logits

    def _outputs(self, bucket: DecodeBucket) -> Outputs:
        return self._hidden[: bucket.num_rows], self._logits[: bucket.num_rows]


def _decode_body(
    family: Family, attention: StaticAttention, inputs: InputBuffers, bucket: DecodeBucket, outputs: Outputs
) -> Callable[[], Outputs]:
    embeds, positions = inputs.embeds[: bucket.num_rows], inputs.positions.device[:, : bucket.num_rows]

    def body() -> Outputs:
        hidden = family.forward(embeds, positions, None, attention.begin())
        outputs[0].copy_(hidden)
        outputs[1].copy_(family.logits(hidden))
        return ()

    return body


@torch.inference_mode()
def capture_decodes(
    family: Family,
    backend: AttentionBackend,
    inputs: InputBuffers,
    buckets: Collection[DecodeBucket],
    *,
    must: bool,
) -> DecodeGraphs | None:
    """None where the model cannot be captured and need not be. Raises EngineStartError where it must."""
    try:
        return DecodeGraphs(family, backend, inputs, buckets)
    except Exception as error:
        if must:
            raise EngineStartError(f"--graphs always: {family.name} cannot be captured: {error}") from error
        log.warning("graphs: %s cannot be captured (%s); decoding goes on without", family.name, error)
        return None
