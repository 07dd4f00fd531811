"""Files depend on each other in one direction: no circle of imports, nor of includes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

#: Files by what each refers to.
Graph = Mapping[str, Iterable[str]]


def circles(graph: Graph) -> list[list[str]]:
    """Return the strongly connected components of more than one file (R. Tarjan)."""
    numbers: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(file: str) -> None:
        numbers[file] = lowest[file] = len(numbers)
        stack.append(file)
        for other in graph.get(file, ()):
            if other not in numbers:
                visit(other)
                lowest[file] = min(lowest[file], lowest[other])
            elif other in stack:
                lowest[file] = min(lowest[file], numbers[other])
        if lowest[file] == numbers[file]:
            place = stack.index(file)
            if len(stack) > place + 1:
                found.append(sorted(stack[place:]))
            del stack[place:]

    for file in graph:
        if file not in numbers:
            visit(file)
    return found


def described(graph: Graph, found: list[list[str]]) -> str:
    """List the references within each circle, one a line."""
    return "\n\n".join(
        "\n".join(f"{a} → {b}" for a in circle for b in sorted(graph[a]) if b in circle)
        for circle in found
    )


def test_circles_are_found():
    graph = {"a": ["b"], "b": ["c", "d"], "c": ["a"], "d": ["e"], "e": [], "f": ["g"], "g": ["f"]}
    found = circles(graph)
    assert found == [["a", "b", "c"], ["f", "g"]]
    assert described(graph, found) == "a → b\nb → c\nc → a\n\nf → g\ng → f"


# -- Python ---------------------------------------------------------------------------------


def modules(root: Path) -> dict[str, Path]:
    """Return the files of the package by the names of their modules."""
    found = {}
    for path in sorted([*root.glob("tvmflow/**/*.py"), *root.glob("schedules/**/*.py")]):
        parts = path.relative_to(root).with_suffix("").parts
        name = ".".join(parts if parts[0] == "tvmflow" else ("tvmflow", *parts))
        found[name.removesuffix(".__init__")] = path
    return found


def imported(path: Path, name: str) -> Iterator[str]:
    """Yield the names that a file imports, wherever it does; of ``from a import b``, ``a.b``."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: -node.level + 1 or None] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def imports(root: Path) -> dict[str, set[str]]:
    """Return which files of the package each of them imports."""
    known = modules(root)
    graph = {}
    for name, path in known.items():
        # A name that is not a module is an object in a module.
        pairs = ((each, each.rpartition(".")[0]) for each in imported(path, name))
        files = {next((module for module in pair if module in known), name) for pair in pairs}
        graph[name] = files - {name}
    return graph


def test_imports_are_resolved(tmp_path):
    files = {
        "tvmflow/__init__.py": "",
        "tvmflow/a/__init__.py": "from .b import f",
        "tvmflow/a/b.py": "def f():\n    from ..c import d\n    from .. import schedules",
        "tvmflow/c/__init__.py": "",
        "tvmflow/c/d.py": "if TYPE_CHECKING:\n    from ..a import f\nimport tvmflow.c\nimport os",
        "schedules/__init__.py": "from . import e\nfrom ..a.b import f",
        "schedules/e.py": "from __future__ import annotations",
    }
    for file, text in files.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    graph = imports(tmp_path)
    assert graph == {
        "tvmflow": set(),
        "tvmflow.a": {"tvmflow.a.b"},
        "tvmflow.a.b": {"tvmflow.c.d", "tvmflow.schedules"},
        "tvmflow.c": set(),
        "tvmflow.c.d": {"tvmflow.a", "tvmflow.c"},
        "tvmflow.schedules": {"tvmflow.a.b", "tvmflow.schedules.e"},
        "tvmflow.schedules.e": set(),
    }
    circle = ["tvmflow.a", "tvmflow.a.b", "tvmflow.c.d", "tvmflow.schedules"]
    assert circles(graph) == [circle]


@pytest.mark.quick
def test_no_files_import_each_other():
    graph = imports(ROOT)
    found = circles(graph)
    assert not found, f"Files import each other:\n{described(graph, found)}"


# -- C and C++ ------------------------------------------------------------------------------

#: Comments and texts, in which names refer to nothing.
_NO_CODE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
#: The head of a function that other files may call, at the begin of a line.
_FUNCTION = re.compile(r"^(?!static|typedef|#)\w[\w *]*?\b(\w+)\([^;{}]*\)\s*\{", re.MULTILINE)


def includes(root: Path) -> dict[str, set[str]]:
    """Return which files in `native` each of them includes."""
    graph = {}
    for path in sorted(root.glob("native/**/*.*")):
        if path.suffix not in (".c", ".cc", ".h", ".hpp"):
            continue
        names = re.findall(r'^\s*#\s*include\s+"([^"]+)"', path.read_text("utf-8"), re.MULTILINE)
        files = [(path.parent / name).resolve() for name in names]
        graph[str(path.relative_to(root))] = {
            str(file.relative_to(root.resolve())) for file in files if file.exists()
        }
    return graph


def calls(*folders: Path) -> dict[str, set[str]]:
    """Return in which C files of the folders the functions are defined that each of them names."""
    files = [path for folder in folders for path in sorted(folder.glob("*.c"))]
    code = {path.name: _NO_CODE.sub('""', path.read_text("utf-8")) for path in files}
    defined = {name: file for file, text in code.items() for name in _FUNCTION.findall(text)}
    return {
        file: {defined[word] for word in re.findall(r"\w+", text) if word in defined} - {file}
        for file, text in code.items()
    }


def test_calls_are_resolved(tmp_path):
    (tmp_path / "a.c").write_text(
        '#include "a.h"\n// f, h\nstatic int g(int x) { return x; }\n'
        "const char* name_of(int x) {\n  return x ? text(g(x)) : g_text;\n}\n"
    )
    (tmp_path / "b.c").write_text(
        'int text(int x,\n         int y) {\n  puts("name_of"); return g(x);\n}\n'
        "static int h(void);\nunsigned f(void) { return name_of(1) ? 1 : h(); }\n"
    )
    graph = calls(tmp_path)
    assert graph == {"a.c": {"b.c"}, "b.c": {"a.c"}}
    assert circles(graph) == [["a.c", "b.c"]]


@pytest.mark.quick
def test_no_headers_include_each_other():
    found = circles(includes(ROOT))
    assert not found, f"Files include each other:\n{described(includes(ROOT), found)}"


@pytest.mark.quick
def test_no_files_of_the_c_runtime_call_each_other():
    core, own = ROOT / "native/core", ROOT / "native/standalone"
    graph = calls(core, own)
    assert graph["entry.c"] == {"adopt.c", "backend.c", "companion.c"}  # (others by a macro)
    found = circles(graph)
    assert not found, f"Files call each other:\n{described(graph, found)}"
    # The core, which the plug-in has as well, stands without the runtime of libraries.
    files = {path.name for path in core.glob("*.c")}
    assert {callee for name in files for callee in graph[name]} <= files
