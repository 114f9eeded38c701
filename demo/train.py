"""Train the demo model: from nothing by a curriculum, or onward from a checkpoint.

    python -m demo.train OUT --clips 300000                         from nothing
    python -m demo.train OUT --clips 40000 --start demo/model       onward

Owns the command and the loop. Each step is drawn from the seed and its number, so that a run which was stopped and goes
on from its state file ends with the same weights, bit for bit, on one thread of the same machine.
"""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

import torch

from demo.draws import FROM_NOTHING, ONWARD, READOUT
from demo.learner import Learner, Plan, StepReport
from demo.quick_score import score_quickly

LOG_EVERY, SAVE_EVERY, SCORE_EVERY = 20, 40, 200
SCORED_CLIPS = 96


def main() -> None:
    args = parse_arguments()
    torch.set_num_threads(args.threads)
    torch.set_default_device(args.device)
    plan = Plan(
        clips=args.clips,
        batch=args.batch,
        rate=args.rate,
        seed=args.seed,
        curriculum=FROM_NOTHING if args.start is None else ONWARD if args.learns_tower else READOUT,
        learns_tower=args.learns_tower,
    )
    learner = Learner.begin(plan, start=args.start)
    if args.state is not None and args.state.exists():
        learner.load(args.state)
        print(f"goes on at step {learner.step}, {learner.clips} clips", flush=True)
    train(learner, state=args.state, stop_after=args.stop_after)
    print_scores(learner)
    learner.save_checkpoint(args.out)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train the demo model.")
    parser.add_argument("out", type=Path, help="folder of the checkpoint")
    parser.add_argument("--clips", type=int, required=True, help="length of the whole training, in clips")
    parser.add_argument("--start", type=Path, help="a checkpoint's folder to go on from; without it, from nothing")
    parser.add_argument("--batch", type=int, default=32, help="clips of a step")
    parser.add_argument("--rate", type=float, default=1.2e-3, help="largest learning rate")
    parser.add_argument("--keep-tower", dest="learns_tower", action="store_false", help="and the words, as they are")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu", help="of torch, for example cuda")
    parser.add_argument("--state", type=Path, help="file to save to and go on from")
    parser.add_argument("--stop-after", type=int, help="stop after this many steps of the whole")
    return parser.parse_args()


def train(learner: Learner, *, state: Path | None, stop_after: int | None = None) -> None:
    """Step until the plan's clips are seen or stop_after steps are done, saving the state on the way and at the end."""
    reports: deque[StepReport] = deque(maxlen=LOG_EVERY)
    while learner.clips < learner.plan.clips and (stop_after is None or learner.step < stop_after):
        reports.append(learner.take_step())
        if learner.step % LOG_EVERY == 0:
            print_progress(learner, reports)
        if learner.step % SCORE_EVERY == 0:
            print_scores(learner)
        if state is not None and learner.step % SAVE_EVERY == 0:
            learner.save(state)
    if state is not None:
        learner.save(state)


def print_progress(learner: Learner, reports: Sequence[StepReport]) -> None:
    clips, cpu_s = sum(report.clips for report in reports), sum(report.cpu_s for report in reports)
    search = [report.search for report in reports if report.search is not None]
    print(
        f"step {learner.step} clips {learner.clips} ({100 * learner.progress:.1f} %) {clips / cpu_s:.1f} clips/cpu-s "
        f"data {mean(report.data_s for report in reports):.2f} s loss {mean(report.answers for report in reports):.4f} "
        f"right {mean(report.right for report in reports):.4f} cells {mean(report.cells for report in reports):.3f} "
        f"looks {mean(report.looks for report in reports):.3f} "
        f"search {mean(search or (0.0,)):.3f}",
        flush=True,
    )


def print_scores(learner: Learner) -> None:
    """Accuracy by kind of question on a few clips, without and with the gate."""
    for regime, counts in score_quickly(learner.tower, learner.reader, learner.words, clips=SCORED_CLIPS):
        right, asked = (sum(column) for column in zip(*counts.values(), strict=True))
        kinds = " ".join(f"{kind} {good / of:.2f} ({of})" for kind, (good, of) in sorted(counts.items()))
        print(f"SCORE {regime} {right / asked:.4f} | {kinds}", flush=True)


if __name__ == "__main__":
    main()
