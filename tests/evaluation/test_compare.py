"""The evaluation's promises: the same starts for all, results that do not depend on how they were come by, files that hold."""

import copy
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from gdws import data, models
from gdws.attacks import PGD
from gdws.core.errors import GdwsError
from gdws.core.files import locked
from gdws.deploy.onnx.reading import images_together
from gdws.deploy.runtimes import OnnxRuntime
from gdws.evaluation import deployed
from gdws.evaluation.accuracy import evaluate
from gdws.evaluation.compare import OutOfTime, compare, random_starts, without_early_exit
from gdws.evaluation.comparison import NATURAL, WORST, Trial
from gdws.evaluation.deployed import Deployed, deployed_file, deployed_half
from gdws.models.names import resolve

ATTACKS = [PGD(steps=3), PGD(eps=12 / 255, step=4 / 255, steps=5)]
WEAK, STRONG = map(str, ATTACKS)


def batches_of(images, labels, size=50):
    return list(zip(images.split(size), labels.split(size), strict=True))


def disturbed(model, amount=0.2):
    generator = torch.Generator().manual_seed(1)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(amount * parameter.std() * torch.randn(parameter.shape, generator=generator))
    return other


@pytest.fixture(scope="module")
def pair(small):
    model, *batch = small
    return {"base": model, "other": disturbed(model)}, batches_of(*batch)


@pytest.fixture(scope="module")
def found(pair):
    return compare(*pair, ATTACKS, seed=3)


def same(one, two):
    assert one.right.keys() == two.right.keys()
    for trial, right in one.right.items():
        assert torch.equal(right, two.right[trial]), trial


def test_every_decision_is_what_a_plain_loop_finds(pair, found):
    networks, batches = pair
    for number, (images, labels) in enumerate(batches):
        part = slice(50 * number, 50 * (number + 1))
        for maker, network in networks.items():
            for attack in ATTACKS:
                examples = attack(network, images, labels, random_starts(attack, 3, number))
                for judge in networks:
                    natural = networks[judge](images).argmax(1) == labels
                    expected = natural & (networks[judge](examples).argmax(1) == labels)
                    assert torch.equal(found.right[Trial(judge, NATURAL, judge)][part], natural)
                    assert torch.equal(found.right[Trial(judge, str(attack), maker)][part], expected)


def test_the_worst_case_is_the_minimum_over_everything(found):
    for judge in ("base", "other"):
        rows = torch.stack([found.under(judge, name) for name in (NATURAL, WEAK, STRONG)])
        assert torch.equal(found.under(judge, WORST), rows.all(0))
    assert 0 < found.under("base", WORST).sum() < found.under("base", NATURAL).sum()
    pair = found.paired_change("other", WORST)
    assert pair.both + pair.lost == found.under("base", WORST).sum()
    assert pair.both + pair.gained == found.under("other", WORST).sum()


@dataclass(frozen=True)
class Stopping:
    """PGD that may stop at the first wrong decision, as the presets do."""

    early_exit: bool = True
    restarts: int = 3

    def __call__(self, model, images, labels, generator):
        assert self.early_exit == (self.restarts == 3)
        x = images
        for steps in range(1, 6) if self.early_exit else [20]:
            found = PGD(steps=steps, step=4 / 255)(model, images, labels, torch.Generator().manual_seed(0))
            wrong = (model(x).argmax(1) != labels)[:, None, None, None] & torch.tensor(self.early_exit)
            x = torch.where(wrong, x, found)
        return x.detach()


def test_examples_for_other_networks_are_made_to_the_end(pair):
    """Bug: examples of an attack that stops early made every network look safe from every other."""
    networks, batches = pair
    attack = Stopping()
    found = compare(networks, batches, [attack], deployed={"form": Deployed("base", networks["base"], "")})
    for number, (images, labels) in enumerate(batches):
        part = slice(50 * number, 50 * (number + 1))
        runs = {"base": [attack], "form": [attack, without_early_exit(attack)], "other": [without_early_exit(attack)]}
        for judge, own in runs.items():
            network = networks["base" if judge == "form" else judge]
            right = network(images).argmax(1) == labels
            for run in own:
                examples = run(networks["base"], images, labels, random_starts(attack, 0, number))
                right &= network(examples).argmax(1) == labels
            assert torch.equal(found.right[Trial(judge, str(attack), "base")][part], right)
    assert without_early_exit(PGD()) == PGD()


