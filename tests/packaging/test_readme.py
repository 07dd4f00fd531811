"""Code blocks of the pages, run in order in an empty folder as a newcomer would.

Packages in extras exist only after the page has installed them.  `LEFT_OUT` lists lines that
are not run, and why.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from support import pages

import tvmflow
from tvmflow import models

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

pytestmark = pytest.mark.timeout(1800)

EXTRAS = tomllib.loads((pages.ROOT / "pyproject.toml").read_text())["project"][
    "optional-dependencies"
]
#: Beginnings of lines that are not run; extras that they install still count as installed.
LEFT_OUT = {
    "make ": "installs into the environment that the tests run in",
    "python -m pip install ": "as well",
    ". .venv/": "the tests' environment is active already",
    "tvmflow isa --setup": "fetches packages from the network",
}
#: Commands that need more than the page installs: they run only if the requirement is present.
NEEDS = {"tvmflow isa": "mesa", "tvmflow package arm64/libmobilenet.so --aar": "java"}

#: Hides the named modules, in this process and in those that it starts.
SITE = """
import os, sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

hidden, here = set(os.environ["HIDDEN_MODULES"].split(",")), os.path.dirname(__file__)
original = PathFinder.find_spec


def find_spec(name, path=None, target=None):
    return None if name in hidden else original(name, path, target)


PathFinder.find_spec = find_spec
if other := original("sitecustomize", [one for one in sys.path if one != here]):
    other.loader.exec_module(module_from_spec(other))
"""


def packages(extras: set[str]) -> set[str]:
    """Return the packages of extras, under pip's names."""
    found: set[str] = set()
    for requirement in [line for extra in extras for line in EXTRAS[extra]]:
        name = re.match(r"[\w.-]+", requirement)[0]
        inner = re.match(r"tvmflow\[(.*?)\]", requirement)
        found |= packages(set(inner[1].split(","))) if inner else {name.lower()}
    return found


def modules(names: set[str]) -> set[str]:
    """Return the modules of packages that are installed."""
    tops = importlib.metadata.packages_distributions()
    return {top for top, owners in tops.items() if names & {owner.lower() for owner in owners}}


def extras_of(line: str) -> set[str]:
    """Return the extras that a line installs."""
    if line.startswith("make "):
        makefile = (pages.ROOT / "Makefile").read_text()
        target = line.split()[1]
        rule = rf"^\$\(STAMPS\)/{target}: .*\n\t\$\(call install,(.*)\)$"
        recipe = re.search(rule, makefile, re.MULTILINE)
        assert recipe, f"make {target} installs nothing"
        return set(recipe[1].replace("$(comma)", ",").split(","))
    found = re.search(r"\[([\w,]+)\]", line)
    return set(found[1].split(",")) if found and "pip install" in line else set()


