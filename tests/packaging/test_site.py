"""The site's configuration, on a small tree: the order of pages, and what fails."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from support import pages

pytestmark = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("sphinx", "myst_parser", "furo")),
    reason="Sphinx, MyST or Furo is not installed (the extra docs)",
)

INDEX = """# Documentation

| task | pages |
|---|---|
| **start** | [README](../README.md): first |
| **run** | [tune.md](tune.md#how-it-goes) a section, [sources](../native), [one](../native/a.c) |
| **tune** | [tune.md](tune.md) and [models](../models) |

Internals: nothing.
"""


def build(tree: Path, **changes: str) -> subprocess.CompletedProcess[str]:
    """Build the site of a small tree as `make docs` does."""
    files = {
        "docs/README.md": INDEX,
        "docs/tune.md": "# Tuning\n\n## How it goes\n\nWell.\n",
        "README.md": "# Start\n\n[Tuning](docs/tune.md#how-it-goes)\n",
        "CHANGELOG.md": "# Changes\n",
        "models/README.md": "# Networks\n",
        "native/a.c": "int a;\n",
        **changes,
    }
    for name, text in files.items():
        (tree / name).parent.mkdir(exist_ok=True)
        (tree / name).write_text(text)
    shutil.copy(pages.ROOT / "docs/conf.py", tree / "docs")
    makefile = (pages.ROOT / "Makefile").read_text()
    options = re.search(r"^SPHINX = \$\(BIN\)/python -m sphinx (.*)$", makefile, re.MULTILINE)
    return subprocess.run(
        [sys.executable, "-m", "sphinx", *options[1].split(), ".", "site"],
        cwd=tree, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_pages_are_in_the_order_of_the_index(tmp_path: Path):
    done = build(tmp_path)
    assert done.returncode == 0, done.stderr
    index = (tmp_path / "site/docs/README.html").read_text()
    side = index[index.index("sidebar-tree") :]
    side = side[: side.index("</div>")]
    # Each page once, below its task: a section of a page does not bring the page.
    captions = re.findall(r'caption-text">(\w+)<|reference internal" href="([^"]*)"', side)
    assert [caption or target for caption, target in captions] == [
        "Start", "../README.html", "Tune", "tune.html", "../models/README.html",
        "Internals", "../CHANGELOG.html",
    ]  # fmt: skip
    # A folder without a page is no link, a source is a copy.
    assert not re.search(r"<a [^>]*>[^/]*sources", index)
    (copy,) = re.findall(r'href="\.\./(_downloads/[^"]*a\.c)"', index)
    assert (tmp_path / "site" / copy).read_text() == "int a;\n"
    assert 'url=docs/README.html"' in (tmp_path / "site/index.html").read_text()


def test_what_leads_nowhere_fails(tmp_path: Path):
    wrong = ("[a](docs/tuning.md)", "[b](docs/tune.md#how-it-was)", "![c](docs/no.png)")
    start = "# Start\n\n" + "\n\n".join(wrong) + "\n"
    done = build(tmp_path, **{"README.md": start, "docs/lost.md": "# Lost\n"})
    assert done.returncode != 0
    warnings = [line for line in done.stderr.splitlines() if "WARNING" in line]
    found = ("docs/tuning.md", "how-it-was", "no.png", "lost.md")
    assert all(sum(name in line for line in warnings) == 1 for name in found), done.stderr
    assert len(warnings) == len(found), done.stderr
