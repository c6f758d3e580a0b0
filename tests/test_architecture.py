"""Folders import in one direction, and the drawing in docs/architecture.md is the one of the source.

`python tests/test_architecture.py` writes the drawing into the page.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "sliceflow"
PAGE = ROOT / "docs" / "architecture.md"

# A folder, or a module that stands alone, may import what is on a level below it.
LEVELS = (
    ("cli",),
    ("app",),
    ("loading", "inference"),
    ("vectors", "pictures", "tables"),
    ("online", "metrics", "datasets", "storage", "ranks"),
    ("engine",),
    ("kernels",),
)
# Within a level these alone may be imported. Modules for all may import each other, and nothing else.
SIDEWAYS = {("metrics", "storage"), ("storage", "ranks")}
FOR_ALL = ("errors", "devices", "caches", "dataframes", "cells", "written")
ENTRY_POINTS = ("__init__", "__main__")  # they import everything, and only for users

# Private names that are still used from another folder: (module, name). Delete each when it is gone.
PRIVATE_NAMES_IN_USE: set[tuple[str, str]] = set()

NAMEDTUPLE = {"_asdict", "_fields", "_make", "_replace"}  # public, in spite of their names


class Import(NamedTuple):
    """One imported name: which module imports it, where it lives, and whether only for annotations."""

    by: str
    module: str
    name: str
    for_types: bool


class Source(NamedTuple):
    """A module of the package, parsed."""

    name: str
    tree: ast.Module


@cache
def sources() -> tuple[Source, ...]:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found.append(Source(name, ast.parse(path.read_text())))
    return tuple(found)


def folder(module: str) -> str:
    """The part of the package in which a module is: a folder, or the module itself."""
    return (*module.split("."), "__init__")[1]


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def imports_in(tree: ast.AST, for_types: bool = False) -> Iterator[tuple[str, str, bool]]:
    """(module, name, only for annotations) of all that is imported, in functions as well."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "", for_types) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute"
            yield from ((node.module or "", alias.name, for_types) for alias in node.names)
        elif isinstance(node, ast.If) and is_type_checking(node):
            for part in node.body:
                yield from imports_in(ast.Module([part], []), True)
            for part in node.orelse:
                yield from imports_in(ast.Module([part], []), for_types)
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "sliceflow":
            yield "sliceflow", node.attr, for_types  # as in sliceflow.load
        else:
            yield from imports_in(node, for_types)


@cache
def public_names() -> Mapping[str, str]:
    """Which module a name of `sliceflow` itself comes from."""
    tree = next(source.tree for source in sources() if source.name == "sliceflow")
    modules = {source.name for source in sources()}
    homes = {}
    for module, name, _ in imports_in(tree):
        whole = f"{module}.{name}"
        homes[name] = whole if whole in modules else module
    return homes


@cache
def imports() -> tuple[Import, ...]:
    modules = {source.name for source in sources()}
    found = []
    for source in sources():
        for module, name, for_types in imports_in(source.tree):
            if module.split(".")[0] != "sliceflow":
                continue
            whole = f"{module}.{name}"
            home = whole if whole in modules else module
            if home == "sliceflow" and source.name != "sliceflow":
                home = public_names().get(name, "sliceflow")
            found.append(Import(source.name, home, name, for_types))
    return tuple(found)


def between_folders() -> set[tuple[str, str]]:
    """Who imports whom. Names of `sliceflow` itself, such as its version, are no folder's."""
    pairs = {(folder(i.by), folder(i.module)) for i in imports()}
    return {(a, b) for a, b in pairs if a != b and a not in ENTRY_POINTS and b != "__init__"}


def allowed() -> set[tuple[str, str]]:
    pairs = {(a, b) for a in FOR_ALL for b in FOR_ALL if a != b} | SIDEWAYS
    for level, names in enumerate(LEVELS):
        below = [name for lower in LEVELS[level + 1 :] for name in lower]
        pairs |= {(a, b) for a in names for b in (*below, *FOR_ALL)}
    return pairs


def circle(edges: Iterable[tuple[str, str]]) -> list[str]:
    """The names along one circle of imports, or nothing."""
    graph = defaultdict(set)
    for a, b in edges:
        graph[a].add(b)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in NAMEDTUPLE


def defined_in(tree: ast.Module) -> set[str]:
    """All names that a module defines: variables, functions, classes, attributes, slots."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and of_self(node):
            names.add(node.attr)
    return names


def of_self(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}


def outside(tree: ast.Module) -> set[str]:
    """Names of modules and packages that are not ours, as a module calls them."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("sliceflow"):
            names |= {alias.asname or alias.name for alias in node.names}
    return names


