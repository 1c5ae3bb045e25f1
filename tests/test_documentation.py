"""What README and docs show works: every Python and shell block runs, every example in a docstring holds, every link leads
somewhere.

A page's blocks share one namespace and run in order in an empty folder. A text block after a Python block is what that
prints. In the line before a block, <!-- not run: needs a GPU --> says why it cannot run here, and
<!-- output varies: measured times --> why what is shown is not what is printed everywhere.
"""

import doctest
import importlib.util
import json
import pkgutil
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from types import ModuleType
from typing import NamedTuple
from unittest.mock import patch

import pytest

import gdws
from gdws.compression import report
from gdws.planning.budgets import KINDS
from gdws.structures import STRUCTURES

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted(page for page in (ROOT / "docs").rglob("*.md") if not page.name.startswith("_"))]
TEXTS = [*PAGES, *(ROOT / f"{name}.md" for name in ("CHANGELOG", "CONTRIBUTING", "SECURITY"))]
RUN, SHOWN = {"python", "sh"}, {"text", "json", "bibtex"}
MARK = re.compile(r"<!-- (not run|output varies).*-->")
REASON = re.compile(r"<!-- (not run|output varies): \S.* -->")
FENCE = re.compile(rf"(?m)^(?:(?P<mark>{MARK.pattern})\n)?```(?P<language>.*)\n(?P<code>(?s:.*?))^```$")
# Importing the last would run the command line.
MODULES = [name for _, name, _ in pkgutil.walk_packages(gdws.__path__, "gdws.") if name != "gdws.__main__"]


class Block(NamedTuple):
    """A fenced block: its line, the mark before it, its language, its content, and whether it follows the one before."""

    line: int
    mark: str
    language: str
    code: str
    follows: bool


def blocks(text: str) -> list[Block]:
    found, end = [], 0
    for match in FENCE.finditer(text):
        line = text.count("\n", 0, match.start("language")) + 1
        follows = not text[end : match.start()].strip()
        found.append(Block(line, match["mark"] or "", match["language"].strip(), match["code"], follows))
        end = match.end()
    return found


def commands(block: Block) -> list[list[str]]:
    """The words of each command, without comments; lines that end in a backslash go on in the next."""
    lines = block.code.replace("\\\n", " ").splitlines()
    found = [words for line in lines if (words := shlex.split(line, comments=True))]
    assert all(words[0] == "gdws" for words in found), f"line {block.line}: only gdws is run here: <!-- not run: REASON -->"
    return found


def is_run(block: Block) -> bool:
    return block.language in RUN and not block.mark


def check_blocks(text: str) -> None:
    """Every block runs, is output or a directive, or says why not."""
    found = blocks(text)
    for block in found:
        known = block.language in RUN | SHOWN or block.language.startswith("{")
        assert known, f"line {block.line}: a block of {block.language!r}"
        if block.mark:
            assert REASON.fullmatch(block.mark), f"line {block.line}: {block.mark} gives no reason"
            assert (block.language in RUN) == ("not run" in block.mark), f"line {block.line}: {block.mark} means nothing here"
        if block.language == "sh" and is_run(block):
            assert commands(block)
    assert len(MARK.findall(text)) == sum(bool(block.mark) for block in found), "a mark is not in the line before a block"
    assert len(re.findall("(?m)^```", text)) == 2 * len(found), "a block does not end"


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture
def _one_engine(monkeypatch):
    """Reports build the one engine that takes no time, instead of all."""
    monkeypatch.setattr(report, "ENGINE", "torch")


@pytest.fixture
def _own_structures():
    """What a page adds to the structures is gone after it."""
    with patch.dict(STRUCTURES):
        yield


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory):
    """Statistics that one page collects serve the next."""
    return tmp_path_factory.mktemp("cache")


@pytest.mark.parametrize("page", [page for page in PAGES if any(map(is_run, blocks(page.read_text())))], ids=name_of)
@pytest.mark.usefixtures("_one_engine", "_own_structures")
def test_blocks_run(page, run, shared_cache, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(shared_cache))
    namespace = {"__name__": "__main__"}
    printed = None
    for block in blocks(page.read_text()):
        where = f"{name_of(page)}, line {block.line}"
        if is_run(block) and block.language == "python":
            capsys.readouterr()
            # Blank lines in front, so that a traceback names the line of the page.
            exec(compile("\n" * block.line + block.code, str(page), "exec"), namespace)
            printed = capsys.readouterr().out
        elif is_run(block):
            for command in commands(block):
                status, text = run(*command[1:])
                assert status == 0, f"{where}: {shlex.join(command)}\n{text}"
            printed = None
        elif block.language == "text" and block.follows and printed is not None and not block.mark:
            assert printed.split() == block.code.split(), f"{where}: this is not what is printed"
        else:
            printed = None


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_runs_or_says_why_not(page):
    check_blocks(page.read_text())


