"""Owns the state of a training run and one step of it. Knows nothing of commands or logs."""

from __future__ import annotations

import os
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from tokenizers import Tokenizer

from demo.batches import Batch, prepare_batch
from demo.draws import Curriculum, draw_level, draw_samples, find_stage
from demo.looks import find_looks, look_loss
from demo.losses import CellHeads, answer_loss, cell_loss, search_loss
from demo.net import Reader, States, Tower, keep_tower, load_model, make_model, teach_words
from demo.tokens import Words, extend_tokenizer, train_tokenizer

WARMUP_STEPS = 50
DECAY_SHARE = 0.7
LAST_RATE = 0.02
GAIN_RATE = 3.0
"""What scales queries and keys learns this much faster. Each starts at 1, where no attention is sharp: a row could not
single out one cell of a hundred, and at the common rate these gains hardly move in as many steps as there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """clips: of the whole run. batch: clips of a step. rate: the largest learning rate. learns_tower: otherwise it
    stays as it is, and so do the words."""

    clips: int
    batch: int
    rate: float
    seed: int
    curriculum: Curriculum
    learns_tower: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """Losses of one step, the share of answer tokens that was right, and processor seconds. search: None where the step
    had none."""

    clips: int
    answers: float
    right: float
    cells: float
    looks: float
    search: float | None
    data_s: float
    cpu_s: float


class Learner:
    """Weights, heads, optimisers and how far they are, on torch's default device."""

    def __init__(self, plan: Plan, model: Any, words: Words) -> None:
        torch.manual_seed(plan.seed)
        self.device = torch.get_default_device()
        self.plan, self.words = plan, words
        if not plan.learns_tower:
            keep_tower(model)
        self.model, self.heads = model.to(self.device), CellHeads().to(self.device)
        self.tower, self.reader = Tower(model), Reader(model)
        self.step, self.clips = 0, 0
        learning = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        matrices = [p for name, p in learning if p.ndim == 2 and "embed" not in name]
        gains = [p for name, p in learning if name.endswith(("q_norm.weight", "k_norm.weight"))]
        chosen = {id(p) for p in (*matrices, *gains)}
        others = [p for p in (*(p for _, p in learning), *self.heads.parameters()) if id(p) not in chosen]
        muon = torch.optim.Muon(
            matrices, lr=plan.rate, weight_decay=0.05, momentum=0.95, nesterov=True, adjust_lr_fn="match_rms_adamw"
        )
        groups = [{"params": others}, {"params": gains, "faster": GAIN_RATE}]
        self.optimizers = [muon, torch.optim.AdamW(groups, lr=plan.rate, betas=(0.9, 0.95), weight_decay=0.0)]

    @classmethod
    def begin(cls, plan: Plan, *, start: Path | None) -> Self:
        """From nothing, or from a checkpoint whose tokenizer learns the words that it lacks."""
        if start is None:
            words = Words(train_tokenizer())
            return cls(plan, make_model(words, plan.seed), words)
        model, old = load_model(start), Words.of_folder(start)
        words = Words(extend_tokenizer(Tokenizer.from_file(str(start / "tokenizer.json"))))
        teach_words(model, old, words)
        return cls(plan, model, words)

    @property
    def progress(self) -> float:
        """The share of the plan that is done."""
        return self.clips / self.plan.clips

    def take_step(self) -> StepReport:
        """Draw, read, learn."""
        began = time.process_time()
        rng = random.Random(f"{self.plan.seed}/{self.step}")
        stage = find_stage(self.plan.curriculum, self.progress)
        samples = draw_samples(rng, draw_level(rng, stage), self.plan.batch)
        drawn = time.process_time()
        self._set_rate()
        with torch.autocast(self.device.type, torch.bfloat16):
            batch = prepare_batch(rng, self.tower, self.words, samples)
            states = self.reader.read(batch.prompts, batch.read_rows())
            answers, right = answer_loss(self.reader, states.last, batch.prompts.labels)
            search = None
            if self.step % 2 == 0:
                search = search_loss(rng, self.reader, self.words, samples, states.last, batch.prompts)
        cells, looks = cell_loss(self.heads, batch, states.cells), self._look(states, batch)
        loss = answers + stage.cells_weight * cells + stage.looks_weight * looks
        if search is not None:
            loss = loss + stage.search_weight * search
        self._learn(loss)
        self.step, self.clips = self.step + 1, self.clips + len(samples)
        return StepReport(
            clips=len(samples),
            answers=answers.item(),
            right=right,
            cells=cells.item(),
            looks=looks.item(),
            search=None if search is None else search.item(),
            data_s=drawn - began,
            cpu_s=time.process_time() - began,
        )

    def _look(self, states: States, batch: Batch) -> torch.Tensor:
        return look_loss(states.scores, batch.prompts.mask, find_looks(self.words, batch))

    def _learn(self, loss: torch.Tensor) -> None:
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def _set_rate(self) -> None:
        """A short warm-up, then flat, then a line down over the last 70 %."""
        down = min(1.0, max(LAST_RATE, (1 - self.progress) / DECAY_SHARE))
        rate = self.plan.rate * min(1.0, (self.step + 1) / WARMUP_STEPS) * down
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group.get("faster", 1.0) * rate

    def save(self, path: Path) -> None:
        """All that the next step depends on, by an atomic rename."""
        state = {
            "model": self.model.state_dict(),
            "heads": self.heads.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "step": self.step,
            "clips": self.clips,
            "tokenizer": self.words.tokenizer.to_str(),
        }
        fresh = path.with_name(path.name + ".new")
        torch.save(state, fresh)
        os.replace(fresh, path)

    def load(self, path: Path) -> None:
        state = torch.load(path, weights_only=True, map_location=self.device)
        self.model.load_state_dict(state["model"])
        self.heads.load_state_dict(state["heads"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.step, self.clips = state["step"], state["clips"]

    def save_checkpoint(self, folder: Path) -> None:
        """Weights in fp32 and the tokenizer; `python -m demo.export` makes the folder that is shipped."""
        self.model.save_pretrained(folder)
        self.words.tokenizer.save(str(folder / "tokenizer.json"))
