"""Type checkers find the package, also in an editable install, and know the options."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path

import pytest

import tvmflow

SITE = Path(sysconfig.get_path("purelib"))
EDITABLE = SITE not in Path(tvmflow.__file__).parents

USE = """
import tvmflow

with tvmflow.compile("net.onnx", target="llvm", shapes={"x": [1, "?"]}, knobs="k.json") as module:
    reveal_type(module)
tvmflow.compile("net.onnx", dtype=16)
tvmflow.tune("net.onnx", "j", tagret="llvm")
"""


@pytest.mark.skipif(not EDITABLE, reason="the package is installed as a wheel")
def test_an_editable_install_has_a_view_of_all_folders_for_type_checkers():
    view = Path((SITE / "tvmflow_types.pth").read_text(encoding="utf-8").strip())
    package = view / "tvmflow-stubs"
    assert (package / "py.typed").is_file()
    assert (package / "__init__.pyi").resolve() == Path(tvmflow.__file__).resolve()
    for name in ("compiler/options.py", "schedules/conv2d.py", "models/__init__.py"):
        assert (package / name).is_file(), name


@pytest.mark.slow
@pytest.mark.skipif(find_spec("mypy") is None, reason="mypy is not installed")
def test_mypy_sees_the_options(tmp_path: Path):
    (tmp_path / "use.py").write_text(USE)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", tmp_path, "use.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    said = done.stdout
    assert 'Revealed type is "tvmflow.module.module.Module"' in said, said + done.stderr
    assert 'Argument "dtype" to "compile" has incompatible type "int"' in said
    assert 'Unexpected keyword argument "tagret" for "tune"' in said
    assert "Found 2 errors" in said
