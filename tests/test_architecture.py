"""The house holds: imports go one way, pure maths stays free of plumbing, folders stay small, nothing hides a module."""

import ast
import importlib
import pkgutil
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import gdws

SOURCE = Path(gdws.__file__).parent
ORDER = (
    ("core",),
    ("attacks", "data"),
    ("objectives",),
    ("structures",),
    ("calibration",),
    ("deploy",),
    ("planning",),
    ("compression",),
    ("evaluation",),
    ("models",),
    ("training",),
    ("reproduce",),
    ("cli",),
)
"""Rooms in the order of the pipeline: each may import those before it, and itself."""
RANK = {room: rank for rank, rooms in enumerate(ORDER) for room in rooms}
PURE = (
    "structures.mego_lego",
    "structures.metric",
    "structures.scaling",
    "structures.kernel_elimination",
    "structures.filter_splitting",
    "planning.knapsack",
    "planning.significance",
)
"""Tensors and numbers in, tensors and numbers out."""
ALLOWED_IN_PURE = {
    "__future__",
    "collections",
    "dataclasses",
    "functools",
    "heapq",
    "itertools",
    "math",
    "statistics",
    "typing",
}
ALLOWED_IN_PURE |= {"numpy", "torch"}
MOST_ENTRIES, MOST_LINES = 13, 400


def modules(source):
    """{dotted name below gdws: syntax tree}; packages by their own name, the front door as ''."""
    found = {}
    for path in source.rglob("*.py"):
        parts = path.relative_to(source).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = ast.parse(path.read_text())
    return found


def imports(name, tree, known):
    """What a module imports of gdws, as names of `modules`, wherever in it the import stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            given = [(alias.name, None) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} imports relatively"
            given = [(node.module, alias.name) for alias in node.names]
        else:
            continue
        for module, leaf in given:
            if module.partition(".")[0] == "gdws":
                below = module.removeprefix("gdws").removeprefix(".")
                inner = f"{below}.{leaf}".strip(".") if leaf else below
                yield inner if inner in known else below


def violations(source):
    """Imports that go against the order, and modules that import the front door."""
    known = modules(source)
    found = []
    for name, tree in known.items():
        room = name.partition(".")[0]
        if room in ("", "__main__"):
            continue
        for imported in imports(name, tree, known):
            other = imported.partition(".")[0]
            if other not in RANK or RANK[other] > RANK[room] or (RANK[other] == RANK[room] and other != room):
                found.append(f"{name} imports {imported or 'the front door'}")
    return found


def test_every_room_has_its_place():
    rooms = {path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists()}
    assert rooms == set(RANK)


def test_imports_go_one_way():
    assert violations(SOURCE) == []


@pytest.mark.parametrize(
    ("file", "line", "expected"),
    [
        ("core/files.py", "from gdws.cli import tables", "core.files imports cli.tables"),
        ("attacks/pgd.py", "from gdws import data", "attacks.pgd imports data"),
        ("planning/plan.py", "def late():\n    import gdws.compression.apply", "planning.plan imports compression.apply"),
        ("structures/layers.py", "from gdws import compress", "structures.layers imports the front door"),
    ],
)
def test_an_import_turned_round_is_found(tmp_path, file, line, expected):
    turned = tmp_path / "gdws"
    shutil.copytree(SOURCE, turned, ignore=shutil.ignore_patterns("__pycache__", "*.npz", "*.safetensors"))
    (turned / file).chmod(0o644)  # the checkout may be read-only
    with (turned / file).open("a") as text:
        text.write(f"\n{line}\n")
    assert violations(turned) == [expected]


def test_no_module_imports_itself_by_way_of_others():
    known = modules(SOURCE)
    graph = {name: set(imports(name, tree, known)) - {name} for name, tree in known.items() if name}
    # A package's own __init__ gathers its modules: importing the package is importing what it gathers.
    while graph:
        free = {name for name, needed in graph.items() if not needed & graph.keys()}
        assert free, f"these import each other: {sorted(graph)}"
        graph = {name: needed for name, needed in graph.items() if name not in free}


@pytest.mark.parametrize("name", PURE)
def test_pure_maths_is_free_of_plumbing(name):
    known = modules(SOURCE)
    assert set(imports(name, known[name], known)) <= {*PURE, "core.errors"}
    for node in ast.walk(known[name]):
        given = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        given += [node.module] if isinstance(node, ast.ImportFrom) else []
        assert {module.partition(".")[0] for module in given} <= ALLOWED_IN_PURE | {"gdws"}


def test_folders_and_modules_stay_small():
    """The rooms themselves are counted by ORDER."""
    for folder in (path for path in SOURCE.rglob("*") if path.is_dir() and path.name != "__pycache__"):
        entries = {path.name for path in folder.iterdir()} - {"__pycache__", "__init__.py", "__main__.py", "py.typed"}
        assert len(entries) <= MOST_ENTRIES, folder
    for path in SOURCE.rglob("*.py"):
        assert len(path.read_text().splitlines()) <= MOST_LINES, path


def test_nothing_hides_a_module():
    """After everything is imported, every module can be reached under its own name."""
    names = [info.name for info in pkgutil.walk_packages(gdws.__path__, "gdws.") if info.name != "gdws.__main__"]
    for name in names:
        importlib.import_module(name)
    for name in names:
        package, _, leaf = name.rpartition(".")
        assert getattr(sys.modules[package], leaf) is sys.modules[name], f"{name} is hidden by something of its name"


def test_the_front_door_has_what_it_says():
    assert len(set(gdws.__all__)) == len(gdws.__all__)
    assert all(hasattr(gdws, name) for name in gdws.__all__)


def test_heavy_packages_are_imported_when_they_are_used():
    heavy = [
        "onnx",
        "onnxruntime",
        "openvino",
        "nncf",
        "torch._inductor.utils",
        "torchvision",
        "timm",
        "foolbox",
        "scipy",
        "torch_pruning",
    ]
    code = f"import gdws, sys; print([name for name in {heavy} if name in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_shipped_code_mocks_nothing():
    assert [path for path in SOURCE.rglob("*.py") if "unittest" in path.read_text()] == []
