"""Failures as files: a network, its inputs, and the commands that reproduce the failure."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import numpy as np
import onnx
from compiling import arguments, model_of
from configurations import BACKENDS, Configuration
from contexts import Network
from graphs import Tensor
from judging import Verdict
from onnx import helper, numpy_helper

#: Fields of a network that its nodes do not tell.
DRAWN = ("operator", "position", "kind", "opset")


def signature(verdict: Verdict) -> str:
    """Return a text that failures of one cause mostly share: operator, kind and message."""
    n = verdict.network
    text = ""
    if verdict.kind != "wrong":
        line = verdict.message.strip().splitlines()[0] if verdict.message.strip() else ""
        text = re.sub(r"primary function \w+", "", line)
        text = re.sub(r"[^A-Za-z ]+", " ", text)[:80]
    return "-".join(f"{n.operator} {verdict.kind} {text}".split())


def save(verdict: Verdict, folder: Path, stem: str) -> str:
    """Write a network, its inputs, and its verdict; return the commands.

    If it was compiled with control flow, that model is written, too.
    """
    folder.mkdir(parents=True, exist_ok=True)
    network = verdict.network
    path = folder / f"{stem}.onnx"
    onnx.save(network.model, path)
    np.savez(folder / f"{stem}.npz", **network.feeds)
    compiled = path
    if "flow" in verdict.configuration.options:
        compiled = folder / f"{stem}.flow.onnx"
        onnx.save(model_of([network], verdict.configuration), compiled)
    command = commands(verdict, compiled)
    said = {
        "verdict": str(verdict),
        "kind": verdict.kind,
        "command": command,
        "network": {name: getattr(network, name) for name in DRAWN},
        "wide": sorted(network.wide),
        "configuration": asdict(verdict.configuration),
    }
    (folder / f"{stem}.json").write_text(json.dumps(said, indent=1) + "\n")
    return command


def load(path: Path) -> tuple[Network, Configuration]:
    """Return the network and configuration of a saved ``.json``."""
    said = json.loads(path.read_text())
    graph = onnx.load(path.with_suffix(".onnx")).graph
    with np.load(path.with_suffix(".npz")) as feeds:
        network = Network(
            **said["network"],
            nodes=tuple(graph.node),
            constants={tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer},
            feeds=dict(feeds),
            outputs=tuple(_tensor(value) for value in graph.output),
            wide=frozenset(said.get("wide", ())),
        )
    return network, Configuration(**said["configuration"])


def _tensor(value: onnx.ValueInfoProto) -> Tensor:
    kind = value.type.tensor_type
    dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type).name
    return Tensor(value.name, tuple(d.dim_value for d in kind.shape.dim), dtype)


def commands(verdict: Verdict, path: Path) -> str:
    """Return one line that compiles and verifies a saved network."""
    found = arguments([verdict.network], verdict.configuration)
    stem = path.name.split(".")[0]
    module, inputs = path.with_name(f"{stem}.so"), path.with_name(f"{stem}.npz")
    words = ["tvmflow", "compile", path.name, "--output", module.name]
    for name in ("target", "device", "storage", "dtype", "accumulate"):
        if name in found:
            words += [f"--{name}", found[name]]
    if found.get("format") == "standalone":
        words.append("--standalone")
    if "fallback" in found:
        words += ["--fallback", found["fallback"]]
    for name in ("algorithms", "keep_layout", "knobs"):
        value = verdict.knobs if name == "knobs" else found.get(name)
        if not value:
            continue
        words += _file_or_words(name, value, path)
    check = ["tvmflow", "verify", path.name, module.name, "--inputs", inputs.name]
    if backend := BACKENDS.get(verdict.configuration.options.get("format")):
        check += ["--backend", backend]
    return f"{shlex.join(words)} && {shlex.join(check)}"


def _file_or_words(name: str, value: Mapping[str, object], path: Path) -> list[str]:
    if name == "keep_layout":
        return [word for t, form in value.items() for word in ("--keep-layout", f"{t}={form}")]
    file = path.with_suffix(f".{name}.json")
    file.write_text(json.dumps(value, indent=2) + "\n")
    return [f"--{name}", file.name]