def private_names_used(tree: ast.Module, part: str, own: set[str]) -> Iterator[str]:
    """Private names that a module of this part imports or reads from others; `own` are the part's."""
    for module, name, _ in imports_in(tree):
        if module.split(".")[0] == "sliceflow" and folder(module) != part and private(name):
            yield name
    foreign = outside(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and private(node.attr) and node.attr not in own:
            root = node.value
            while isinstance(root, ast.Attribute):
                root = root.value
            if isinstance(root, ast.Name) and root.id in foreign:
                continue  # such as torch._C
            if not of_self(node):
                yield node.attr
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in {"getattr", "hasattr", "setattr"}:
            of, name = node.args[:2]
            if isinstance(name, ast.Constant) and private(name.value) and name.value not in own:
                yield from [name.value] if ast.unparse(of) not in {"self", "cls"} else []


def all_private_names_used() -> set[tuple[str, str]]:
    own = defaultdict(set)
    for source in sources():
        own[folder(source.name)] |= defined_in(source.tree)
    return {
        (source.name, name)
        for source in sources()
        for name in private_names_used(source.tree, folder(source.name), own[folder(source.name)])
    }


def drawing() -> str:
    """The folders level by level, and who imports whom, as a block of text."""
    pairs = between_folders()
    order = [name for level in LEVELS for name in level]
    columns = order[1:]
    label = max(map(len, order)) + 1
    header = " " * label + " ".join(columns)
    lines = []
    for names in LEVELS:
        beside = [f"{a} → {b}" for a, b in sorted(pairs) if a in names and b in names]
        lines += ["▼", "     ".join(names), *([f"({', '.join(beside)})"] if beside else [])]
    lines = [line.center(len(header)).rstrip() for line in lines[1:]]
    lines += ["", f"imported by all: {', '.join(FOR_ALL)}".center(len(header)).rstrip(), "", header]
    for row in order[:-1]:
        cells = ["●" if (row, name) in pairs else "·" for name in columns]
        centred = (cell.center(len(name)) for cell, name in zip(cells, columns, strict=True))
        lines.append((row.ljust(label) + " ".join(centred)).rstrip())
    return "\n".join(["```text", *lines, "```", ""])


BLOCK = re.compile(r"(<!-- drawing: begin -->\n).*?(<!-- drawing: end -->)", re.DOTALL)


def with_drawing(page: str) -> str:
    return BLOCK.sub(lambda found: found[1] + drawing() + found[2], page)


def test_every_part_of_the_package_has_a_level():
    parts = {folder(source.name) for source in sources()} - set(ENTRY_POINTS)
    assert parts == {name for level in LEVELS for name in level} | set(FOR_ALL)


def test_folders_import_only_what_is_below_them():
    upward = between_folders() - allowed()
    assert not upward, [i for i in imports() if (folder(i.by), folder(i.module)) in upward]
    assert between_folders() >= SIDEWAYS, "delete what is no longer needed from SIDEWAYS"
    order = [name for level in LEVELS for name in level]
    assert all(order.index(a) < order.index(b) for a, b in SIDEWAYS)


def test_there_is_no_circle_between_folders():
    assert not circle(between_folders())


def test_there_is_no_circle_between_modules():
    edges = {(i.by, i.module) for i in imports() if not i.for_types and i.by != i.module}
    assert not circle((a, b) for a, b in edges if folder(a) == folder(b))


def test_no_private_name_is_used_from_another_folder():
    assert all_private_names_used() == PRIVATE_NAMES_IN_USE


def test_the_drawing_on_the_page_is_that_of_the_source():
    page = PAGE.read_text()
    assert BLOCK.search(page)
    assert with_drawing(page) == page, "run: python tests/test_architecture.py"


def test_the_files_named_on_the_page_exist():
    for name in re.findall(r"[a-z]+/[a-z_]+\.py", PAGE.read_text()):
        assert (PACKAGE / name).exists(), name


def test_a_circle_is_found():
    assert circle([("a", "b"), ("b", "c"), ("c", "a")])
    assert not circle([("a", "b"), ("b", "c"), ("a", "c")])


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("from sliceflow.engine.flow import _step", ["_step"]),
        ("from sliceflow.models.file import _step", []),
        ("flow._model.append(1)", ["_model"]),
        ("self._model.append(1)", []),
        ("self.flow._model.append(1)", ["_model"]),
        ("table._own", []),
        ("getattr(flow, '_model', None)", ["_model"]),
        ("getattr(self, '_model')", []),
        ("import torch\ntorch._C.x", []),
        ("pair._replace(x=1)", []),
        ("x.__class__", []),
    ],
)
def test_a_private_name_of_another_folder_is_found(line, found):
    assert list(private_names_used(ast.parse(line), "storage", {"_own"})) == found


def test_imports_for_annotations_are_told_from_others():
    text = "if TYPE_CHECKING:\n    from a import b\nelse:\n    import c\n"
    text += "def f():\n    from d import e\n    sliceflow.g()\n"
    assert list(imports_in(ast.parse(text))) == [
        ("a", "b", True),
        ("c", "", False),
        ("d", "e", False),
        ("sliceflow", "g", False),
    ]


if __name__ == "__main__":
    PAGE.write_text(with_drawing(PAGE.read_text()))
