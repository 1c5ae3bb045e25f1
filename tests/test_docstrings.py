"""Every public name says what it is: a first sentence, each argument and field by name, an example.

The examples are run by tests/test_documentation.py.
"""

import ast
import doctest
import inspect
import re
from itertools import pairwise
from pathlib import Path

import pytest

import gdws
from gdws.calibration.statistics import LayerStatistics
from gdws.deploy.benchmark import Timing
from gdws.deploy.engines import Compiled
from gdws.deploy.onnx.parity import Parity
from gdws.evaluation.accuracy import Accuracy
from gdws.evaluation.comparison import Comparison
from gdws.evaluation.quality import Quality
from gdws.evaluation.red_flags import RedFlag
from gdws.planning.cost import Cost
from gdws.planning.fidelity_records import MetricChange, OutputChange
from gdws.planning.plan import LayerPlan, Measured
from gdws.planning.significance import PairedChange

NAMESPACES = {
    "gdws": gdws,
    **{f"gdws.{name}": getattr(gdws, name) for name in gdws.__all__ if inspect.ismodule(getattr(gdws, name))},
}
RETURNED = [Accuracy, Comparison, Compiled, Cost, LayerPlan, LayerStatistics, Measured, MetricChange]
RETURNED += [OutputChange, PairedChange, Parity, Quality, RedFlag, Timing]
"""Records that public functions return; they need no example of their own."""


def is_code(value):
    return inspect.isclass(value) or inspect.isfunction(value)


def public_names(namespace):
    """What is exported; of a module without __all__, what it defines."""
    own = [name for name, value in vars(namespace).items() if is_code(value) and value.__module__ == namespace.__name__]
    return [name for name in getattr(namespace, "__all__", own) if not name.startswith("_")]


PUBLIC = {f"{place}.{name}": getattr(module, name) for place, module in NAMESPACES.items() for name in public_names(module)}
CODE = {name: value for name, value in PUBLIC.items() if is_code(value)}
CONSTANTS = [name for name, value in PUBLIC.items() if not is_code(value) and not inspect.ismodule(value)]
CLASSES = [value for value in dict.fromkeys([*CODE.values(), *RETURNED]) if inspect.isclass(value)]


def members(cls):
    """The public methods and properties that a class of this project has, by name: its own and its bases', and calls."""
    ours = [base for base in cls.__mro__ if base.__module__.startswith("gdws.")]
    names = dict.fromkeys(name for base in ours for name in vars(base) if name == "__call__" or not name.startswith("_"))
    found = {name: inspect.getattr_static(cls, name) for name in names}
    kinds = property, classmethod, staticmethod
    return {name: getattr(cls, name) for name, value in found.items() if isinstance(value, kinds) or inspect.isfunction(value)}


def first_line(value):
    return (inspect.getdoc(value) or "").partition("\n")[0]


def unmentioned(value):
    """Parameters that a docstring leaves out."""
    if inspect.isclass(value) and issubclass(value, Exception):
        return []
    open_ended = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    parameters = inspect.signature(value).parameters.values()
    names = [each.name for each in parameters if each.name not in ("self", "_") and each.kind not in open_ended]
    return [name for name in names if not re.search(rf"\b{name}\b", inspect.getdoc(value) or "")]


def examples(value):
    return doctest.DocTestParser().get_examples(inspect.getdoc(value) or "")


@pytest.mark.parametrize("name", NAMESPACES)
def test_namespaces_say_what_they_hold(name):
    assert first_line(NAMESPACES[name]).endswith((".", ":"))


@pytest.mark.parametrize("name", CODE)
def test_functions_and_classes(name):
    value = CODE[name]
    assert first_line(value).endswith((".", ":")), first_line(value)
    assert not unmentioned(value)
    assert examples(value), "it has no example"
    assert not any(doctest.SKIP in example.options for example in examples(value)), "its example is not run"


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_fields_and_methods(cls):
    assert first_line(cls).endswith((".", ":")), first_line(cls)
    assert not unmentioned(cls)
    for name, member in members(cls).items():
        assert first_line(member).endswith((".", ":")), f"{name}: {first_line(member)!r}"
        assert isinstance(member, property) or not unmentioned(member), f"{name} leaves out {unmentioned(member)}"


@pytest.mark.parametrize("name", CONSTANTS)
def test_constants(name):
    place, _, constant = name.rpartition(".")
    found = [texts_after(path, constant) for path in Path(NAMESPACES[place].__file__).parent.glob("*.py")]
    texts = [text for own in found for text in own]
    assert texts, "no string after its assignment says what it is"
    assert all(text.strip().partition("\n")[0].endswith((".", ":")) for text in texts), texts


def texts_after(path, constant):
    """The strings after assignments to a name, in a file."""
    statements = ast.parse(path.read_text()).body
    for before, after in pairwise(statements):
        targets = getattr(before, "targets", [getattr(before, "target", None)])
        is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        if is_text and any(isinstance(target, ast.Name) and target.id == constant for target in targets):
            yield after.value.value


def test_what_is_not_documented_is_found():
    def mute(images, labels):
        """Decide the images"""

    assert not first_line(mute).endswith((".", ":"))
    assert unmentioned(mute) == ["labels"]
    assert not examples(mute)
