"""Module files that are replaced while modules are open, or loaded but not yet open."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
from onnx import helper
from support.operators import build

import tvmflow
from tvmflow.errors import ArtifactError

X = np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4)
SWAPS = 50
FORMS = {
    "llvm": {"target": "llvm"},
    "llvm-sidecar": {"target": "llvm", "embed_limit_bytes": 0},
    "llvm-standalone": {"target": "llvm", "format": "standalone"},
    "llvm-standalone-sidecar": {
        "target": "llvm", "format": "standalone", "embed_limit_bytes": 0,
    },
    "llvm-standalone-shapes": {
        "target": "llvm", "format": "standalone", "shapes": {"x": ("1..2", 2, 3, 4)},
    },
    "opencl": {"target": "opencl"},
    "opencl-standalone": {"target": "opencl", "format": "standalone"},
}  # fmt: skip


def network(operator, value):
    """Return a network whose code and weight both depend on its version.

    Old code with new weights gives a third result.  The weight is a tensor, so that it is no
    constant of the code.
    """
    weight = np.full(X.shape[1:], value, np.float32) + np.arange(4, dtype=np.float32)
    node = helper.make_node(operator, ["x", "w"], ["y"])
    return build([node], {"x": ("batch", *X.shape[1:])}, ["y"], {"w": weight}), weight


@pytest.fixture(scope="module")
def versions(request, tmp_path_factory):
    """Return two module files of a form, and the result of each for `X`."""
    options = FORMS[request.param]
    options = options if "shapes" in options else {**options, "shapes": {"x": X.shape}}
    folder, found = tmp_path_factory.mktemp("versions"), []
    for operator, value in (("Mul", 2), ("Add", 30)):
        model, weight = network(operator, value)
        path = folder / f"{operator}.so"
        with tvmflow.compile(model, **options) as module:
            module.save(path)
        found.append((path, X * weight if operator == "Mul" else X + weight))
    return found


def pytest_generate_tests(metafunc):
    if "versions" in metafunc.fixturenames:
        cases = [
            pytest.param(form, id=form, marks=pytest.mark.opencl if "opencl" in form else ())
            for form in FORMS
        ]
        metafunc.parametrize("versions", cases, indirect=True)


def replace(source: Path, path: Path) -> None:
    """Replace a module file with a copy of another one, as ``mv`` does; sidecars first."""
    for suffix in (".weights", ""):
        if Path(f"{source}{suffix}").exists():
            shutil.copyfile(f"{source}{suffix}", f"{path}{suffix}.new")
            os.replace(f"{path}{suffix}.new", f"{path}{suffix}")


def test_two_versions_are_served_side_by_side_through_fifty_swaps(versions, tmp_path):
    path, wrong = tmp_path / "net.so", []
    served: list[tuple[tvmflow.Module, np.ndarray]] = []
    ended = threading.Event()

    def call_all():
        while not ended.is_set():
            for module, expected in tuple(served):
                if not np.array_equal(module(X)[0], expected):
                    wrong.append(module(X)[0])
            # Python's threads take turns: the replacing thread needs time.
            ended.wait(1e-3)

    callers = [threading.Thread(target=call_all) for _ in range(2)]
    try:
        for swap in range(SWAPS):
            source, expected = versions[swap % 2]
            replace(source, path)
            module = tvmflow.load(path).open()
            np.testing.assert_array_equal(module(X)[0], expected)
            # The two newest are served; a caller of an older one keeps it open.
            served[:] = [*served[-1:], (module, expected)]
            if swap == 1:
                for caller in callers:
                    caller.start()
    finally:
        ended.set()
        for caller in callers:
            caller.join()
    assert not wrong


def test_a_module_that_is_open_can_be_saved_over_and_profiled(versions, tmp_path):
    (first, answer), (second, other) = versions
    path = tmp_path / "net.so"
    tvmflow.load(first).save(path)
    inode = path.stat().st_ino
    with tvmflow.load(path) as old:
        tvmflow.load(second).save(path)
        # The file is another one: the loaded module stays as it is.
        assert path.stat().st_ino != inode
        with tvmflow.load(path) as new:
            np.testing.assert_array_equal(new(X)[0], other)
            np.testing.assert_array_equal(old(X)[0], answer)
            if not Path(f"{path}.weights").exists():
                assert old.profile([X], runs=1)
            assert new.profile([X], runs=1)
        np.testing.assert_array_equal(old(X)[0], answer)
    with tvmflow.load(path) as again:
        np.testing.assert_array_equal(again(X)[0], other)


@pytest.mark.parametrize("how", [replace, shutil.copyfile], ids=["renamed", "overwritten"])
def test_a_module_that_was_replaced_before_it_was_opened_says_so(versions, how, tmp_path):
    path = tmp_path / "net.so"
    replace(versions[0][0], path)
    module = tvmflow.load(path)
    how(versions[1][0], path)
    for use in (module.open, lambda: module(X), lambda: module.save(tmp_path / "other.so")):
        with pytest.raises(ArtifactError, match="was replaced or changed after it was loaded") as e:
            use()
        assert "Load it again" in e.value.remedy
    assert not (tmp_path / "other.so").exists()