def test_rounding_does_not_make_a_deployed_network_robust(pair):
    """Bug: forms with a little rounding decided only examples that barely work, and looked more robust than their network."""
    networks, batches = pair
    base, attack = networks["base"], PGD(eps=16 / 255, step=1 / 255, steps=20, early_exit=True)

    def rounded(images):
        return base((images * 32).round() / 32)

    found = compare({"base": base}, batches, [attack], deployed={"rounded": Deployed("base", rounded, "")})
    barely = [attack(base, *batch, random_starts(attack, 0, number)) for number, batch in enumerate(batches)]
    undone = torch.cat([rounded(x).argmax(1) == labels for x, (_, labels) in zip(barely, batches, strict=True)])
    undone &= found.under("rounded", NATURAL)
    robust, claimed = (int(right.sum()) for right in (found.under("base", WORST), undone))
    assert claimed > robust + 10  # what was reported
    assert abs(int(found.under("rounded", WORST).sum()) - robust) <= 4


def test_examples_to_the_end_are_made_once_and_only_where_somebody_decides_them(pair):
    networks, batches = pair
    runs = []

    @dataclass(frozen=True)
    class Counted(Stopping):
        def __call__(self, *arguments):
            runs.append(self.early_exit)
            return super().__call__(*arguments)

    compare({"base": networks["base"]}, batches[:1], [Counted()])
    assert runs == [True]
    forms = {name: Deployed("base", networks["base"], "") for name in ("one", "two")}
    compare(networks, batches[:1], [Counted()], deployed=forms)
    assert runs[1:] == [True, False, True, False]


def test_the_same_network_twice_gives_the_same_decisions(pair):
    """Any difference would be another random start."""
    networks, batches = pair
    found = compare({"one": networks["base"], "two": copy.deepcopy(networks["base"])}, batches, ATTACKS)
    for name in (WEAK, STRONG):
        assert torch.equal(found.under("one", name), found.under("two", name))
        assert torch.equal(found.under("one", name), found.right[Trial("two", name, "one")])


def test_the_order_of_the_attacks_does_not_matter(pair, found):
    networks, batches = pair
    turned = compare(networks, batches, ATTACKS[::-1], seed=3)
    same(found, compare(networks, batches, ATTACKS, seed=3))
    assert all(torch.equal(found.right[trial], turned.right[trial]) for trial in found.right)
    single = evaluate(networks["other"], batches, ATTACKS[1], seed=3)
    assert torch.equal(single.attacked, found.under("other", STRONG))


def test_the_seed_and_the_batch_choose_the_starts():
    def first(seed, batch, attack=ATTACKS[0]):
        return torch.rand(4, generator=random_starts(attack, seed, batch)).tolist()

    assert first(0, 0) == first(0, 0)
    assert len({tuple(first(*where)) for where in ((0, 0), (1, 0), (0, 1), (0, 0, ATTACKS[1]))}) == 4


def test_nothing_global_is_touched(pair):
    networks, batches = pair
    networks["base"].train()
    torch.manual_seed(5)
    before = torch.get_rng_state()
    compare(networks, batches[:1], ATTACKS)
    assert torch.equal(torch.get_rng_state(), before)
    assert networks["base"].training
    assert all(parameter.grad is None for parameter in networks["other"].parameters())
    networks["base"].eval()


def test_deployed_numerics_decide_the_examples_of_the_float32_network(pair, found):
    networks, batches = pair
    saw = []

    def broken(images):
        saw.append(images.dtype)
        return torch.full((len(images), 10), torch.nan)

    forms = {
        "base half": deployed_half(networks["base"], "base"),
        "exact": Deployed("other", lambda images: networks["other"](images), "exact"),
        "broken": Deployed("base", broken, "nan"),
    }
    both = compare(networks, batches, ATTACKS, seed=3, deployed=forms)
    assert all(torch.equal(found.right[trial], both.right[trial]) for trial in found.right)
    assert torch.equal(both.under("exact", STRONG), both.under("other", STRONG))
    assert both.reference("exact") == "other"
    assert both.reference("base half") == "base"
    changed = both.paired_change("base half", WORST)
    assert changed.both > 0
    assert changed.lost + changed.gained <= 4
    assert both.under("broken", NATURAL).sum() == 0
    assert set(saw) == {torch.float32}


