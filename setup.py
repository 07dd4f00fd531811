"""Builds the OpenCL plug-in, and adds agents; the rest of the package is in pyproject.toml."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from setuptools import Extension, find_namespace_packages, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
NATIVE = ROOT / "native"


def package_folder(name: str) -> Path:
    """Return the folder of an installed package without importing it."""
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(
            f"Building tvmflow needs the package {name!r}, which is not installed.\n"
            "Remedy: build without --no-build-isolation, or install the build requirements "
            "that pyproject.toml lists."
        )
    return Path(next(iter(spec.submodule_search_locations)))


class BuildPlugin(build_ext):
    """Compiles the plug-in with the C++ compiler alone, in parallel, incrementally.

    It is a library that TVM loads, not a Python module: it must not depend on one
    Python version, and its file name carries no Python tag.
    """

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            # What setuptools takes into the environment's `site-packages` as it is.
            show_types(Path(self.get_finalized_command("install").install_lib))

    def get_ext_filename(self, ext_name: str) -> str:
        return os.path.join(*ext_name.split(".")[:-1], f"lib{ext_name.split('.')[-1]}.so")

    def build_extension(self, ext: Extension) -> None:
        tvm, ffi = package_folder("tvm"), package_folder("tvm_ffi")
        compiler = shlex.split(os.environ.get("CXX", "g++"))
        extra = shlex.split(os.environ.get("CXXFLAGS", ""))
        flags = [
            "-O2",
            "-fPIC",
            "-fvisibility=hidden",
            "-pthread",
            "-Wall",
            "-Wextra",
            f"-I{NATIVE / 'tvm_plugin' / 'include'}",
            # The wheels' headers are not ours to warn about.
            f"-isystem{tvm / 'include'}",
            f"-isystem{ffi / 'include'}",
            *extra,
        ]
        # Not in `build_temp`, which is removed after an editable install: further installs use the
        # objects again.
        key = " ".join(
            (*compiler, *extra, *map(metadata.version, ("apache-tvm", "apache-tvm-ffi")))
        )
        version = hashlib.sha256(key.encode()).hexdigest()[:12]
        objects_folder = ROOT / "build" / "objects" / version
        jobs: list[tuple[Path, subprocess.Popen[bytes]]] = []
        objects: list[str] = []
        newest_header = max(path.stat().st_mtime for path in NATIVE.rglob("*.h"))
        limit = os.cpu_count() or 1
        for source in sorted(ext.sources):
            target = objects_folder / Path(source).with_suffix(".o")
            objects.append(str(target))
            needed = max(
                Path(source).stat().st_mtime, newest_header, Path(__file__).stat().st_mtime
            )
            if target.exists() and target.stat().st_mtime > needed and not self.force:
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            language = ["-std=c++20", "-fvisibility-inlines-hidden"]
            if source.endswith(".c"):
                language = ["-x", "c", "-std=gnu11"]
            command = [*compiler, *flags, *language, "-c", source, "-o", str(target)]
            self.announce(" ".join(command), level=2)
            jobs.append((target, subprocess.Popen(command)))
            if len(jobs) >= limit:
                self.finish(*jobs.pop(0))
        for job in jobs:
            self.finish(*job)
        output = Path(self.get_ext_fullpath(ext.name))
        output.parent.mkdir(parents=True, exist_ok=True)
        # A new file under the old name: a process that has the old library open keeps it.
        temporary = output.with_suffix(".tmp")
        subprocess.run(
            [
                *compiler,
                "-shared",
                "-o",
                str(temporary),
                *objects,
                f"-L{tvm / 'lib'}",
                f"-L{ffi / 'lib'}",
                "-ltvm_runtime",
                "-ltvm_ffi",
                "-ldl",
                "-pthread",
                # TVM's libraries are loaded before this one and stand beside it in
                # site-packages; an editable install finds them because they are loaded.
                "-Wl,-rpath,$ORIGIN/../../tvm/lib:$ORIGIN/../../tvm_ffi/lib",
                "-Wl,-z,now",
                *shlex.split(os.environ.get("LDFLAGS", "")),
            ],
            check=True,
        )
        os.replace(temporary, output)

    @staticmethod
    def finish(target: Path, process: subprocess.Popen[bytes]) -> None:
        if process.wait() != 0:
            target.unlink(missing_ok=True)
            raise SystemExit(f"The C++ compiler failed on {target.stem}; see its messages above.")


class BuildPackage(build_py):
    """Adds the agents in the folder TVMFLOW_AGENTS, which `make wheel` compiles for all hosts."""

    def run(self) -> None:
        super().run()
        if ready := os.environ.get("TVMFLOW_AGENTS"):
            self.copy_tree(ready, os.path.join(self.build_lib, "tvmflow", "agent", "bin"))


def show_types(site_packages: Path) -> None:
    """Show type checkers an editable install, whose folders only setuptools' import hook joins.

    A path file names a folder with the stub package `tvmflow-stubs`, which type checkers look for
    and Python does not import. It links to the tree, so that changes of files are seen at once.
    """
    view = ROOT / "build" / "stubs"
    package = view / "tvmflow-stubs"
    shutil.rmtree(view, ignore_errors=True)
    package.mkdir(parents=True)
    for path in (ROOT / "tvmflow").iterdir():
        # A stub package has to begin with a stub.
        name = "__init__.pyi" if path.name == "__init__.py" else path.name
        if path.name != "__pycache__":
            (package / name).symlink_to(path)
    (site_packages / "tvmflow_types.pth").write_text(f"{view}\n", encoding="utf-8")


def wheel_tag_options() -> dict[str, object]:
    """Tag the wheel for any CPython 3 on this platform: the plug-in has no Python symbols."""
    try:
        from setuptools.command.bdist_wheel import bdist_wheel
    except ImportError:
        return {}

    class TagWheel(bdist_wheel):
        def get_tag(self) -> tuple[str, str, str]:
            return "py3", "none", super().get_tag()[2]

    return {"bdist_wheel": TagWheel}


#: Folders of ``native`` whose C, C++ and Java files users' machines compile for other machines.
COMPILED_LATER = ("agent", "core", "standalone", "bindings", "isa", "bionic")


def packages() -> list[str]:
    """Return the packages to install: folders of `tvmflow`, links to other folders included."""
    names = [f"tvmflow.{name}" for name in find_namespace_packages("tvmflow")]
    native = "tvmflow.native_sources."
    return ["tvmflow"] + [
        name
        for name in names
        if "__pycache__" not in name
        and (not name.startswith(native) or name.split(".")[2] in COMPILED_LATER)
    ]


sources = [
    str(path.relative_to(ROOT))
    for folder in ("core", "opencl", "tvm_plugin")
    for path in sorted((NATIVE / folder).glob("*.c*"))
]

setup(
    packages=packages(),
    package_data={
        "tvmflow": ["py.typed"],
        "tvmflow.tuning_logs": ["**/*"],
        "tvmflow.native_sources.standalone": ["drivers.json"],
        "tvmflow.explain.profiling.page": ["*.html", "*.css", "*.js"],
        "tvmflow.explain.yardstick": ["*.csv", "LICENSE", "README.md"],
        "": ["*.c", "*.cl", "*.h", "*.hpp", "*.java"],
    },
    # MANIFEST.in has them for the source distribution.
    exclude_package_data={"": ["*.cc"]},
    ext_modules=[Extension("tvmflow.runtime.tvmflow_opencl", sources=sources)],
    cmdclass={"build_ext": BuildPlugin, "build_py": BuildPackage, **wheel_tag_options()},
)
