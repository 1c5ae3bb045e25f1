"""One record for each row: what was found, how surely, beside its base and beside the paper, and how it was made."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gdws.core.errors import GdwsError
from gdws.core.files import Kind, ensure_folder, write_atomically
from gdws.core.reading.limits import read_file
from gdws.core.reading.schema import parse
from gdws.planning.significance import paired_change
from gdws.reproduce.place import UNREACHED, Place, Step
from gdws.reproduce.rows import Line
from gdws.reproduce.steps.compressed import Compressed
from gdws.reproduce.steps.judged import unpack

FORMAT = "gdws row 1"
SECONDS = ("training seconds", "pruning seconds", "calibration seconds", "compression seconds", "tuning seconds")
CIRCUMSTANCES = ("seed", "machine", "torch", "commit", "command", "date")
DETAILS = ("history", "stages", "layers", "filter sparsity", "recipe", "format", "step", "seconds in all")
LONG = (*DETAILS, *SECONDS, *CIRCUMSTANCES)
"""What the description of a network has beside its sizes."""
JUDGED = ("columns", "images", "batch", "attacks", "crafted in", "seconds")

Record = dict[str, Any]


def write_record(place: Place, line: Line) -> Record | None:
    """Write the record of a line with what is known so far. None if there is no network yet."""
    made = record_of(place, line)
    if made is not None:
        ensure_folder(place.out / "rows")
        write_atomically(place.out / "rows" / f"{line.name}.json", json.dumps(made, indent=1), Kind.RECORD)
    return made


def record_of(place: Place, line: Line) -> Record | None:
    """What is known of a line: what it is, and what was found."""
    network = place.record(line.network)
    if network is None:
        return None
    record: Record = {
        "format": FORMAT,
        "name": line.name,
        "title": line.title,
        "scale": place.scale.name,
        "tables": line.tables,
    }
    record |= {
        "method": line.method,
        "match": line.match,
        "tuned": line.tuned,
        "recipe": "ours" if line.ours else "the paper's",
    }
    record |= {"beside": line.beside, "compared with": "" if line.reference is None else line.reference.name}
    record |= {"paper": line.paper, "size": line.size, "data": line.network.data}
    if UNREACHED in network:
        return record | {UNREACHED: network[UNREACHED], "judged": {}, "paired": {}, "missing": []}
    record["network"] = {name: value for name, value in network.items() if name not in LONG}
    record |= {name: network[name] for name in ("layers", "filter sparsity") if name in network}
    judged = {
        name: found
        for name, step in line.judged.items()
        if (found := place.record(step)) is not None and UNREACHED not in found
    }
    record["judged"] = {name: {key: found[key] for key in JUDGED} for name, found in judged.items()}
    record["paired"] = _paired(place, line, judged)
    if (timed := place.record(line.timed)) is not None:
        record["speed"] = {"device": timed["device"], "timings": timed["timings"]}
    record["missing"] = [step.key for step in line.steps if place.record(step) is None]
    record["minutes"] = sum(_seconds(place, line.network, set())) / 60
    last = max((network, *judged.values()), key=lambda found: str(found.get("date", "")))
    return record | {name: last[name] for name in CIRCUMSTANCES if name in last}


def read_records(folder: Path) -> dict[str, Record]:
    """All records of a folder, by name."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        record = parse(read_file(path), f"{path} is not whole")
        if not isinstance(record, dict) or record.get("format") != FORMAT:
            raise GdwsError(f"{path} is no record of a row: expected {FORMAT!r}")
        found[str(record["name"])] = record
    return found


def value_of(record: Record, evaluation: str, name: str) -> float | None:
    """One number of a record by the name of a column: percent, mb, beta, fps or minutes."""
    if name == "fps":
        return float(record["speed"]["timings"]["eager"]["fps"]) if "speed" in record else None
    if name == "minutes":
        return float(record["minutes"]) if "minutes" in record else None
    if name in ("mb", "beta", "fraction of macs"):
        value = record.get("network", {}).get(name)
        return None if value is None else float(value)
    column = record.get("judged", {}).get(evaluation, {}).get("columns", {}).get(name)
    return None if column is None else float(column["percent"])


def _paired(place: Place, line: Line, judged: dict[str, Record]) -> Record:
    """Each column beside the same column of what the network was made of, image by image."""
    if line.reference is None:
        return {}
    found: Record = {}
    for name, own in judged.items():
        step = line.reference.judged.get(name)
        other = None if step is None else place.record(step)
        if other is None or UNREACHED in other:
            continue
        count = own["images"]
        found[name] = {}
        for column, right in own["columns"].items():
            change = paired_change(unpack(other["columns"][column], count), unpack(right, count))
            told = {"points": change.points, "interval": change.interval, "p": change.p_value}
            found[name][column] = asdict(change) | told
    return found


def _seconds(place: Place, step: Step, seen: set[str]) -> Iterator[float]:
    """What a network took to make, with all that it was made of."""
    if step.key in seen:
        return
    seen.add(step.key)
    record = place.record(step) or {}
    yield sum(float(record.get(name, 0.0)) for name in SECONDS)
    compared = step.like if isinstance(step, Compressed) else None  # whose size it has, but not made of it
    for needed in step.needs:
        if needed is not compared:
            yield from _seconds(place, needed, seen)
