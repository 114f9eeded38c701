"""The engine's counters and gauges by their public names: vLLM's where they mean the same, `evs:` for our own. Owns
the names; counts nothing itself."""

from __future__ import annotations

from runner.assembly import Assembled
from runner.messages import Stats
from runner.model_runner import ModelRunner
from runner.speculation import Speculation
from runner.submissions import Submissions


def collect_stats(request_id: str, assembled: Assembled, submissions: Submissions) -> Stats:
    """A snapshot; read beside the model's thread, so that its parts may be a step apart."""
    engine, scheduler = assembled.engine, assembled.engine.scheduler
    counters: dict[str, float] = {
        "vllm:prompt_tokens_total": engine.counters["prompt_tokens"],
        "vllm:generation_tokens_total": engine.counters["generation_tokens"],
        "vllm:num_preemptions_total": scheduler.events["preemptions"],
        "evs:submissions_cancelled_total": submissions.counters["cancelled"],
    }
    for reason in ("stop", "length", "abort", "error"):
        counters[f'vllm:request_success_total{{finished_reason="{reason}"}}'] = engine.counters[f"finished_{reason}"]
    for name, count in list(submissions.counters.items()):
        if name.startswith("rejected_"):
            counters[f'evs:requests_rejected_total{{kind="{name.removeprefix("rejected_")}"}}'] = count
    for cache, events in (("encoder", assembled.store.events), ("media", assembled.admission.ingest.cache.events)):
        for event in ("hits", "misses", "evictions"):
            counters[f"evs:{cache}_cache_{event}_total"] = events[event]
    counters["evs:stream_slots_encoded_again_total"] = assembled.store.events["encoded_again"]
    for (backend, reason), count in list(assembled.admission.ingest.decodes.items()):
        quoted = reason.replace('"', "'")
        counters[f'evs:decodes_total{{backend="{backend}",reason="{quoted}"}}'] = count
    counters |= _prefix_counters(assembled)
    for (what, method), count in list(submissions.cells.items()):
        counters[f'evs:cells_{what}_total{{method="{method}"}}'] = count
    counters |= _speculation_counters(engine.speculation)
    counters |= _runner_counters(engine.runner)
    pages = assembled.pages
    gauges: dict[str, float] = {
        "vllm:num_requests_running": len(scheduler.running),
        "vllm:num_requests_waiting": scheduler.num_waiting + submissions.num_pending,
        "vllm:kv_cache_usage_perc": 1 - pages.num_free / pages.num_pages,
        "evs:kv_pages_free": pages.num_free,
        "evs:kv_pages_cached": pages.num_cached,
        "evs:kv_pages_total": pages.num_pages,
        "evs:encoder_outputs_pinned": assembled.store.num_pinned,
        "evs:encoder_outputs_bytes": assembled.store.used_bytes,
        "evs:media_cache_bytes": assembled.admission.ingest.cache.used_bytes,
    }
    if assembled.pool.is_sealed is not None:
        gauges["evs:decode_children_sealed"] = float(assembled.pool.is_sealed)
    return Stats(request_id=request_id, counters=counters, gauges=gauges)


def _runner_counters(runner: ModelRunner) -> dict[str, float]:
    """What steps and batches there were, and why they ran as they did."""
    counters: dict[str, float] = {"evs:encoder_seconds_total": runner.encoder.seconds}
    for name, by_reason in (
        ("steps", runner.routes),
        ("encoder_batches", runner.encoder.routes),
        ("encoder_patches", runner.encoder.patches),
    ):
        for (mode, reason), count in list(by_reason.items()):
            counters[f'evs:{name}_total{{mode="{mode}",reason="{reason}"}}'] = count
    return counters


def _speculation_counters(speculation: Speculation) -> dict[str, float]:
    """Nothing where nobody guesses. The mean length of what a drafting step accepts is accepted / drafts + 1."""
    if speculation.method == "none":
        return {}
    counted, labels = speculation.counters, f'{{method="{speculation.method}"}}'
    found: dict[str, float] = {
        f"vllm:spec_decode_num_drafts_total{labels}": counted["drafts"],
        f"vllm:spec_decode_num_draft_tokens_total{labels}": counted["drafted"],
        f"vllm:spec_decode_num_accepted_tokens_total{labels}": counted["accepted"],
    }
    for depth, count in list(speculation.depths.items()):
        found[f'evs:decode_steps_total{{depth="{depth}"}}'] = count
    for reason, count in list(speculation.reasons.items()):
        found[f'evs:steps_without_drafts_total{{reason="{reason}"}}'] = count
    return found


def _prefix_counters(assembled: Assembled) -> dict[str, float]:
    """Tokens that were looked for among computed prompts, and those that were found."""
    prefix = assembled.engine.scheduler.prefix
    counters: dict[str, float] = {
        "vllm:prefix_cache_queries_total": prefix.events["queries"],
        "vllm:prefix_cache_hits_total": prefix.events["hits"],
        "evs:prefix_cache_evictions_total": assembled.pages.num_evicted,
    }
    for reason, count in list(prefix.skipped.items()):
        counters[f'evs:prefix_cache_skipped_total{{reason="{reason}"}}'] = count
    return counters
