"""Check the prose of code for what a program can find.

    python docs/check_prose.py

Reports docstrings and ``#:`` comments that open with a word that needs the line above them, idioms
that the field has words for, and subjects of commits, starting with the one that added this file,
that are too long or not of the form ``area: imperative change``.  Exits with status 1 if there is a
report.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: Folders whose Python files are read.
FOLDERS = ("tvmflow", "schedules", "models", "tests", "benchmarks", "docs", "examples")
#: Words that a first line may not open with: they have no subject without the line above.
OPENINGS = re.compile(r"(Of|Where|What|Who|By|So|As well|Else)\b")
#: Idioms, and the words that replace them.
IDIOMS = {
    r"\bkept apart\b": "separate",
    r"\btaken together\b": "joined",
    r"\bstands behind\b": "follows",
    r"\bgives? back\b": "returns, resets",
    r"\blets? go\b": "releases",
    r"\bmachine loops?\b": "VM loop",
    r"\bby itself each\b": "each separately",
    r"\bwhat (?:it|they) ha(?:s|ve)\b": "a noun",
    r"\bthose of it\b": "a noun",
    r"\bof ours\b": "our",
}
SUBJECT = re.compile(r"[a-z0-9_, /.-]+: [a-z]\S*( |$)")
LONGEST_SUBJECT = 72


def texts(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and text of each docstring and each comment that starts a ``#:`` block."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node)
            if text:
                yield node.body[0].lineno, text
    previous = -1
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and token.string.startswith("#:"):
            if token.start[0] != previous + 1:
                yield token.start[0], token.string.removeprefix("#:").strip()
            previous = token.start[0]


def faults(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and a description of each fault of a Python file."""
    for line, text in texts(source):
        if found := OPENINGS.match(text):
            yield line, f"opens with “{found[0]}”: name the thing, or say what is done"
        for idiom, words in IDIOMS.items():
            if found := re.search(idiom, " ".join(text.split())):
                yield line, f"“{found[0]}”: write {words}"


def subject_faults(subject: str) -> Iterator[str]:
    """Yield a description of each fault of a commit's subject."""
    if len(subject) > LONGEST_SUBJECT:
        yield f"the subject has {len(subject)} characters; at most {LONGEST_SUBJECT}"
    if not SUBJECT.match(subject):
        yield f"“{subject}” is not “area: imperative change”"


def new_commits() -> Iterator[tuple[str, str]]:
    """Yield hash and subject of the commits since this file was added; none without a history."""
    git = ["git", "-C", str(ROOT), "log", "--no-merges"]
    file = str(Path(__file__).relative_to(ROOT))
    added = subprocess.run(
        [*git, "--diff-filter=A", "--format=%H", "--", file],
        capture_output=True, text=True, check=False,
    ).stdout.split()  # fmt: skip
    if added:
        log = subprocess.run(
            [*git, "--format=%h %s", f"{added[-1]}..HEAD"],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        for entry in log.splitlines():
            commit, _, subject = entry.partition(" ")
            yield commit, subject


def main() -> int:
    """Print all faults; return 1 if there are some."""
    reports = [
        f"{path.relative_to(ROOT)}:{line}: {fault}"
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, fault in faults(path.read_text(encoding="utf-8"))
    ]
    reports += [
        f"commit {commit}: {fault}"
        for commit, subject in new_commits()
        for fault in subject_faults(subject)
    ]
    sys.stdout.writelines(f"{report}\n" for report in reports)
    return bool(reports)


if __name__ == "__main__":
    sys.exit(main())
