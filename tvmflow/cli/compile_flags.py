"""Flags of the command line for `CompileOptions`: one for each of its fields."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeVar

import typer

from ..compiler.options import CompileOptions
from ..devices.choices import STANDALONE
from .options import option

R = TypeVar("R")


def _read_named(texts: list[str] | None, form: str, noun: str) -> dict[str, str]:
    """Split ``NAME=VALUE`` options, whose names may have an equals sign, too."""
    values: dict[str, str] = {}
    for text in texts or []:
        name, equals, value = text.rpartition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{text!r} is not of the form {form}.")
        if name in values:
            raise typer.BadParameter(f"the {noun} of {name!r} is given twice.")
        values[name] = value
    return values


def parse_shapes(texts: list[str] | None) -> dict[str, tuple[int, ...]]:
    """Read ``NAME=1,3,224,224`` options.

    Raises `typer.BadParameter` if one is not of that form, or a name comes twice.
    """
    form = "NAME=1,3,224,224 with positive whole numbers"
    shapes: dict[str, tuple[int, ...]] = {}
    for name, extents in _read_named(texts, form, "shape").items():
        try:
            shapes[name] = tuple(int(part) for part in extents.split(",")) if extents else ()
        except ValueError:
            shapes[name] = (0,)
        if min(shapes[name], default=1) < 1:
            raise typer.BadParameter(f"{f'{name}={extents}'!r} is not of the form {form}.")
    return shapes


def parse_keep_layout(texts: list[str] | None) -> dict[str, str]:
    """Read ``NAME=nchw4c`` options.

    Raises `typer.BadParameter` if one is not of that form, or a name comes twice.
    """
    form = "NAME=nchw4c or NAME=texture"
    layouts = _read_named(texts, form, "layout")
    if empty := next((name for name, layout in layouts.items() if not layout), None):
        raise typer.BadParameter(f"{f'{empty}='!r} is not of the form {form}.")
    return layouts


#: Options where they are not spelt like the field.
_SPELT = {"shapes": "shape", "journals": "journal", "embed_limit_bytes": "embed_limit"}
#: Options by field.
FLAGS = {each.name: _SPELT.get(each.name, each.name) for each in fields(CompileOptions)}
#: From what was typed to the field's value.
_READ: dict[str, Callable[[Any], Any]] = {
    "shapes": parse_shapes,
    "keep_layout": parse_keep_layout,
    "embed_limit_bytes": lambda megabytes: megabytes * 10**6,
}
#: What is shown, where it is not the field's default, or the field has none but an empty table.
_DEFAULTS = {"journals": None, "embed_limit_bytes": 512}
#: Fields of what is tuned.
TUNED = ("target", "device", "shapes", "storage", "dtype", "accumulate")


def with_compile_flags(*names: str) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Give a command the flags of these fields, or of all; it gets its `options` of them."""
    wanted = names or tuple(FLAGS)

    def decorate(function: Callable[..., R]) -> Callable[..., R]:
        @functools.wraps(function)
        def run(**given: Any) -> R:
            typed = {name: given.pop(FLAGS[name]) for name in wanted}
            typed |= {name: _READ[name](typed[name]) for name in wanted if name in _READ}
            return function(options=CompileOptions(**typed), **given)

        first, *own = inspect.signature(function, eval_str=True).parameters.values()
        flags = [
            option(FLAGS[name], _DEFAULTS.get(name, getattr(CompileOptions, name, None)))
            for name in wanted
        ]
        kind = inspect.Parameter.KEYWORD_ONLY
        made = [first, *flags, *(each for each in own if each.name != "options")]
        signature = inspect.Signature([each.replace(kind=kind) for each in made])
        run.__signature__ = signature  # type: ignore[attr-defined]
        return run

    return decorate


#: Options in messages of the library: `storage=buffer`, or a name alone.
_OPTION = re.compile(r"`(\w+)(?:=([^`]+))?`")
#: Those that commands have beside `CompileOptions`, and are not spelled like it there.
_OPTIONS = frozenset({
    "advertise", "bind", "devices", "dump_ir", "fresh_ceilings", "kernels", "ops", "port", "search",
    "secret_file", "size", "steps", "threads",
})  # fmt: skip


def with_flags(text: str) -> str:
    """Return a message of the library with its options as they are typed: ``--storage buffer``."""

    def flag(match: re.Match[str]) -> str:
        name, value = match.groups()
        if (name, value) == ("format", STANDALONE):
            return "--standalone"
        if name not in FLAGS and name not in _OPTIONS:
            return match[0]
        typed = f"--{FLAGS.get(name, name).replace('_', '-')}"
        return f"{typed} {value}" if value else typed

    return _OPTION.sub(flag, text)
