"""The house: imports go down, and rooms keep their private names.

The linter limits the complexity of functions (pyproject.toml).

`python tests/test_architecture.py` writes the drawing of the floors into
docs/architecture.md.
"""

import ast
import re
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

from sliceflow.engine.batches import DataTarget
from sliceflow.engine.flow import FlowState, Step
from sliceflow.engine.frames import Frame

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "sliceflow"
PAGE = ROOT / "docs" / "architecture.md"

# What is on a floor may import what is on a lower one, and nothing beside it. Eight
# floors at most.
FLOORS = (
    ("cli", "app"),
    (
        "inference",
        "loading",
        "frames",
        "transports",
        "schedules",
        "events",
        "ranks",
    ),
    ("estimators",),
    ("base", "metrics"),
    ("neighbors",),
    ("engine",),
    ("kernels",),
    (
        "errors",
        "validation",
        "devices",
        "arrays",
        "caches",
        "dataframes",
        "datasets",
        "functional_dependencies",
        "saved_types",
        "number_formats",
        "table_files",
        "wording",
    ),
)
# Exceptions on one floor: the page is a command; small modules use errors, wording and
# types of arrays.
BESIDE = {("cli", "app"), ("devices", "wording")}
BESIDE |= {(module, "errors") for module in FLOORS[-1][1:]}
BESIDE |= {(module, "validation") for module in FLOORS[-1][2:]}
BESIDE |= {(module, "arrays") for module in FLOORS[-1] if module != "arrays"}


# The folders of tables, and the one module of theirs that folders import. Each imports
# only what is below it. The other modules of tables are above all folders.
FOLDERS_OF_TABLES = (
    "imputing",
    "trials",
    "given",
    "draws",
    "table",
    "rules",
    "columns",
    "identifiers",
    "rows",
)


class Source(NamedTuple):
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
    """(module, name, only for annotations) of all that is imported, in functions as
    well.
    """
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "", for_types) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute"
            yield from (
                (node.module or "", alias.name, for_types) for alias in node.names
            )
        elif isinstance(node, ast.If) and ast.unparse(node.test).endswith(
            "TYPE_CHECKING"
        ):
            yield from imports_in(ast.Module(node.body, []), True)
            yield from imports_in(ast.Module(node.orelse, []), for_types)
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "sliceflow":
            yield "sliceflow", node.attr, for_types  # as in sliceflow.load
        else:
            yield from imports_in(node, for_types)


