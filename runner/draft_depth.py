"""Decides how many guessed tokens a step tries. Owns what was learned of their cost and of how often they were right;
knows no tokens and no clocks.

A step that tries k guesses for each of B sequences gives 1 and the accepted ones of each; it costs as much as was
measured. The depth with the most tokens a second wins, and 0 where none is better by MIN_GAIN. While it is 0, a guess
is tried now and then, so seldom that the steps that try it cost no more than PROBE_SHARE of all time.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from statistics import median

MIN_GAIN = 1.03
PROBE_SHARE = 0.01
PROBE_AT_LEAST = 8  # steps between two probes
PLAIN_EVERY = 64  # steps with guesses; then one without, whose cost is else not known any more
SAMPLES = 9  # times that are kept of each kind of step
ROW_COST = 0.05  # of a step, for each row more, until it is measured
LEARN = 0.25  # weight of the newest guess in an average
FIRST_RATE, LEAST_RATE = 0.5, 0.2  # what a new sequence's guesses are trusted


class AcceptRate:
    """How often a guess was right where those before it were: an exponential average."""

    def __init__(self, rate: float = FIRST_RATE) -> None:
        self.value = rate

    def learn(self, tried: int, accepted: int) -> None:
        """Guesses behind the first wrong one say nothing."""
        for place in range(min(tried, accepted + 1)):
            self.value += LEARN * ((place < accepted) - self.value)


def expected_tokens(rate: float, depth: int) -> float:
    """Accepted of `depth` guesses: rate + rate^2 + ... At 0.5: 0.5, 0.75, 0.875."""
    return sum(rate**place for place in range(1, depth + 1))


class StepCosts:
    """Seconds of steps that only decode, by batch size (in powers of two) and depth: medians of the last few."""

    def __init__(self) -> None:
        self._times: dict[tuple[int, int], deque[float]] = {}

    def learn(self, batch: int, depth: int, seconds: float) -> None:
        key = (_bucket(batch), depth)
        self._times.setdefault(key, deque(maxlen=SAMPLES)).append(seconds)

    def tried(self, batch: int) -> list[int]:
        """Depths whose cost was measured at such a batch, rising."""
        return sorted(depth for bucket, depth in self._times if bucket == _bucket(batch))

    def ratio(self, batch: int, depth: int) -> float:
        """The time of such a step over that of one without guesses. Of depths that were never tried, from the nearest
        one, in proportion. Never under 1.01 with guesses: they are not free, whatever a noisy machine says."""
        if depth == 0:
            return 1.0
        bucket, tried = _bucket(batch), self.tried(batch)
        if len(tried) < 2 or tried[0]:
            return 1.0 + ROW_COST * depth
        nearest = min(tried[1:], key=lambda other: abs(other - depth))
        more = median(self._times[bucket, nearest]) / median(self._times[bucket, 0]) - 1.0
        return max(1.01, 1.0 + more * depth / nearest)


class DraftDepth:
    """depths: those there are, rising, for instance (1, 2, 4, 8)."""

    def __init__(self, depths: Sequence[int]) -> None:
        self._depths = tuple(depths)
        self.costs = StepCosts()
        self.rate = AcceptRate()  # over all sequences
        self.reasons: Counter[str] = Counter()  # why steps had no guesses
        self._plain_steps = self._drafted_steps = 0

    @property
    def most(self) -> int:
        return self._depths[-1]

    def new_rate(self) -> AcceptRate:
        """For a sequence of which nothing is known."""
        return AcceptRate(max(self.rate.value, LEAST_RATE))

    def choose(self, batch: int, guesses: Sequence[tuple[float, int]]) -> int:
        """The depth of the next step. guesses: of each sequence the rate and how many tokens it could try."""
        most = max((reach for _, reach in guesses), default=0)
        depths = [depth for depth in self._depths if depth <= most]
        if not depths:
            return self._none("no_match")
        tried = self.costs.tried(batch)
        if 0 not in tried:
            return self._none("measuring")
        depths = [depth for depth in depths if depth <= 2 * max(1, tried[-1])]  # no leap into what may be dear
        best = max(depths, key=lambda depth: self._gain(batch, guesses, depth))
        if self._gain(batch, guesses, best) >= MIN_GAIN:
            self._drafted_steps += 1
            if self._drafted_steps % PLAIN_EVERY == 0:
                return self._none("measuring")
            return best
        if self._plain_steps >= self._probe_every(batch, depths[0]):
            self._plain_steps = 0
            return depths[0]
        return self._none("not_accepted")

    def _gain(self, batch: int, guesses: Sequence[tuple[float, int]], depth: int) -> float:
        """Tokens a second over those without guesses."""
        accepted = sum(expected_tokens(rate, min(depth, reach)) for rate, reach in guesses)
        return (batch + accepted) / batch / self.costs.ratio(batch, depth)

    def _probe_every(self, batch: int, depth: int) -> float:
        return max(PROBE_AT_LEAST, (self.costs.ratio(batch, depth) - 1.0) / PROBE_SHARE)

    def _none(self, reason: str) -> int:
        self.reasons[reason] += 1
        self._plain_steps += 1
        return 0


def depths_up_to(most: int) -> tuple[int, ...]:
    """Powers of two and `most`: 5 gives (1, 2, 4, 5)."""
    return tuple(sorted({most, *(1 << power for power in range(most.bit_length()))}))


def _bucket(batch: int) -> int:
    return (batch - 1).bit_length()
