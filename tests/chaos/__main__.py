"""The runner: `python -m chaos`."""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import sys
import tempfile
import time
from collections import Counter, defaultdict
from multiprocessing import get_context
from pathlib import Path
from typing import TextIO

import torch
from torch.onnx._internal.exporter._registration import ONNXRegistry

from chaos import material, workers
from chaos.campaign import PARTS, families
from chaos.case import GOOD, Family, Outcome
from chaos.confine import confine


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"{', '.join(PARTS)}, or one family such as mutants/onnx; all by default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--share", type=float, default=1.0, help="of the full length")
    parser.add_argument("--short", action="store_true", help="a few cases of each part, in less than half a minute")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--case", help="one case alone, such as mutants/onnx/17, in this process")
    parser.add_argument("--failures", type=Path, default=Path("out/chaos.jsonl"), help="where failures are written")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    # Its five hundred operators are else read for every export, which is half of an export's time.
    ONNXRegistry.from_torchlib = staticmethod(functools.cache(ONNXRegistry.from_torchlib))
    chosen.failures.parent.mkdir(parents=True, exist_ok=True)
    written = Path(os.devnull) if chosen.case else chosen.failures
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder, written.open("w") as failures:
        # In a child: this process keeps its rights, to take the folder away.
        confined = get_context("fork").Process(target=_run, args=(chosen, Path(folder).resolve(), failures))
        confined.start()
        try:
            confined.join()
        except KeyboardInterrupt:
            confined.join()
        return int(confined.exitcode or 0)


def _run(chosen: argparse.Namespace, folder: Path, failures: TextIO) -> None:
    confine(folder)
    os.environ |= {"HOME": str(folder), "TMPDIR": str(folder)}
    tempfile.tempdir = str(folder)
    sys.exit(run(chosen, folder, failures))


def run(chosen: argparse.Namespace, folder: Path, failures: TextIO) -> int:
    prepare(folder)
    if chosen.case:
        name, _, index = chosen.case.rpartition("/")
        (family,) = [family for family in families() if family.name == name]
        outcome = workers.run_alone(family, int(index), chosen.seed, folder / "case")
        print(outcome)
        return int(outcome.kind not in GOOD)
    wanted = [family for family in families() if not chosen.parts or selected(family, chosen.parts)]
    counts = {family.name: family.short if chosen.short else max(1, round(chosen.share * family.count)) for family in wanted}
    tally, begun = Tally(), time.monotonic()
    supplies = [(family, counts[family.name]) for family in wanted]
    for outcome in workers.run_all(supplies, chosen.seed, folder, chosen.processes):
        tally.add(outcome)
        if outcome.kind not in GOOD:
            failures.write(json.dumps(vars(outcome)) + "\n")
            failures.flush()
        if tally.total % 500 == 0:
            print(f"... {tally.line()} after {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    for line in tally.groups():
        print(line)
    print(f"chaos, seed {chosen.seed}: {tally.line()} in {(time.monotonic() - begun) / 60:.1f} min")
    return int(tally.failed > 0)


def prepare(folder: Path) -> None:
    """Make the whole files in a process of their own, so that this one has no threads when it forks."""
    material.ROOT = folder / "material"
    making = get_context("fork").Process(target=material.make, args=(material.ROOT,))
    making.start()
    making.join()
    if making.exitcode:
        raise SystemExit("the whole files could not be made")


def selected(family: Family, parts: list[str]) -> bool:
    return any(family.name == part or family.name.startswith(f"{part}/") for part in parts)


class Tally:
    """Distinct cases by part and outcome, and failures by cause."""

    def __init__(self) -> None:
        self.seen = set[tuple[str, str]]()
        self.counts: dict[str, Counter[str]] = defaultdict(Counter)
        self.causes: dict[tuple[str, str, str, str], list[Outcome]] = defaultdict(list)
        self.largest = Outcome("", "")

    def add(self, outcome: Outcome) -> None:
        self.largest = max(self.largest, outcome, key=lambda each: each.memory)
        family = outcome.name.rpartition("/")[0]
        key = (family, outcome.key or outcome.name)
        if key in self.seen:
            return
        self.seen.add(key)
        self.counts[family.partition("/")[0]][outcome.kind] += 1
        if outcome.kind not in GOOD:
            told = re.sub(r"[\d.]+|'[^']*'|\[.*?\]", "N", outcome.told.partition(" -> ")[2])
            self.causes[family, outcome.kind, outcome.where, told[:60]].append(outcome)

    @property
    def total(self) -> int:
        return len(self.seen)

    @property
    def failed(self) -> int:
        return sum(len(outcomes) for outcomes in self.causes.values())

    def line(self) -> str:
        parts = []
        for part, counts in self.counts.items():
            outcomes = ", ".join(f"{number:,} {kind}" for kind, number in counts.most_common())
            parts.append(f"{counts.total():,} {part} ({outcomes})")
        memory = f"at most {self.largest.memory / 1e9:.2f} GB ({self.largest.name})"
        return f"{'; '.join(parts)}; {memory}; {self.failed:,} failures"

    def groups(self) -> list[str]:
        """A line for each cause, the most frequent first."""
        found = sorted(self.causes.items(), key=lambda item: -len(item[1]))
        return [
            f"{len(outcomes):5} {family} {kind} {where} {outcomes[0].told[-330:]} [--case {outcomes[0].name}]".replace(
                "\n", " "
            )
            for (family, kind, where, _), outcomes in found
        ]


if __name__ == "__main__":
    sys.exit(main())
