"""The result of an evaluation: per-image correctness, for every network and every attack."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gdws.planning.significance import PairedChange, paired_change, wilson

NATURAL, WORST = "natural", "worst case"


class Trial(NamedTuple):
    """The network that is evaluated (judge), the attack ("natural" for none), and the network that was attacked (maker)."""

    judge: str
    attack: str
    maker: str


@dataclass(frozen=True)
class Comparison:
    """What every network made of every image.

    makers    for each judge, in order, the network whose examples it is robust against; the networks themselves come first,
              and the first of them is the base.
    attacks   their labels.
    right     for each trial, bools (N,). An image that is wrong without an attack counts as wrong with it.
    settings  of the evaluation, for a record.
    """

    makers: dict[str, str]
    attacks: tuple[str, ...]
    right: dict[Trial, Tensor]
    settings: dict[str, Any]

    @property
    def images(self) -> int:
        """How many images were evaluated."""
        return len(next(iter(self.right.values())))

    @property
    def networks(self) -> list[str]:
        """The names of the networks, without what is deployed of them."""
        return [judge for judge, maker in self.makers.items() if judge == maker]

    @property
    def base(self) -> str:
        """The name of the network that the others are compared with."""
        return self.networks[0]

    @property
    def examples(self) -> tuple[str, ...]:
        """What a network is judged on: natural images, each attack's, and the worst case where that is something else."""
        return (NATURAL, *self.attacks, WORST) if len(self.attacks) > 1 else (NATURAL, *self.attacks)

    def under(self, judge: str, examples: str) -> Tensor:
        """Which images (N,) a judge classifies correctly.

        judge     the name of a network, or of what is deployed of one.
        examples  "natural", the label of an attack on the judge's own network, or "worst case" for the worst of all.
        """
        maker = self.makers[judge]
        if examples != WORST:
            return self.right[Trial(judge, examples, maker)]
        return torch.stack([self.right[Trial(judge, name, maker)] for name in (NATURAL, *self.attacks)]).all(0)

    def reference(self, judge: str) -> str:
        """What a judge is compared with: the base, or for something deployed its own float32 network."""
        return self.base if judge == self.makers[judge] else self.makers[judge]

    def paired_change(self, judge: str, examples: str) -> PairedChange:
        """A `judge` compared with its reference on the same `examples`: images lost and gained, points, interval, p-value."""
        return paired_change(self.under(self.reference(judge), examples), self.under(judge, examples))

    @property
    def transfers(self) -> list[Trial]:
        """Trials on examples that were made on another network."""
        return [trial for trial in self.right if self.makers[trial.judge] != trial.maker]

    def record(self) -> dict[str, Any]:
        """As JSON: a row for each judge, and every image's correctness as one character of a string."""
        rows = []
        for judge in self.makers:
            worst = self.under(judge, WORST) if self.attacks else None
            row: dict[str, Any] = {"model": judge, "natural": percent(self.under(judge, NATURAL))}
            row["robust"] = None if worst is None else percent(worst)
            row["examples"] = {
                name: {"percent": percent(right), "interval": interval(right), "right": _bits(right)}
                for name in self.examples
                for right in [self.under(judge, name)]
            }
            if (reference := self.reference(judge)) != judge:
                pairs = {name: self.paired_change(judge, name) for name in self.examples}
                row["compared with"] = reference
                row["paired"] = {
                    name: {**asdict(pair), "points": pair.points, "interval": pair.interval, "p": pair.p_value}
                    for name, pair in pairs.items()
                }
            rows.append(row)
        transfers = [
            {**trial._asdict(), "percent": percent(right), "interval": interval(right), "right": _bits(right)}
            for trial in self.transfers
            for right in [self.right[trial]]
        ]
        return {"images": self.images, "rows": rows, "transfer": transfers, **self.settings}


def percent(right: Tensor) -> float:
    return 100 * int(right.sum()) / len(right)


def interval(right: Tensor) -> tuple[float, float]:
    """Wilson's 95 % interval, in percent."""
    low, high = wilson(int(right.sum()), len(right))
    return 100 * low, 100 * high


def _bits(right: Tensor) -> str:
    return "".join("01"[bit] for bit in right.int().tolist())