@cache
def imports() -> tuple[tuple[str, str, bool], ...]:
    """(importing module, imported module, only for annotations), all within the
    package.

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


def test_imports_go_down_and_in_no_circle():
    floor = {name: level for level, names in enumerate(FLOORS) for name in names}
    rooms = {room(source.name) for source in sources()} - {"__init__", "__main__"}
    assert rooms == set(floor), "see FLOORS"
    assert len(FLOORS) <= 8
    upward = []
    for by, module, _ in imports():
        a = room(by)
        b = room(module)
        if a != b and a != "__main__" and b != "__init__" and (a, b) not in BESIDE:
            upward += [f"{by} imports {module}"] if floor[a] >= floor[b] else []
    assert upward == []
    graph = TopologicalSorter()
    for by, module, for_types in imports():
        if not for_types and by != module:
            graph.add(by, module)
    graph.prepare()  # a CycleError names the circle


def test_folders_of_tables_import_only_those_below():
    tables = PACKAGE / "estimators" / "tables"
    folders = {path.parent.name for path in tables.glob("*/__init__.py")}
    assert folders == set(FOLDERS_OF_TABLES) - {"table"}, "see FOLDERS_OF_TABLES"
    level = {name: k for k, name in enumerate(FOLDERS_OF_TABLES)}
    upward = []
    prefix = "sliceflow.estimators.tables."
    for by, module, _ in imports():
        if not (by.startswith(prefix) and module.startswith(prefix)):
            continue
        a = by.removeprefix(prefix).split(".")[0]
        b = module.removeprefix(prefix).split(".")[0]
        if a != b and a in level and level.get(b, -1) < level[a]:
            upward.append(f"{by} imports {module}")
    assert upward == []


def test_a_space_knows_no_other_space():
    kinds_of_data = [
        [m.split(".")[2] for m in pair if m.startswith("sliceflow.estimators.")]
        for *pair, _ in imports()
    ]
    assert [names for names in kinds_of_data if len(set(names)) > 1] == []


def test_no_private_name_is_imported_from_another_room():
    found = []
    for source in sources():
        for module, name, _ in imports_in(source.tree):
            private = (
                name[:1] == "_"
                and name[:2] != "__"
                and module.split(".")[0] == "sliceflow"
            )
            if private and room(module) != room(source.name):
                found.append(f"{source.name} imports {module}.{name}")
    assert found == []


# The page

BLOCK = re.compile(r"(<!-- drawing: begin -->\n).*?(<!-- drawing: end -->)", re.DOTALL)


def with_drawing(page: str) -> str:
    """The page with the floors, from the top to the bottom, as a block of text."""
    width = max(len("     ".join(names)) for names in FLOORS)
    floors = "\n".join("     ".join(names).center(width).rstrip() for names in FLOORS)
    floors = floors.replace("\n", "\n" + "▼".center(width).rstrip() + "\n")
    return BLOCK.sub(
        lambda found: f"{found[1]}```text\n{floors}\n```\n{found[2]}", page
    )


def test_the_page_shows_these_floors_and_files_that_exist():
    page = PAGE.read_text()
    assert BLOCK.search(page)
    assert with_drawing(page) == page, "run: python tests/test_architecture.py"
    named = re.findall(r"`((?:[a-z]+/)+[a-z_]+\.py)`", page)
    assert [
        name
        for name in named
        if not any((top / name).exists() for top in (PACKAGE, ROOT))
    ] == []


FILE = re.compile(r"`((?:[a-z_]+/)*[a-z_]+\.py)`")


def files_named_by_packages():
    """The folder of each package whose first lines name files, and these names."""
    for path in PACKAGE.rglob("__init__.py"):
        head = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
        names = FILE.findall(head or "")
        if names:
            yield path.parent, names


def test_the_tour_of_a_package_names_files_that_exist():
    lost = []
    for folder, names in files_named_by_packages():
        for name in names:
            if not any((top / name).exists() for top in (folder, PACKAGE)):
                lost.append(f"{folder.name}: {name}")
    assert lost == []


def test_the_tour_of_a_package_names_all_its_files():
    missing = []
    for folder, names in files_named_by_packages():
        for file in folder.glob("*.py"):
            if file.name != "__init__.py" and file.name not in names:
                missing.append(f"{folder.name}: {file.name}")
    assert missing == []


# What the names in the page's loop stand for.
TYPES_IN_LOOP = {
    "step": Step,
    "target": DataTarget,
    "frame": Frame,
    "state": FlowState,
}


def test_the_loop_of_the_page_uses_what_the_engine_has():
    loop = re.search(r"```text\nfor every step.*?```", PAGE.read_text(), re.DOTALL)
    used = re.findall(rf"\b({'|'.join(TYPES_IN_LOOP)})\.(\w+)", loop[0])
    assert {name for name, _ in used} == set(TYPES_IN_LOOP)
    missing = []
    for name, attribute in used:
        kind = TYPES_IN_LOOP[name]
        if not hasattr(kind, attribute) and attribute not in kind.__annotations__:
            missing.append(f"{name}.{attribute}")
    assert missing == []


def test_files_are_checked_by_methods_of_one_name():
    """The codec calls `check_saved`: a method `check` of a saved class is never called.

    Only the settings of the command line, which no model holds, have another.
    """
    strange = []
    for path in PACKAGE.rglob("*.py"):
        if path.is_relative_to(PACKAGE / "cli"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name == "check":
                arguments = [argument.arg for argument in node.args.args]
                if arguments == ["self"]:
                    strange.append(f"{path.name}:{node.lineno}")
    assert strange == []


if __name__ == "__main__":
    PAGE.write_text(with_drawing(PAGE.read_text()))