@pytest.mark.parametrize(
    "text",
    [
        "<!-- not run -->\n```python\n1\n```\n",
        "<!-- not run: -->\n```python\n1\n```\n",
        "<!-- not run: slow -->\n\n```python\n1\n```\n",
        "<!-- not run: output -->\n```text\n1\n```\n",
        "```\n1\n```\n",
        "```bash\nls\n```\n",
        "```sh\nls\n```\n",
        "```python\n1\n",
    ],
)
def test_a_block_that_would_be_passed_over_is_found(text):
    with pytest.raises(AssertionError):
        check_blocks(text)


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.usefixtures("_one_engine")
def test_examples_in_docstrings(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.parametrize("page", TEXTS, ids=name_of)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", page.read_text())):
        if re.match(r"https?://", target):
            continue
        path, _, heading = target.partition("#")
        linked = page.parent / path if path else page
        assert linked.exists(), f"a link to {target}"
        if heading and linked.suffix == ".md":
            assert heading in anchors(linked.read_text()), f"a link to {target}, where there is no such heading"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_names_of_the_package_exist(page):
    """Also in blocks that do not run here."""
    text = page.read_text()
    names = {name for name in re.findall(r"\bgdws(?:\.\w+)+", text) if name != "gdws.json"}  # a file of saved networks
    for module, imported in re.findall(r"from (gdws[\w.]*) import ([\w, ]+)", text):
        names |= {f"{module}.{name.strip()}" for name in imported.split(",")}
    for name in names:
        pkgutil.resolve_name(name)


def anchors(text: str) -> set[str]:
    """What a link to a heading of a page is called; of names with dots, both by GitHub and by Sphinx."""
    titles = [title.lower() for title in re.findall(r"(?m)^#+ (.*)$", FENCE.sub("", text))]
    by_sphinx = {re.sub(r"[^a-z0-9]+", "-", title).strip("-") for title in titles}
    return by_sphinx | {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in titles}


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text().split()) <= 600


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("how-to/own-model.md", [f"## {step}. " for step in range(1, 6)]),
        ("how-to/one-sitting.md", ["Which images, and how many?", "No labels are needed"]),
        ("how-to/one-sitting.md", ["The network is not robust."]),
        ("how-to/one-sitting.md", ["Large images."]),
        ("how-to/one-sitting.md", ["## 6. Run it without gdws", "import onnxruntime\n", "torch.export"]),
        ("how-to/one-sitting.md", ["## How long it takes", "gdws compress"]),
        ("how-to/one-sitting.md", ["machine without a GPU", "the CPU index"]),
        ("how-to/one-sitting.md", ["gdws compress net.py:make", "--check", "--speedup 2"]),
        ("reference/cli.md", ["**The cache.**", "~/.cache/gdws", "At most 2 GB", "--no-cache"]),
    ],
)
def test_what_newcomers_look_for_is_two_links_from_the_readme(page, words):
    """They looked for it and did not find it."""
    wanted, readme = ROOT / "docs" / page, ROOT / "README.md"
    near = linked(readme)
    assert wanted in near.union(*(linked(other) for other in near))
    text = wanted.read_text()
    for word in words:  # one after the other
        _, found, text = text.partition(word)
        assert found, f"{name_of(wanted)} does not say {word!r}"


def linked(page: Path) -> set[Path]:
    """The pages of the documentation that a page links to."""
    targets = re.findall(r"\]\(([^)\s#]+\.md)", page.read_text())
    return {path for target in targets if (path := (page.parent / target).resolve()).exists()}


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
@pytest.mark.parametrize("target", ["setup", "demo", "test"])
def test_the_build_of_pytorch_can_be_chosen(target):
    """Bug: on a machine without a GPU it fetched 3 GB of CUDA packages, and nobody could say otherwise."""
    for given, wanted in ("INDEX", ["--index-url", "INDEX"]), ("", []):
        command = ["make", "--dry-run", "--always-make", f"TORCH_INDEX={given}", "TORCH=torch", target]
        lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
        (install,) = (shlex.split(line) for line in lines if line.endswith('"torch"'))
        assert install[1:] == ["-m", "pip", "install", "--quiet", *wanted, "torch"]


def test_every_public_name_has_a_place_in_the_reference():
    words = set(re.findall(r"\w+", (ROOT / "docs/reference/api.md").read_text()))
    assert set(gdws.__all__) - {"__version__"} <= words


def test_the_generated_pages_are_up_to_date():
    for name, text in load(ROOT / "docs/_ext/generated.py").PAGES.items():
        page = ROOT / "docs/reference" / name
        assert page.read_text() == text(), f"{name_of(page)} is old: run `make reference`"


def test_every_budget_is_in_the_table_of_budgets():
    rows = re.findall(r"(?m)^\| `(\w+)\(", (ROOT / "docs/reference/budgets.md").read_text())
    assert set(rows) == set(KINDS)


def load(script: Path) -> ModuleType:
    """A script that is no part of the package, as a module."""
    specification = importlib.util.spec_from_file_location(script.stem, script)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_the_picture_is_drawn_from_the_committed_numbers():
    numbers = json.loads((ROOT / "docs/results/data/picture.json").read_text())
    assert load(ROOT / "benchmarks/readme_picture.py").picture(numbers) == (ROOT / "docs/picture.svg").read_text()


def test_the_numbers_of_the_picture_are_on_the_page_that_they_name():
    numbers = json.loads((ROOT / "docs/results/data/picture.json").read_text())
    page = (ROOT / "docs" / numbers["source"]).read_text()
    for point in [*numbers["points"], *numbers["outside"]]:
        for value in (f"{point['natural']:.2f}", f"{point['robust']:.2f}", f"{point['speedup']:.2f}x"):
            assert value in page, f"{point['label']}: {value}"
