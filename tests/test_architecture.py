"""The house: imports go down, rooms keep their private names, functions and folders keep their size.

`python tests/test_architecture.py` writes the drawing of the floors into docs/architecture.md.
"""

import ast
import re
from collections import defaultdict
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "sliceflow"
PAGE = ROOT / "docs" / "architecture.md"

# What is on a floor may import what is on a lower one, and nothing beside it. Eight floors at most.
FLOORS = (
    ("cli", "app"),
    ("inference", "loading"),
    ("spaces",),
    ("models",),
    ("neighbours", "metrics"),
    ("engine",),
    ("kernels",),
    ("errors", "devices", "caches", "dataframes", "datasets", "written"),
)
# Exceptions on one floor: the page is a command, small modules use the errors.
BESIDE = {("cli", "app"), *((a, "errors") for a in FLOORS[-1][1:])}
SPACES_BESIDE: set[tuple[str, str]] = set()  # spaces that use another space

# The most lines of .py, blank ones and docstrings included. Where several folders share a number, it is
# that of their sum.
BUDGETS = {
    ("engine",): 2_600,
    ("kernels",): 2_000,
    ("neighbours",): 700,
    ("models",): 2_200,
    ("spaces/vectors",): 1_000,
    ("spaces/pictures",): 2_300,
    ("spaces/tables",): 1_600,
    ("inference.py", "metrics"): 1_400,
    ("datasets",): 550,
    ("cli",): 2_000,
    ("app",): 600,
    ("rest",): 550,  # modules beside the folders
}
WHOLE = {"src/sliceflow": 17_500, "tests": 14_000, "benchmarks": 4_500}

MOST_LINES, MOST_PARAMETERS = 60, 7  # of a function, without its docstring, and without self
COMPILED = ("jit", "_jit", "_inline")  # functions for numba and Triton, which take bare arrays
NAMEDTUPLE = {"_asdict", "_fields", "_make", "_replace"}  # public, in spite of their names


class Source(NamedTuple):
    """A module of the package: its name, its text, and its tree."""

    name: str
    lines: list[str]
    tree: ast.Module


@cache
def sources() -> tuple[Source, ...]:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        text = path.read_text()
        found.append(Source(name, text.splitlines(), ast.parse(text)))
    return tuple(found)


def room(module: str) -> str:
    """The folder in which a module is, or the module itself."""
    return (*module.split("."), "__init__")[1]


def imports_in(tree, for_types=False):
    """(module, name, only for annotations) of all that is imported, in functions as well."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "", for_types) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute"
            yield from ((node.module or "", alias.name, for_types) for alias in node.names)
        elif isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            yield from imports_in(ast.Module(node.body, []), True)
            yield from imports_in(ast.Module(node.orelse, []), for_types)
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "sliceflow":
            yield "sliceflow", node.attr, for_types  # as in sliceflow.load
        else:
            yield from imports_in(node, for_types)


@cache
def imports() -> tuple[tuple[str, str, bool], ...]:
    """(importing module, imported module, only for annotations), all within the package.

    Names of `sliceflow` itself count as the modules that they come from.
    """
    modules = {source.name for source in sources()}

    def home(module, name):
        return f"{module}.{name}" if f"{module}.{name}" in modules else module

    front = next(source.tree for source in sources() if source.name == "sliceflow")
    public = {name: home(module, name) for module, name, _ in imports_in(front)}
    found = []
    for source in sources():
        for module, name, for_types in imports_in(source.tree):
            if module.split(".")[0] == "sliceflow" and source.name != "sliceflow":
                there = home(module, name)
                there = public.get(name, there) if there == "sliceflow" else there
                found.append((source.name, there, for_types))
    return tuple(found)


def between_rooms() -> dict[tuple[str, str], list[str]]:
    """Which room imports which, and the modules that do. `__main__` is nobody's."""
    pairs = defaultdict(list)
    for by, module, _ in imports():
        a, b = room(by), room(module)
        if a != b and a != "__main__" and b != "__init__":
            pairs[a, b].append(f"{by} imports {module}")
    return pairs


def listed(lines) -> str:
    return "\n" + "\n".join(sorted(set(lines)))


def circle(edges) -> list[str]:
    """The names along one circle of imports, or nothing."""
    graph = defaultdict(set)
    for a, b in edges:
        graph[a].add(b)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_every_room_is_on_a_floor():
    rooms = {room(source.name) for source in sources()} - {"__init__", "__main__"}
    assert rooms == {name for floor in FLOORS for name in floor}, "see FLOORS"
    assert len(FLOORS) <= 8


def test_imports_go_down():
    floor = {name: level for level, names in enumerate(FLOORS) for name in names}
    upward = {
        pair: modules
        for pair, modules in between_rooms().items()
        if floor.get(pair[0], 99) >= floor.get(pair[1], -1) and pair not in BESIDE
    }
    assert not upward, listed(f"{a} → {b}: {m}" for (a, b), modules in upward.items() for m in modules)


def test_a_space_knows_no_other_space():
    def space(module):
        return module.split(".")[2] if module.startswith("sliceflow.spaces.") else ""

    pairs = {(space(by), space(module)) for by, module, _ in imports()}
    assert {(a, b) for a, b in pairs if a and b and a != b} == SPACES_BESIDE


def test_there_is_no_circle_of_imports():
    assert not circle((a, b) for a, b, for_types in imports() if not for_types and a != b)


# Private names


def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in NAMEDTUPLE


def of_self(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}


