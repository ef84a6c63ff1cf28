"""The package itself: names, types, and that NumPy is all that it imports."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import dsmoe
from dsmoe import _core

PACKAGE = Path(dsmoe.__file__).parent


def test_all_names_are_there_and_documented():
    for name in dsmoe.__all__:
        thing = getattr(dsmoe, name)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            assert thing.__doc__, name


def test_the_stub_has_every_name_of_the_extension():
    assert (PACKAGE / "py.typed").exists()
    if not (PACKAGE / "_core.pyi").exists():
        pytest.skip("built without the target dsmoe_python_stub")
    body = ast.parse((PACKAGE / "_core.pyi").read_text()).body
    names = {getattr(n, "name", None) or getattr(getattr(n, "target", None), "id", None) for n in body}
    assert {n for n in dir(_core) if not n.startswith("_")} <= names


def test_nothing_but_numpy_is_imported():
    code = "import sys, dsmoe; print([m for m in ('torch', 'transformers', 'matplotlib', 'scipy') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def test_the_source_is_typed():
    """Every public function says what it takes."""
    for path in PACKAGE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and node.name not in ("forward", "backward"):
                arguments = [a for a in node.args.args + node.args.kwonlyargs if a.arg not in ("self", "cls")]
                assert all(a.annotation for a in arguments) and node.returns is not None, (path.name, node.name)