def test_a_network_in_half_precision_is_attacked_in_float32(pair, found):
    networks, batches = pair
    narrow = copy.deepcopy(networks["base"]).half()
    accuracy = evaluate(narrow, batches, ATTACKS[0], seed=3)
    changed = accuracy.attacked ^ found.under("base", WEAK)
    assert changed.sum() <= 4
    assert next(narrow.parameters()).dtype == torch.float16


def test_an_exported_file_decides_as_its_network(embedded_file):
    test = data.load("demo", "test").take(6, 6)
    forms = {"file": deployed_file(embedded_file, "model")}
    found = compare({"model": models.embedded()}, test, [PGD(steps=2)], deployed=forms)
    assert torch.equal(found.under("file", WORST), found.under("model", WORST))


def test_a_wide_file_decides_a_few_images_at_a_time(embedded_file, monkeypatch):
    """Bug: a file of 10 MB took gigabytes for a hundred images."""
    images = data.load("demo", "test").take(7).images / 255
    whole = deployed_file(embedded_file, "model").run(images)
    seen = []
    monkeypatch.setattr(deployed, "images_together", lambda _: 3)
    monkeypatch.setattr(OnnxRuntime, "__call__", lambda self, x, run=OnnxRuntime.__call__: seen.append(len(x)) or run(self, x))
    found = deployed_file(embedded_file, "model").run(images)
    assert seen == [3, 3, 1]
    assert torch.allclose(found, whole, atol=1e-5)
    assert images_together(embedded_file) > 100


def test_the_record_is_json_and_holds_everything(found):
    record = json.loads(json.dumps(found.record()))
    base, other = record["rows"]
    assert base["model"] == "base"
    assert base["robust"] == 100 * int(found.under("base", WORST).sum()) / 200
    assert base["examples"][NATURAL]["right"].count("1") == found.under("base", NATURAL).sum()
    low, high = base["examples"][WORST]["interval"]
    assert low < base["robust"] < high
    assert other["paired"][WORST]["both"] == found.paired_change("other", WORST).both
    assert {(row["judge"], row["maker"]) for row in record["transfer"]} == {("base", "other"), ("other", "base")}
    assert record["attacks"][1]["steps"] == 5


def test_bad_calls_are_refused(pair):
    networks, batches = pair
    with pytest.raises(GdwsError, match="each once"):
        compare(networks, batches, [PGD(), PGD()])
    with pytest.raises(GdwsError, match="no labels"):
        compare(networks, [batches[0][0]], [])
    with pytest.raises(GdwsError, match="empty"):
        compare(networks, [], [])
    with pytest.raises(GdwsError, match="of 'nobody'"):
        compare(networks, batches, [], deployed={"form": Deployed("nobody", networks["base"], "")})


# The checkpoint


def test_a_run_in_pieces_is_the_run_in_one(pair, found, tmp_path):
    networks, batches = pair
    file = tmp_path / "run.jsonl"
    for done in range(1, 4):
        with pytest.raises(OutOfTime, match=f"after {50 * (done - 1)} of 200"):
            compare(networks, batches, ATTACKS, seed=3, checkpoint=file, resume=done > 1, seconds=0)
        compare(networks, batches[:done], ATTACKS, seed=3, checkpoint=file, resume=True)
    file.write_bytes(file.read_bytes()[:-20])  # torn: the third batch is done again
    same(compare(networks, batches, ATTACKS, seed=3, checkpoint=file, resume=True), found)
    assert [json.loads(line).get("batch") for line in file.read_text().splitlines()] == [None, 0, 1, 2, 3]
    before = file.read_bytes()
    same(compare(networks, batches, ATTACKS, seed=3, checkpoint=file, resume=True), found)
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    "damage",
    [
        {"right": ["0101"]},
        {"right": [[1, 0]]},
        {"right": ["2" * 50] * 2},
        {"right": 3},
        {"batch": "0"},
        {"batch": -1},
        {"data": None},
        {"more": 1},
    ],
)
def test_a_batch_that_was_damaged_on_disk_is_done_again(pair, tmp_path, damage):
    """Bug: whatever was not a 1 counted as wrong."""
    networks, batches = pair
    file = tmp_path / "run.jsonl"
    whole = compare(networks, batches[:1], [], checkpoint=file)
    header, line = file.read_text().splitlines()
    file.write_text(f"{header}\n{json.dumps(json.loads(line) | damage)}\n")
    same(compare(networks, batches[:1], [], checkpoint=file, resume=True), whole)
    assert len(file.read_text().splitlines()) == 3


