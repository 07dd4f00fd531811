"""ONNX's own test cases of single operators, which ONNX takes 15 seconds to generate."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import onnx

from support.build_cache import cached_build


def _make(folder: Path) -> None:
    from onnx.backend.test import loader

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = loader.load_model_tests(kind="node")
    (folder / "cases").write_bytes(pickle.dumps(cases))


def node_cases() -> list[Any]:
    """Return all cases of kind ``node``, from the cache if they are there."""
    folder = cached_build("onnx_node_cases", [onnx.__version__], [], _make)
    return pickle.loads((folder / "cases").read_bytes())
