"""The site that `make docs` builds: the tree's Markdown pages, in the order of docs/README.md.

Sphinx with MyST and not MkDocs: pages lie beside what they describe (models/, tuning_logs/,
examples/), link to each other and to sources, and MkDocs takes one folder only.  With
``--fail-on-warning``, a link that leads nowhere and a page that the index lacks are errors.
Links to sources lead to copies.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]

project = "tvmflow"
extensions = ["myst_parser"]
root_doc = "docs/README"
include_patterns = ["*.md", "docs/*.md", "examples/**.md", "models/*.md", "tuning_logs/*.md"]
exclude_patterns = ["build", "dist", ".*"]
html_theme = "furo"
html_title = "tvmflow"
html_copy_source = False
html_show_copyright = False

# Anchors as on GitHub; links to them are checked.
myst_heading_anchors = 6

ROW = re.compile(r"^\| \*\*(\w+)\*\* \|(.*)\|$", re.MULTILINE)
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")


def pages(text: str) -> list[str]:
    """Return the pages that a part of the index links to, as Sphinx names them.

    Links to sections do not count: the page has its place elsewhere.
    """
    found = []
    for _, target in LINK.findall(text):
        path = (ROOT / "docs" / target).resolve()
        if path.suffix == ".md" and "://" not in target:
            found.append(f"/{path.relative_to(ROOT).with_suffix('')}")
    return found


def navigation(index: str) -> str:
    """Return a table of contents for each task of the index, and one for the rest.

    A page that serves two tasks stands at the first.
    """
    parts = {match[1].capitalize(): match[2] for match in ROW.finditer(index)}
    parts["Internals"] = index[index.index("Internals:") :] + "[](../CHANGELOG.md)"
    seen: set[str] = set()
    text = ""
    for caption, part in parts.items():
        names = [name for name in dict.fromkeys(pages(part)) if name not in seen]
        seen.update(names)
        if not names:
            continue
        lines = "\n".join(names)
        text += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{lines}\n```\n"
    return text


def complete(app: Any, name: str, content: list[str]) -> None:
    """Lead links to folders to their pages, and add the navigation to the index."""
    here = (ROOT / name).parent

    def page_of(link: re.Match[str]) -> str:
        folder = here / link[2]
        if not folder.is_dir():
            return link[0]
        readme = folder / "README.md"
        return f"[{link[1]}]({link[2].rstrip('/')}/README.md)" if readme.exists() else link[1]

    content[0] = LINK.sub(page_of, content[0])
    if name == root_doc:
        content[0] += navigation(content[0])


def write_entrance(app: Any, error: Exception | None) -> None:
    """Lead from the site's root to the index."""
    if error is None:
        page = f'<!doctype html><meta http-equiv="refresh" content="0; url={root_doc}.html">\n'
        (Path(app.outdir) / "index.html").write_text(page, encoding="utf-8")


def setup(app: Any) -> None:
    """Register what changes pages before they are read."""
    app.connect("source-read", complete)
    app.connect("build-finished", write_entrance)