def test_a_batch_of_another_size_is_of_other_images(pair, tmp_path):
    networks, batches = pair
    file = tmp_path / "run.jsonl"
    compare(networks, batches[:1], [], checkpoint=file)
    header, line = file.read_text().splitlines()
    record = json.loads(line)
    file.write_text(f"{header}\n{json.dumps(record | {'right': [row[:-1] for row in record['right']]})}\n")
    with pytest.raises(GdwsError, match=r"batch 0 of .* other images"):
        compare(networks, batches[:1], [], checkpoint=file, resume=True)


def test_a_torn_header_is_started_again(pair, tmp_path):
    networks, batches = pair
    whole, torn = tmp_path / "whole", tmp_path / "torn"
    compare(networks, batches, [], checkpoint=whole)
    torn.write_bytes(whole.read_bytes()[:40])
    compare(networks, batches, [], checkpoint=torn, resume=True)
    assert torn.read_bytes() == whole.read_bytes()


def test_a_torn_file_that_cannot_be_mended_is_not_held_open(pair, tmp_path, monkeypatch):
    networks, batches = pair
    file = tmp_path / "torn"
    compare(networks, batches, [], checkpoint=file)
    file.write_bytes(file.read_bytes()[:-5])

    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")  # as of a file that may only be appended to

    monkeypatch.setattr(os, "truncate", refuse)
    opened = set(os.listdir("/proc/self/fd"))
    with pytest.raises(GdwsError, match="cannot write"):
        compare(networks, batches, [], checkpoint=file, resume=True)
    assert set(os.listdir("/proc/self/fd")) <= opened


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": 4}, r"another evaluation \(seed: 0\): expected 4"),
        ({"attacks": [PGD(steps=4)]}, r"another evaluation \(attacks: "),
        ({"transfer": False}, r"another evaluation \(trials: "),
        ({"networks": lambda pair: {"base": pair["base"], "other": disturbed(pair["base"], 0.3)}}, r"\(networks: "),
        ({"networks": lambda pair: {"base": pair["base"], "other": nn.Sequential(pair["other"])}}, r"\(networks: "),
        ({"batches": lambda batches: [(images.flip(3), labels) for images, labels in batches]}, "batch 0 of .* other images"),
        ({"resume": False}, "exists: continue it with resume"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused(pair, tmp_path, change, words):
    networks, batches = pair
    file = tmp_path / "run.jsonl"
    compare(networks, batches[:1], ATTACKS[:1], checkpoint=file)
    before = file.read_bytes()
    call = {"networks": networks, "batches": batches[:1], "attacks": ATTACKS[:1], "checkpoint": file, "resume": True}
    change = {key: value(call[key]) if callable(value) else value for key, value in change.items()}
    with pytest.raises(GdwsError, match=words):
        compare(**{**call, **change})
    assert file.read_bytes() == before


NORMALIZING = """
import torch
from torch import nn

MEAN = 0.5

class Normalizing(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.head, self.std = nn.Conv2d(3, 4, 3), nn.Linear(4, 10), 0.25

    def forward(self, x):
        return self.head(self.conv((x - MEAN) / self.std).relu().mean((2, 3)))

def make():
    return Normalizing()
"""


@pytest.mark.parametrize("edit", [("MEAN = 0.5", "MEAN = 0.4"), ("0.25", "0.3"), (".relu()", ".tanh()")])
def test_an_evaluation_is_not_continued_with_another_function_of_the_same_weights(tmp_path, edit):
    """Bug: networks were known by their weights, and one of 40 % went on as one of 100 %."""
    file, log = tmp_path / "net.py", tmp_path / "run.jsonl"
    file.write_text(NORMALIZING)
    batches = [(torch.rand(4, 3, 8, 8), torch.arange(4)), (torch.rand(4, 3, 8, 8), torch.arange(4))]
    compare({"net": resolve(f"{file}:make")}, batches[:1], [], checkpoint=log)
    file.write_text(NORMALIZING.replace(*edit))
    with pytest.raises(GdwsError, match=r"another evaluation \(identities: "):
        compare({"net": resolve(f"{file}:make")}, batches, [], checkpoint=log, resume=True)
    file.write_text(NORMALIZING)
    again = {"net": resolve(f"{file}:make")}
    found = compare(again, iter(batches), [], checkpoint=log, resume=True)
    assert found.images == 8
    header, *lines = log.read_text().splitlines()
    earlier = json.loads(header)
    del earlier["identities"]  # as earlier versions wrote it
    log.write_text("\n".join([json.dumps(earlier), *lines, ""]))
    assert compare(again, batches, [], checkpoint=log, resume=True).record() == found.record()
    with pytest.raises(GdwsError, match="is empty"):
        compare(again, iter([]), [], checkpoint=log, resume=True)


@pytest.mark.parametrize(
    "content", [b"hello", b"hello\n", b'{"format": "gdws model 1"}\n', b"\x00\xff\n", b"[]\n", b"[" * 10**5 + b"\n"]
)
def test_a_foreign_file_is_refused_and_left_alone(pair, tmp_path, content):
    file = tmp_path / "notes.txt"
    file.write_bytes(content)
    with pytest.raises(GdwsError, match="is not a checkpoint"):
        compare(*pair, ATTACKS, checkpoint=file, resume=True)
    assert file.read_bytes() == content
    with pytest.raises(GdwsError, match="cannot write"):
        compare(*pair, ATTACKS, checkpoint=tmp_path / "none" / "file")


def test_two_evaluations_into_one_file_and_links(pair, tmp_path):
    networks, batches = pair
    file = tmp_path / "run.jsonl"
    compare(networks, batches[:1], [], checkpoint=file)
    before = file.read_bytes()
    with (
        locked(tmp_path / ".run.jsonl.lock", ""),
        pytest.raises(GdwsError, match="another process evaluates into"),
    ):
        compare(networks, batches, [], checkpoint=file, resume=True)
    assert file.read_bytes() == before
    (tmp_path / "link").symlink_to(file)
    os.mkfifo(tmp_path / "fifo")
    for name in ("link", "fifo"):
        with pytest.raises(GdwsError, match="symbolic link or a device"):
            compare(networks, batches, [], checkpoint=tmp_path / name, resume=True)
    assert file.read_bytes() == before
    compare(networks, batches, [], checkpoint=file, resume=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fifo", "link", "run.jsonl"]


# Real processes

COMMAND = [sys.executable, "-m", "gdws", "evaluate", "demo", "--n", "24", "--batch", "4", "--steps", "6"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    file = tmp_path_factory.mktemp("undisturbed") / "r.json"
    subprocess.run([*COMMAND, "--json", file], env=ENVIRONMENT, check=True, capture_output=True, timeout=120)
    return json.loads(file.read_text())


def test_a_killed_evaluation_loses_at_most_one_batch(undisturbed, tmp_path):
    file = tmp_path / "run.jsonl"
    process = subprocess.Popen([*COMMAND, "--checkpoint", file], env=ENVIRONMENT, stdout=subprocess.DEVNULL)
    patience = time.monotonic() + 60
    while time.monotonic() < patience and (not file.exists() or file.read_bytes().count(b"\n") < 3):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    assert process.wait(timeout=60) == -9
    kept = file.read_bytes()
    kept = kept[: kept.rfind(b"\n") + 1]
    assert 2 <= kept.count(b"\n") - 1 < 6
    result = tmp_path / "r.json"
    resume = [*COMMAND, "--checkpoint", file, "--resume", "--json", result]
    subprocess.run(resume, env=ENVIRONMENT, check=True, capture_output=True, timeout=120)
    assert file.read_bytes().startswith(kept)  # nothing that was finished is done again
    assert json.loads(result.read_text()) == undisturbed


def test_two_processes_find_what_one_finds(undisturbed, tmp_path):
    file, result = tmp_path / "run.jsonl", tmp_path / "r.json"
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "-m",
        "--",
        *COMMAND[2:],
    ]
    done = subprocess.run(
        [*torchrun, "--checkpoint", file, "--json", result], env=ENVIRONMENT, capture_output=True, text=True, timeout=180
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(result.read_text()) == undisturbed
    assert sorted(json.loads(line).get("batch", -1) for line in file.read_text().splitlines()) == list(range(-1, 6))
    assert done.stdout.count("worst case") + done.stdout.count("natural") == 1  # one process speaks
