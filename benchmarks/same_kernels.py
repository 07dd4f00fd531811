"""Whether a change of the compiler leaves its kernels as they were, byte by byte.

The networks of `models/` are compiled for every device, and what comes out is written to a
folder: OpenCL and CUDA sources, machine code for `llvm`, and what the module says of its
schedules, storage and memory.  Where the folder is there already, it is compared instead, and
what differs is listed; exit status 1 if anything does.  Both have to run on the same machine,
as kernels for its CPU are made for just that CPU.

    git switch before && python benchmarks/same_kernels.py before/
    git switch after && python benchmarks/same_kernels.py before/
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

from elftools.elf.elffile import ELFFile

#: Networks, at full size but for the one that has gigabytes of weights.
NETWORKS: dict[str, dict[str, Any]] = {
    "mobilenet_v1": {},
    "mobilenet_v2": {},
    "squeezenet": {},
    "resnet50": {},
    "deit_tiny": {},
    "mobilevit": {},
    "facebox_net": {"size": 64, "boxes": 64},
}

#: Options of compilation by name.
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "cpu": {"device": "cpu"},
    "adreno-texture": {"device": "adreno", "storage": "texture"},
    "adreno-buffer": {"device": "adreno", "storage": "buffer"},
    "adreno-fp16": {"device": "adreno", "dtype": "fp16"},
    "adreno-standalone": {"device": "adreno", "format": "standalone"},
    "mali": {"device": "mali"},
    "nvidia": {"device": "nvidia"},
    "cuda": {"target": "cuda", "device": "nvidia"},
    "llvm": {"target": "llvm", "device": "cpu"},
}

#: Metadata of a module that differs from one compilation to the next.
VARYING = ("stage_ms", "options")


@contextmanager
def generated() -> Iterator[list[str]]:
    """Collect the kernel sources that TVM generates within the block, after our callbacks.

    A module gives them only where it can be opened; CUDA's cannot without a GPU.
    """
    import tvm_ffi

    import tvmflow.compiler.generate  # noqa: F401 (registers our callbacks)

    sources: list[str] = []

    def kept(before: Callable[..., Any] | None) -> Callable[[str, object], str]:
        def keep(source: str, target: object) -> str:
            sources.append(str(before(source, target)) if before is not None else source)
            return sources[-1]

        return keep

    names = [f"tvm_callback_{language}_postproc" for language in ("opencl", "cuda")]
    before = {name: tvm_ffi.get_global_func(name, allow_missing=True) for name in names}
    for name, function in before.items():
        tvm_ffi.register_global_func(name, kept(function), override=True)
    try:
        yield sources
    finally:
        for name, function in before.items():
            if function is not None:
                tvm_ffi.register_global_func(name, function, override=True)
            else:
                tvm_ffi.registry.remove_global_func(name)


def compiled(network: str, configuration: str) -> dict[str, bytes]:
    """Compile a network for a configuration; return its code and decisions as files."""
    import tvmflow
    from tvmflow import models
    from tvmflow.module.functions import tir_text, unpack_functions

    options = CONFIGURATIONS[configuration]
    stem = f"{network}-{configuration}"
    with tempfile.TemporaryDirectory() as folder, generated() as sources:
        # Not opened: there may be no device for it here.
        module = tvmflow.compile(models.make(network, **NETWORKS[network]), **options)
        told = {key: value for key, value in module.metadata.items() if key not in VARYING}
        # The digest is of the functions' text: their JSON also records which nodes are shared.
        functions = sorted(unpack_functions(module.read_functions()).items())
        texts = "\n".join(f"{name}\n{tir_text(function)}" for name, function in functions)
        told["functions_digest"] = hashlib.sha256(texts.encode()).hexdigest()
        text = json.dumps(told, indent=1, sort_keys=True, default=str)
        files = {f"{stem}.json": text.encode()}
        if options.get("target") == "llvm":
            with module.save(Path(folder) / "module.so").open("rb") as file:
                section = ELFFile(file).get_section_by_name(".text")
                files[f"{stem}.text"] = section.data()
        else:
            files[f"{stem}.cl"] = "\n".join(sources).encode()
        module.close()
    return files


def difference(name: str, before: bytes, after: bytes) -> str:
    """Return the differences of a file, in a few lines."""
    if name.endswith(".text"):
        return f"{name}: machine code of {len(before)} and of {len(after)} bytes"
    lines = difflib.unified_diff(
        before.decode().splitlines(), after.decode().splitlines(), name, name, lineterm="", n=1
    )
    return "\n".join(line[:160] for line, _ in zip(lines, range(12), strict=False))


def main() -> int:
    """Write the files, or compare them with those of before."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="written if it is not there, else compared")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=[*NETWORKS])
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    writes = not options.folder.exists()
    options.folder.mkdir(parents=True, exist_ok=True)
    cases = [*product(options.networks, CONFIGURATIONS)]
    same = different = 0
    with ProcessPoolExecutor(options.jobs) as pool:
        for files in pool.map(compiled, *zip(*cases, strict=True)):
            for name, content in files.items():
                file = options.folder / name
                if writes:
                    file.write_bytes(content)
                elif not file.exists():
                    different += 1
                    print(f"{name}: was not written before")
                elif file.read_bytes() != content:
                    different += 1
                    print(difference(name, file.read_bytes(), content))
                else:
                    same += 1
    if writes:
        print(f"{len(cases)} modules written to {options.folder}")
    else:
        print(f"{same} files are the same, {different} are not")
    return int(bool(different))


if __name__ == "__main__":
    sys.exit(main())
