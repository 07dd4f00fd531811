"""Tables that users write: storage, layouts, algorithms and knobs by name, in JSON or TOML."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..devices.choices import ALGORITHMS, KEPT_FORMS
from ..errors import CompileError


@dataclass(frozen=True)
class Table:
    """What a table holds, and how errors speak of it.

    Parameters
    ----------
    what
        Begins a sentence about the table.
    entry
        What is said of a name in it, behind "The".
    example
        Such an object.
    remedy
        What to write.
    values
        What a name may have; ``None`` is an object of its own.
    """

    what: str
    entry: str
    example: str
    remedy: str
    values: Collection[str] | None = None

    def settled(self, given: Mapping[Any, Any] | str | os.PathLike[str] | None) -> dict[str, Any]:
        """The table, read from its file if it has one, and checked.

        Raises
        ------
        CompileError
            If the file cannot be read, or something in the table does not exist.
        """
        if isinstance(given, str | os.PathLike):
            table, where = self.read(Path(given)), f" in {given}"
        else:
            table, where = dict(given or {}), ""
        for name, value in table.items():
            if self.values is None and not isinstance(value, Mapping):
                raise CompileError(
                    f"The {self.entry} {name}{where} should be an object, but are {value!r}.",
                    remedy=self.remedy,
                )
            if self.values is not None and value not in self.values:
                hint = " Quote names with dots in TOML." if isinstance(value, dict) else ""
                raise CompileError(
                    f"The {self.entry} {name!r} is {value!r}; expected one of "
                    f"{', '.join(self.values)}.",
                    remedy=self.remedy + hint,
                )
        return table

    def read(self, path: Path) -> dict[str, Any]:
        """Read a JSON object, or a TOML table in a file ``*.toml``.

        Raises
        ------
        CompileError
            If the file cannot be read, or is not of that form.
        """
        try:
            text = path.read_text(encoding="utf-8")
            content = _toml(path, text) if path.suffix == ".toml" else _json(text)
        except (OSError, ValueError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
            raise CompileError(
                f"{self.what} in {path} could not be read: {reason}.",
                remedy=f"Write a JSON object such as {self.example}, or a TOML table in a file "
                "whose name ends in .toml.",
            ) from error
        if not isinstance(content, dict):
            raise CompileError(
                f"{self.what} in {path} should be an object of names and values, but are of type "
                f"{type(content).__name__}.",
                remedy=self.remedy,
            )
        return content


STORAGE_OVERRIDES = Table(
    "The storage overrides",
    "storage override of the tensor",
    '{"conv1": "texture"}',
    'Write names of tensors with "texture" or "buffer" behind them.',
    ("texture", "buffer"),
)
KEPT_LAYOUTS = Table(
    "The layouts to keep",
    "layout to keep of",
    '{"image": "texture"}',
    "Write names of inputs and outputs, with nchw4c for a buffer or texture.",
    KEPT_FORMS,
)
CONVOLUTION_ALGORITHMS = Table(
    "The algorithms",
    "algorithm of the convolution",
    '{"conv1": "winograd4"}',
    f"Write names of convolutions, each with one of {', '.join(ALGORITHMS)}.",
    ALGORITHMS,
)
#: Whether they fit is seen when the function is scheduled.
KNOBS = Table(
    "The knobs",
    "knobs of",
    '{"pool": {"tile_h": 4, "tile_w": 8, "stage_input": true, "group_size": 1}}',
    "Write names of primary functions, each with an object of its knobs.",
)


def _json(text: str) -> Any:
    def without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        content = dict(pairs)
        if len(content) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"the name {twice!r} comes twice")
        return content

    return json.loads(text, object_pairs_hook=without_repetition)


def _toml(path: Path, text: str) -> Any:
    if sys.version_info >= (3, 11):
        import tomllib

        return tomllib.loads(text)
    raise ValueError(f"reading TOML needs Python 3.11 or newer, so {path.stem}.json is needed")
