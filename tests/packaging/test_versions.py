"""The pair of TVM wheels: pinned in one way everywhere, and checked at import."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.commands import run

from tvmflow import _versions
from tvmflow.errors import EnvironmentMismatchError, TvmflowError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PINS = {f"{name}=={version}" for name, version in _versions.REQUIRED_TVM.items()}
REMEDY = "python -m pip install apache-tvm==0.27.0.post1 apache-tvm-ffi==0.1.14.post1"


def install(monkeypatch: pytest.MonkeyPatch, **versions: str | None) -> None:
    """Pretend that these versions are installed."""
    found = {name.replace("_", "-"): version for name, version in versions.items()}

    monkeypatch.setattr(_versions, "_recorded_version", found.__getitem__)


def write_metadata(folder: Path, name: str, version: str) -> None:
    """Write what pip records of an installed package."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def test_the_project_pins_the_pair_for_running_and_for_building():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert set(project["project"]["dependencies"]) >= PINS
    assert set(project["build-system"]["requires"]) >= PINS


def test_the_installed_pair_passes():
    assert _versions.installed_tvm() == _versions.REQUIRED_TVM
    _versions.check_tvm()


@pytest.mark.parametrize(
    ("tvm", "ffi", "found"),
    [
        # Pip chooses this pair from apache-tvm's own requirements, and it crashes.
        ("0.27.0.post1", "0.1.15", "apache-tvm 0.27.0.post1 with apache-tvm-ffi 0.1.15"),
        ("0.26.0", "0.1.14.post1", "apache-tvm 0.26.0 with apache-tvm-ffi 0.1.14.post1"),
        ("0.27.0.post1", None, "apache-tvm 0.27.0.post1 with apache-tvm-ffi (missing)"),
        (None, None, "apache-tvm (missing) with apache-tvm-ffi (missing)"),
    ],
)
def test_another_pair_is_refused_with_the_command_that_repairs_it(
    monkeypatch: pytest.MonkeyPatch, tvm: str | None, ffi: str | None, found: str
):
    install(monkeypatch, apache_tvm=tvm, apache_tvm_ffi=ffi)
    with pytest.raises(EnvironmentMismatchError) as caught:
        _versions.check_tvm()
    assert isinstance(caught.value, TvmflowError)
    assert isinstance(caught.value, ImportError)
    assert f"found {found}." in caught.value.message
    assert caught.value.remedy == REMEDY


def test_import_refuses_another_pair_before_tvm_is_loaded(tmp_path: Path, run_python: Callable):
    write_metadata(tmp_path / "site", "apache-tvm-ffi", "0.1.15")
    code = (
        "import sys\n"
        "try:\n"
        "    import tvmflow\n"
        "except ImportError as error:\n"
        "    print(error)\n"
        "    sys.exit(3 if any(name in sys.modules for name in ('tvm', 'tvm_ffi')) else 4)\n"
    )
    # PYTHONPATH precedes the installed packages, as a user's own site-packages may.
    process = run_python(code, env={"PYTHONPATH": str(tmp_path / "site")})
    assert process.returncode == 4, process.stderr
    assert "found apache-tvm 0.27.0.post1 with apache-tvm-ffi 0.1.15" in process.stdout
    assert f"Remedy: {REMEDY}" in process.stdout


@pytest.mark.parametrize("program", [["-m", "tvmflow"], ["-c", "import tvmflow"]])
def test_the_program_says_so_without_a_traceback(tmp_path: Path, program: list[str]):
    write_metadata(tmp_path / "site", "apache-tvm-ffi", "0.1.15")
    paths = os.pathsep.join([str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")])
    is_program = program == ["-m", "tvmflow"]
    done = run(sys.executable, *program, status=2 if is_program else 1, PYTHONPATH=paths)
    assert ("Traceback" in done.stderr) != is_program
    assert f"Remedy: {REMEDY}" in done.stderr


def test_import_accepts_the_same_pair_from_another_folder(tmp_path: Path, run_python: Callable):
    write_metadata(tmp_path / "site", "apache-tvm-ffi", "0.1.14.post1")
    process = run_python("import tvmflow", env={"PYTHONPATH": str(tmp_path / "site")})
    assert process.returncode == 0, process.stderr


@pytest.mark.parametrize(
    ("recorded", "command"),
    [
        (
            {"dir_info": {"editable": True}, "url": "file:///home/me/my%20tree"},
            "python -m pip install --no-build-isolation --editable '/home/me/my tree[verify]'",
        ),
        (
            {"archive_info": {}, "url": "file:///tmp/tvmflow-0.1.0-py3-none-any.whl"},
            "python -m pip install 'tvmflow[verify] @ file:///tmp/tvmflow-0.1.0-py3-none-any.whl'",
        ),
        # A package from an index or by another installer records no origin.
        (None, "python -m pip install 'tvmflow[verify]'"),
    ],
)
def test_extras_are_installed_from_where_the_package_came(monkeypatch, recorded, command):
    read = SimpleNamespace(read_text=lambda name: recorded and json.dumps(recorded))
    monkeypatch.setattr("importlib.metadata.distribution", lambda name: read)
    assert _versions.install_command("verify") == command


def test_no_text_installs_from_an_index_what_is_not_published():
    """Messages use `install_command`; pages install from a copy of the repository or a wheel."""
    texts = [*ROOT.glob("docs/*.md"), *ROOT.glob("*.md"), *ROOT.glob("examples/**/*.md")]
    for folder in ("tvmflow", "schedules", "models", "examples", "benchmarks", "native"):
        texts += [p for end in ("py", "cc", "c", "h") for p in ROOT.glob(f"{folder}/**/*.{end}")]
    indexed = re.compile(r"pip install '?tvmflow(\[[\w,-]+\])?(?! @)['`\s]")
    found = [
        str(path.relative_to(ROOT))
        for path in texts
        if path.name != "_versions.py" and indexed.search(path.read_text(encoding="utf-8"))
    ]
    assert found == []