def defined_in(tree: ast.Module) -> set[str]:
    """All names that a module defines: variables, functions, classes, attributes."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and of_self(node):
            names.add(node.attr)
    return names


def private_names_used(tree: ast.Module, part: str, own: set[str]):
    """Private names that a module of this room imports or reads from others; `own` are the room's."""
    foreign = set()  # what comes from other packages, such as torch._C
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            foreign |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("sliceflow"):
            foreign |= {alias.asname or alias.name for alias in node.names}
    for module, name, _ in imports_in(tree):
        if module.split(".")[0] == "sliceflow" and room(module) != part and private(name):
            yield name
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and private(node.attr) and node.attr not in own:
            root = node.value
            while isinstance(root, ast.Attribute):
                root = root.value
            if not of_self(node) and not (isinstance(root, ast.Name) and root.id in foreign):
                yield node.attr
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in {"getattr", "hasattr", "setattr"}:
            of, name = node.args[:2]
            if isinstance(name, ast.Constant) and private(name.value) and name.value not in own:
                yield from [name.value] if ast.unparse(of) not in {"self", "cls"} else []


def test_no_private_name_is_used_from_another_room():
    own = defaultdict(set)
    for source in sources():
        own[room(source.name)] |= defined_in(source.tree)
    used = {
        (source.name, name)
        for source in sources()
        for name in private_names_used(source.tree, room(source.name), own[room(source.name)])
    }
    assert used == set()


# Sizes


def counted(path: Path) -> int:
    files = path.rglob("*.py") if path.is_dir() else [path] if path.exists() else []
    return sum(len(file.read_text().splitlines()) for file in files)


@pytest.mark.parametrize("names", BUDGETS, ids=" and ".join)
def test_a_folder_keeps_its_budget(names):
    named = {path.split("/")[0] for group in BUDGETS for path in group} | {"spaces"}
    rest = [p.name for p in PACKAGE.glob("*.py") if p.name not in named]
    paths = rest if names == ("rest",) else names
    assert sum(counted(PACKAGE / path) for path in paths) <= BUDGETS[names]


@pytest.mark.parametrize("folder", WHOLE)
def test_the_whole_keeps_its_budget(folder):
    assert counted(ROOT / folder) <= WHOLE[folder]


def reasons(source: Source, node: ast.FunctionDef, word: str) -> bool:
    """Whether a comment such as ``# long: …`` stands in the head of a function, or above it."""
    first = min([node.lineno, *(d.lineno for d in node.decorator_list)]) - 2
    head = source.lines[max(first, 0) : node.body[0].lineno]
    return any(re.search(rf"# {word}: \S", line) for line in head)


def functions():
    for source in sources():
        for node in ast.walk(source.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield source, node


def test_no_function_is_long_without_a_reason():
    long = []
    for source, node in functions():
        body = node.body[1:] if ast.get_docstring(node) else node.body
        lines = node.end_lineno - body[0].lineno + 1 if body else 0
        if lines > MOST_LINES and not reasons(source, node, "long"):
            long.append(f"{source.name}.{node.name}: {lines} lines")
    assert not long, listed(long)


def test_no_function_has_many_parameters_without_a_reason():
    many = []
    for source, node in functions():
        compiled = any(
            ast.unparse(d).split("(")[0].split(".")[-1] in COMPILED for d in node.decorator_list
        )
        names = [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
        count = len([name for name in names if name not in ("self", "cls")])
        if count > MOST_PARAMETERS and not compiled and not reasons(source, node, "many"):
            many.append(f"{source.name}.{node.name}: {count} parameters")
    assert not many, listed(many)


# The page


def drawing() -> str:
    """The floors, from the top to the bottom, as a block of text."""
    width = max(len("     ".join(names)) for names in FLOORS)
    floors = "\n".join("     ".join(names).center(width).rstrip() for names in FLOORS)
    return "\n".join(
        ["```text", floors.replace("\n", "\n" + "▼".center(width).rstrip() + "\n"), "```", ""]
    )


BLOCK = re.compile(r"(<!-- drawing: begin -->\n).*?(<!-- drawing: end -->)", re.DOTALL)


def with_drawing(page: str) -> str:
    return BLOCK.sub(lambda found: found[1] + drawing() + found[2], page)


def test_the_page_shows_these_floors_and_files_that_exist():
    page = PAGE.read_text()
    assert BLOCK.search(page)
    assert with_drawing(page) == page, "run: python tests/test_architecture.py"
    named = re.findall(r"`((?:[a-z]+/)+[a-z_]+\.py)`", page)
    missing = [name for name in named if not any((top / name).exists() for top in (PACKAGE, ROOT))]
    assert not missing, listed(missing)


# That the rules can fail


def test_a_circle_is_found():
    assert circle([("a", "b"), ("b", "c"), ("c", "a")])
    assert not circle([("a", "b"), ("b", "c"), ("a", "c")])


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("from sliceflow.engine.flow import _step", ["_step"]),
        ("from sliceflow.models.file import _step", []),
        ("flow._model.append(1)", ["_model"]),
        ("self.flow._model.append(1)", ["_model"]),
        ("self._model.append(1)", []),
        ("table._own", []),
        ("getattr(flow, '_model', None)", ["_model"]),
        ("import torch\ntorch._C.x", []),
        ("pair._replace(x=1)", []),
    ],
)
def test_a_private_name_of_another_room_is_found(line, found):
    assert list(private_names_used(ast.parse(line), "models", {"_own"})) == found


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
