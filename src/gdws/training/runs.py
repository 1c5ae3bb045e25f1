"""The folder of a training: what is needed to go on after it was cut, its log, and the weights that are kept so far.

checkpoint.safetensors   everything that the next epoch starts from, written whole or not at all
log.jsonl                a line for each epoch
model.safetensors        the weights of the epoch that is kept so far (of a tuning, with balanced factors: gdws.training.tuning)
tensorboard/             the log once more, where tensorboard is installed
.lock                    while a process trains in it
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from gdws.core.errors import GdwsError
from gdws.core.files import check_file, ensure_folder, locked, write_atomically
from gdws.core.reading.schema import Between, Count, build, from_json
from gdws.core.reading.weights import contiguous_copies, read_weights

FORMAT = "gdws training 4"
ADDED = {"code or constants"}
"""What the identities of earlier versions lack."""
ADDED_SETTINGS = {"nesterov": True}
"""What their recipes lack, and what it was."""


@dataclass(frozen=True)
class _State:
    history: list[dict[str, Any]]


@dataclass(frozen=True)
class _Stored:
    """What a checkpoint says beside its tensors."""

    format: Literal["gdws training 4"]
    identity: dict[str, Any]
    state: _State


@dataclass(frozen=True)
class _Judged:
    """What a line for an epoch has at least."""

    epoch: Count
    natural: Annotated[float, Between(0, 100)]
    robust: Annotated[float, Between(0, 100)]


@contextmanager
def open_run(folder: Path, identity: dict[str, Any], resume: bool, writes: bool) -> Iterator[Run]:
    """A Run, as long as which no other training is let into the folder. Arguments: Run."""
    ensure_folder(folder)
    with locked(folder / ".lock", f"trains in {folder}") if writes else nullcontext():
        run = Run(folder, identity, resume, writes)
        with nullcontext() if run.board is None else closing(run.board):
            yield run


class Run:
    """`identity` is what a training must have in common with the one that it continues: recipe, data, network.

    Of several processes only the first `writes`; all read.
    """

    def __init__(self, folder: Path, identity: dict[str, Any], resume: bool, writes: bool = True) -> None:
        self.folder, self.identity, self.writes = folder, json.loads(json.dumps(identity)), writes
        self.checkpoint, self.log, self.best = (
            folder / name for name in ("checkpoint.safetensors", "log.jsonl", "model.safetensors")
        )
        for file in (self.checkpoint, self.log, self.best):
            check_file(file)
        training = self.checkpoint.exists() or self.log.exists()
        if training and not resume:
            raise GdwsError(f"{folder} holds a training: expected another folder, or to continue that one (--resume)")
        taken = [name for name in ("gdws.json", "model", self.best.name) if (folder / name).exists()]
        if taken and not training:
            raise GdwsError(f"{folder} holds {taken[0]}, which is no training's: expected another folder")
        self.board = _board(folder / "tensorboard") if writes else None

    def continued(self) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
        """The state and tensors of the last checkpoint, if there is one; lines of the log that are younger are dropped."""
        if not self.checkpoint.exists():
            if self.writes:
                self.log.unlink(missing_ok=True)
            return None
        tensors = read_weights(self.checkpoint)
        stored = self._stored()
        changed = [
            name
            for name in sorted((self.identity.keys() - ADDED) | stored.identity.keys())
            if self.identity.get(name) != stored.identity.get(name)
        ]
        if changed:
            raise GdwsError(
                f"{self.folder} was trained with {_difference(stored.identity, self.identity, changed)}: expected that again"
            )
        if self.writes:
            self._write_log(stored.state.history)
        return {"history": stored.state.history}, tensors

    def _stored(self) -> _Stored:
        """What a checkpoint says beside its tensors."""
        problem = f"{self.checkpoint} is not a checkpoint of gdws train"
        try:
            with safe_open(self.checkpoint, "pt") as file:
                stored = from_json(_Stored, (file.metadata() or {}).get("gdws", ""), problem)
        except (SafetensorError, OSError) as error:
            raise GdwsError(f"{self.checkpoint} cannot be read ({error}): expected a checkpoint of gdws train") from None
        settings: dict[str, Any] = build(dict[str, Any], stored.identity.get("recipe"), problem, "identity.recipe")
        stored.identity["recipe"] = ADDED_SETTINGS | settings
        for place, line in enumerate(stored.state.history):
            judged = {name: line[name] for name in ("epoch", "natural", "robust") if name in line}
            build(_Judged, judged, problem, f"state.history[{place}]")
            build(dict[str, float], line, problem, f"state.history[{place}]")
        return stored

    def keep(self, state: dict[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Write a checkpoint."""
        if not self.writes:
            return
        record = json.dumps({"format": FORMAT, "identity": self.identity, "state": state})
        write_atomically(self.checkpoint, save(contiguous_copies(tensors), {"gdws": record}))

    def keep_best(self, tensors: Mapping[str, Tensor]) -> None:
        """Write the weights of the epoch that is kept so far."""
        if self.writes:
            write_atomically(self.best, save(contiguous_copies(tensors)))

    def write(self, history: Sequence[dict[str, Any]]) -> None:
        """Write the log, of which the last epoch is new."""
        if not self.writes:
            return
        self._write_log(history)
        if self.board is not None:
            for name, value in history[-1].items():
                if isinstance(value, float):
                    self.board.add_scalar(name, value, history[-1]["epoch"])
            self.board.flush()

    def _write_log(self, history: Sequence[dict[str, Any]]) -> None:
        write_atomically(self.log, "".join(json.dumps(line) + "\n" for line in history))


def _difference(stored: dict[str, Any], now: dict[str, Any], changed: list[str]) -> str:
    """What is no longer as it was: the settings of the recipe by name, the rest by what it is."""
    if "recipe" in changed:
        fields = [name for name in now["recipe"] if now["recipe"][name] != stored["recipe"].get(name)]
        return ", ".join(f"{name} {stored['recipe'].get(name)} and not {now['recipe'][name]}" for name in fields)
    return ", ".join(f"another {name}" for name in changed)


def _board(folder: Path) -> Any:
    if importlib.util.find_spec("tensorboard") is None:
        return None
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(folder)