class Newcomer:
    """Runs blocks in an empty folder, with the packages that the page has installed so far."""

    def __init__(self, folder: Path, missing: Callable[[str], str | None]):
        self.folder, self.missing, self.extras = folder / "empty", missing, set()
        self.site = folder / "site"
        self.folder.mkdir()
        self.site.mkdir()
        (self.site / "sitecustomize.py").write_text(SITE)

    def run(self, block: pages.Block) -> str:
        """Run a block, or write it to the file that it names; return its output."""
        if block.file:
            with (self.folder / block.file).open("a", encoding="utf-8") as file:
                file.write(block.code)
            return ""
        if block.language == "python":
            return self.execute(block, [sys.executable, "-c", smaller(block.code, block.page)])
        lines = [smaller(line, block.page) for line in block.commands if self.is_run(line)]
        return self.execute(block, ["bash", "-euxo", "pipefail", "-c", "\n".join(lines)])

    def is_run(self, line: str) -> bool:
        """Return whether a line is run; note the extras that it would install."""
        self.extras |= extras_of(line)
        if any(line.startswith(start) for start in LEFT_OUT):
            return False
        needs = [name for start, name in NEEDS.items() if line.startswith(start)]
        return not any(self.missing(name) for name in needs)

    def execute(self, block: pages.Block, command: list[str]) -> str:
        known = packages(set(EXTRAS)) - packages(self.extras)
        paths = [str(self.site), *filter(None, [os.environ.get("PYTHONPATH")])]
        process = subprocess.run(
            command,
            cwd=self.folder,
            env={
                **os.environ,
                "PATH": f"{sys.prefix}/bin:{os.environ['PATH']}",
                "VIRTUAL_ENV": sys.prefix,
                "PYTHONPATH": ":".join(paths),
                "HIDDEN_MODULES": ",".join(modules(known)),
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        assert process.returncode == 0, (
            f"{block}: status {process.returncode}\n{process.stdout[-2000:]}\n"
            f"{process.stderr[-4000:]}"
        )
        return process.stdout


def smaller(line: str, page: str) -> str:
    """Return a page's line, or the quicker one that replaces it."""
    for long, short in SMALLER.get(page, {}).items():
        line = line.replace(long, short)
    return line


@pytest.fixture
def newcomer(tmp_path: Path, missing: Callable[[str], str | None]) -> Newcomer:
    return Newcomer(tmp_path, missing)


@pytest.mark.slow
@pytest.mark.opencl
@pytest.mark.onnxruntime
@pytest.mark.cross
def test_the_readme(newcomer: Newcomer):
    for block in pages.blocks("README.md"):
        newcomer.run(block)
    made = {path.name for path in newcomer.folder.iterdir()}
    assert {"mobilenet_v2.so", "out.npz", "small.so", "phone.so", "libphone.so", "main"} <= made


#: Users' own files on pages, for which tests provide small networks.
GIVEN = {
    "models/README.md": [],
    "docs/analysis.md": ["net.onnx"],
    "docs/deploying.md": [],
    "docs/journal.md": ["net.onnx", "mine.journal"],
    "docs/lab.md": [],
    "docs/phones.md": ["net.onnx"],
    "docs/profile.md": [],
    "docs/shapes.md": ["pictures.onnx", "rgbd.onnx"],
    "docs/scaling.md": ["open.onnx", "batch1.onnx", "batch4.onnx", "batch1.so", "batch8.so"],
    "docs/texture.md": ["net.onnx"],
    "docs/tuning.md": ["mobilenet_v2.onnx"],
}
#: Slow parts of pages, and their quick replacements.
SMALLER = {
    "README.md": {
        # This machine takes the place of a phone.
        "--on adb": "--on local",
        "tvmflow tune mobilenet_v2.onnx": "tvmflow models build mobilenet_v1 -o tiny.onnx --param "
        "width=0.25 --param size=32\ntvmflow tune tiny.onnx --trials 1 --seconds 1 --no-compare",
    },
    "docs/lab.md": {
        "tvmflow lab matmul --size 1024": "tvmflow lab matmul --size 128",
        "tvmflow lab matmul --target opencl": "tvmflow lab matmul --target opencl --size 128",
        "tvmflow lab matmul --block 16": "tvmflow lab matmul --size 128 --block 16",
        "tvmflow lab matmul --steps": "tvmflow lab matmul --size 128 --steps",
    },
    "docs/phones.md": {
        "--on adb": "--on local",
        'connect("adb")': 'connect("local")',
        "--host android-arm64 ": "",
        "--device mali ": "",
        "tune net.onnx": "tune net.onnx --trials 1 --no-compare",
        "bench net.onnx": "bench net.onnx --runs 5",
        '"phone.journal", device=phone': '"other.journal", device=phone, trials=1, compare=False',
    },
    "docs/profile.md": {
        "build mobilenet_v2": "build mobilenet_v2 --param width=0.35 --param size=32",
    },
    "docs/tuning.md": {"tune mobilenet_v2.onnx": "tune mobilenet_v2.onnx --trials 1 --no-compare"},
}


#: Networks with open extents except channels: their inputs, with channels.
OPEN = {"pictures.onnx": [("image", 3)], "rgbd.onnx": [("image", 3), ("depth", 1)]}


def open_network(*inputs: tuple[str, int]) -> onnx.ModelProto:
    """Return a network with a convolution and a mean of each input."""
    nodes, weights, values = [], [], []
    for name, channels in inputs:
        shape = ["batch", channels, f"{name}_height", f"{name}_width"]
        values.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape))
        array = np.ones((4, channels, 3, 3), np.float32)
        weights.append(onnx.numpy_helper.from_array(array, f"{name}.weight"))
        nodes.append(helper.make_node("Conv", [name, f"{name}.weight"], [f"{name}_conv"]))
        nodes.append(helper.make_node("GlobalAveragePool", [f"{name}_conv"], [f"{name}_mean"]))
    means = [f"{name}_mean" for name, _ in inputs]
    nodes.append(helper.make_node("Concat", means, ["scores"], axis=1))
    output = helper.make_tensor_value_info("scores", onnx.TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "open", values, [output], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def give(name: str, folder: Path) -> None:
    """Create a file that a page assumes to be the user's own."""
    path = folder / name
    if name in OPEN:
        onnx.save(open_network(*OPEN[name]), path)
        return
    batch = int(found[0]) if (found := re.search(r"\d+", name)) and "batch" in name else 1
    model = models.make("mobilenet_v1", width=0.25, size=32, classes=10, batch=batch)
    if path.suffix == ".journal":
        path.write_bytes((pages.ROOT / "tuning_logs" / "adreno660.journal").read_bytes())
    elif path.suffix == ".so":
        onnx.save(model, folder / "given.onnx")
        with tvmflow.compile(folder / "given.onnx", target="opencl") as module:
            module.save(path)
    else:
        if name == "open.onnx":
            for tensor in (*model.graph.input, *model.graph.output):
                tensor.type.tensor_type.shape.dim[0].dim_param = "batch"
        onnx.save(model, path)


@pytest.mark.slow
@pytest.mark.opencl
@pytest.mark.onnxruntime
@pytest.mark.cross
@pytest.mark.parametrize("page", GIVEN)
def test_a_page(page: str, newcomer: Newcomer):
    newcomer.extras = {"cpu-opencl", "verify", "tuning", "cross"}  # as the README installs them
    for name in GIVEN[page]:
        give(name, newcomer.folder)
    ran = [newcomer.run(block) for block in pages.blocks(page, "sh", "python")]
    assert ran


def test_a_wrong_command_is_found(newcomer: Newcomer):
    with pytest.raises(AssertionError, match="There is no model"):
        newcomer.run(shell("tvmflow models build mobilenet_v7 -o net.onnx\ntrue"))


def test_every_page_with_code_is_run():
    """They run in this file, or in test_cli_guide.py and test_guide.py."""
    elsewhere = {"README.md", "docs/custom-operators.md", "docs/giou.md"}
    assert {page for page in pages.pages() if pages.blocks(page, "sh", "python")} == (
        elsewhere | set(GIVEN)
    )


@pytest.mark.slow
def test_what_no_line_installed_is_missing(newcomer: Newcomer):
    """`tune` needs the extra `tuning`, and cross-compiling needs `cross`."""
    make = "tvmflow models build mobilenet_v1 --param width=0.25 --param size=32 -o net.onnx"
    tune = "tvmflow tune net.onnx --target llvm --journal net.journal --trials 1"
    link = "tvmflow compile net.onnx --target llvm --host aarch64-linux-gnu -o net.so"
    install = "python -m pip install --editable '.[tuning]'"
    with pytest.raises(AssertionError, match="needs the package xgboost"):
        newcomer.run(shell(f"make demo\n{make}\n{tune}"))
    with pytest.raises(AssertionError, match=r"\[cross\]"):
        newcomer.run(shell(f"{install}\n{link}"))


def shell(code: str) -> pages.Block:
    return pages.Block("a test", 1, "sh", code)
