"""How much memory the engine gives to pages and encodings, derived from the model and the machine. Owns the sums and
the sentence said about them at start; allocates nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from attention.protocol import KVLayout
from runner.config import EngineConfig
from runner.errors import EngineStartError
from runner.families.base import DecoderShape
from runner.pages import pages_for

# Shares of what is free once the weights are in memory.
KV_SHARE = {"cpu": 0.4, "cuda": 0.8}
ENCODER_SHARE = 0.05
MIN_ENCODER_BYTES = 64 << 20
# On a CPU, KV memory is the system's until it is written, and what is cached never goes back.
CPU_PREFIX_CACHE_BYTES = 512 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    kv: KVLayout
    max_model_len: int
    max_cached_pages: int
    encoder_cache_bytes: int
    notes: tuple[str, ...]


def plan_capacity(
    config: EngineConfig,
    shape: DecoderShape,
    dtype: torch.dtype,
    device: torch.device,
    free_bytes: int,
    *,
    draft_page_bytes: int = 0,
) -> Capacity:
    """Pages for every sequence at full length if that fits the share of free memory, else what fits. draft_page_bytes:
    what a guessing model keeps beside each page.

    Raises EngineStartError when a length was asked for that the pages cannot hold.
    """
    page = KVLayout(
        num_layers=shape.num_layers, num_pages=1, page_size=config.page_size, num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim, dtype=dtype, device=device, layers=shape.layers,
    )  # fmt: skip
    wanted_len = config.max_model_len or shape.max_positions
    if wanted_len > shape.max_positions:
        raise EngineStartError(f"max_model_len {wanted_len} is over the model's {shape.max_positions} positions")
    wanted = config.max_num_seqs * pages_for(wanted_len, config.page_size)
    budget = config.kv_memory_bytes or int(free_bytes * KV_SHARE[device.type])
    num_pages = max(1, min(wanted, budget // (page.page_bytes + draft_page_bytes)))
    tokens = num_pages * config.page_size
    if config.max_model_len is not None and tokens < config.max_model_len:
        raise EngineStartError(
            f"{budget} bytes of KV memory hold {tokens} tokens, fewer than max_model_len {config.max_model_len}; "
            "give more with --kv-memory or lower --max-model-len"
        )
    max_model_len = min(wanted_len, tokens)
    encoder = config.encoder_cache_bytes or max(MIN_ENCODER_BYTES, int(free_bytes * ENCODER_SHARE))
    kv = KVLayout(
        num_layers=shape.num_layers, num_pages=num_pages, page_size=config.page_size, num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim, dtype=dtype, device=device, layers=shape.layers,
    )  # fmt: skip
    cached = config.prefix_cache_bytes
    if cached is None:
        cached = CPU_PREFIX_CACHE_BYTES if device.type == "cpu" else num_pages * page.page_bytes
    max_cached_pages = min(num_pages, cached // page.page_bytes)
    notes = (
        f"KV memory: {num_pages} pages of {config.page_size} tokens, {num_pages * page.page_bytes / 2**20:.0f} MiB",
        _say_prefix_cache(kv, max_cached_pages),
        f"context: {max_model_len} tokens (the model has {shape.max_positions} positions)",
        f"encoder outputs: at most {encoder / 2**20:.0f} MiB",
    )
    return Capacity(
        kv=kv, max_model_len=max_model_len, max_cached_pages=max_cached_pages, encoder_cache_bytes=encoder, notes=notes
    )


def _say_prefix_cache(kv: KVLayout, max_cached_pages: int) -> str:
    if kv.window is not None:
        return f"prefix cache: none, for every layer has a window, of at most {kv.window} tokens"
    return f"prefix cache: at most {max_cached_pages} of them" if max_cached_pages else "prefix cache: none"


def free_memory_bytes(device: torch.device) -> int:
    """What the device could still give: free memory on CUDA, available memory under this process's limits on a CPU."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    available = int(fields["MemAvailable"].split()[0]) * 1024
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.is_file() and (text := limit.read_text().strip()).isdigit():
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        available = min(available, int(text) - used)
    return max(available, 0)
