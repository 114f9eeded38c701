"""What FlashInfer's documentation says of its paged wrappers, in plain torch on a CPU, with its names. Used to see
that our backend asks for the right thing; it proves nothing about the kernels."""

from __future__ import annotations

from typing import Any

import torch

# What was asked for: (class, method, positional arguments, named arguments).
asked: list[tuple[str, str, tuple[Any, ...], dict[str, Any]]] = []


class _Wrapper:
    def __init__(self, *args: Any, **named: Any) -> None:
        asked.append((type(self).__name__, "__init__", args, named))
        self.buffers = {name: value for name, value in named.items() if isinstance(value, torch.Tensor)}

    def plan(self, *args: Any, **named: Any) -> None:
        asked.append((type(self).__name__, "plan", args, named))
        self._plan(*args, **named)

    def run(self, q: torch.Tensor, paged_kv_cache: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        asked.append((type(self).__name__, "run", (q, paged_kv_cache), {}))
        out, offset = torch.empty_like(q), 0
        for index in range(len(self.last_page_len)):
            rows = slice(int(self.rows[index]), int(self.rows[index + 1]))
            pages = self.pages[int(self.pages_indptr[index]) : int(self.pages_indptr[index + 1])].long()
            size = (len(pages) - 1) * self.page_size + int(self.last_page_len[index])
            keys, values = (x[pages].flatten(0, 1)[:size].float() for x in paged_kv_cache)  # (size, KH, K)
            seen = self._seen(rows.stop - rows.start, size, offset)
            offset += seen.numel()
            out[rows] = self._attend(q[rows].float(), keys, values, seen).to(q.dtype)
        return out

    def _seen(self, rows: int, size: int, offset: int) -> torch.Tensor:
        if self.mask is not None:
            return self.mask[offset : offset + rows * size].view(rows, size)
        place = torch.arange(size - rows, size)[:, None]
        key = torch.arange(size)[None]
        return (key <= place) & ((key >= place - self.window_left) if self.window_left >= 0 else True)

    def _attend(self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        group = q.shape[1] // keys.shape[1]
        keys, values = (x.repeat_interleave(group, dim=1) for x in (keys, values))
        scores = torch.einsum("qhd,khd->hqk", q, keys) * self.sm_scale
        if self.soft_cap:
            scores = self.soft_cap * torch.tanh(scores / self.soft_cap)
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        return torch.einsum("hqk,khd->qhd", weights, values)

    def _fill(self, **tables: torch.Tensor) -> None:
        """A graph reads its wrapper's buffers, and nothing else; their number of sequences is fixed."""
        for name, values in tables.items():
            if self.buffers:
                assert "indices" in name or len(values) == len(self.buffers[name]), name
                self.buffers[name][: len(values)].copy_(values)

    def _keep(self, page_size: int, named: dict[str, Any]) -> None:
        self.page_size = page_size
        self.sm_scale, self.soft_cap = named["sm_scale"], named["logits_soft_cap"]
        self.window_left = named["window_left"]
        self.mask = named.get("custom_mask")
        assert self.mask is not None or named.get("causal", True)


class BatchPrefillWithPagedKVCacheWrapper(_Wrapper):
    def _plan(self, qo_indptr: Any, kv_indptr: Any, kv_indices: Any, last: Any, *sizes: int, **named: Any) -> None:
        self.rows, self.pages_indptr, self.pages, self.last_page_len = qo_indptr, kv_indptr, kv_indices, last
        self._fill(qo_indptr_buf=qo_indptr, paged_kv_indptr_buf=kv_indptr, paged_kv_indices_buf=kv_indices,
                   paged_kv_last_page_len_buf=last)  # fmt: skip
        self._keep(sizes[3], named)


class BatchDecodeWithPagedKVCacheWrapper(_Wrapper):
    def _plan(self, indptr: Any, indices: Any, last: Any, *sizes: int, **named: Any) -> None:
        self.rows, self.pages_indptr = torch.arange(len(indptr)), indptr
        self.pages, self.last_page_len = indices, last
        self._fill(paged_kv_indptr_buffer=indptr, paged_kv_indices_buffer=indices, paged_kv_last_page_len_buffer=last)
        self._keep(sizes[3], named)
