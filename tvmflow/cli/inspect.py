"""``tvmflow inspect``: contents of module files and of standalone libraries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..ir.units import bytes_text, counted
from .output import note, note_file, print_facts, print_json, print_table
from .places import Place, loaded
from .session import command
from .text import knobs_text, ms_text, shape_text, times_text

if TYPE_CHECKING:
    from ..ir.tensors import TensorInfo
    from ..module.artifact import Artifact
    from ..runtime.json_types import JsonMapping, JsonObject
    from .output import Cell

EXAMPLES = """
[bold]Examples[/bold]
  tvmflow inspect net.so
  tvmflow inspect net.so --kernels --weights
  tvmflow inspect net.so --memory --memory-svg plan.svg
      the intermediate tensors that share memory, as tables and as a picture
  tvmflow inspect net.so --placements --schedules --why
      what was decided, for what reason, and by what measurements
  tvmflow inspect net.so --check
      compares every byte with the digests in the file
  tvmflow inspect net.so --json | jq .inputs
  tvmflow inspect libnet.so --host-abi --host android-arm64
      whether such a machine can load it: libraries, alignment, symbols; status 1 if not
  tvmflow inspect libnet.so --on adb
      and what the attached phone would choose: backend, device, programs, memory
"""


@command
def inspect_module(
    module: Path,
    kernels: Annotated[bool, "List the kernels."] = False,
    weights: Annotated[bool, "List the weights."] = False,
    placements: Annotated[bool, "List the storage of each tensor, and the reason."] = False,
    memory: Annotated[bool, "Show the plan of intermediate memory."] = False,
    memory_svg: Annotated[Path | None, "OUT.svg", "Draw that plan over time."] = None,
    schedules: Annotated[bool, "List the schedule family and knobs of each function."] = False,
    why: Annotated[bool, "Say what measurements the numbers of a phone's preset rest on."] = False,
    of_shape: list[str] | None = None,
    of_extents: str | None = None,
    check: Annotated[bool, "Compare code and weights with their digests."] = False,
    host_abi: Annotated[
        bool,
        "Only check what the library requires of the machine that loads it; for any ELF "
        "library. The exit status is 1 if it breaks a rule of that machine.",
    ] = False,
    host: Annotated[
        str | None,
        "HOST",
        "The machine for --host-abi, such as android-arm64. Default: the one that the file seems "
        "to be made for.",
    ] = None,
    on: str | None = None,
    secret_file: Path | None = None,
    device_index: int = 0,
) -> None:
    """Show target, inputs, outputs, kernels, weights and versions of a module.

    The module is neither run nor loaded: modules for other machines can be inspected, too.
    With --on, that device opens a standalone library, and says what it would run.
    """
    if on is None and (secret_file or device_index):
        raise typer.BadParameter("--secret-file and --device-index go with --on.")
    if on is not None and host_abi:
        raise typer.BadParameter("--host-abi does not go with --on.")
    if host is not None and not host_abi:
        raise typer.BadParameter("--host goes with --host-abi.")
    if host_abi:
        _inspect_host_abi(module, host)
        return
    from ..module.artifact import read_artifact
    from ..module.standalone.code_digest import check_code
    from ..module.standalone.loaded import StandaloneModule
    from ..module.standalone.read import describe, find_plans, find_weights

    encoded = find_plans(module) if module.is_file() else None
    if encoded:
        if placements or schedules or why or memory_svg:
            raise typer.BadParameter(
                f"{module} is a standalone library, which carries no placements, schedules or "
                "pictures of its memory; compile -v prints the first two, --memory lists the last."
            )
        found = find_weights(module, encoded[0])
        if check:
            check_code(module)
            found.check()
        about = {"path": str(module), **describe(module, encoded, found), "checked": check}
        if on is not None:
            with loaded(module, Place(on, secret_file), device_index, True, "auto") as there:
                assert isinstance(there, StandaloneModule)
                about["on_device"] = there.describe()
        if print_json(about):
            return
        _print_standalone(about, kernels, weights, memory)
        if on is not None:
            print_facts(f"On {on}", _choices(about["on_device"]))
        if check:
            note(("Every byte of code, plan and weights matches its digest.", "green"))
        return
    if on is not None:
        raise typer.BadParameter(
            f"--on opens standalone libraries, and {module} is none; compile with --standalone."
        )
    from .shapes import chosen as of_options

    whole = read_artifact(module)
    if check:
        whole.check()
    artifact = of_options(whole, of_shape, of_extents) or whole
    plan = artifact.metadata["memory"] if memory or memory_svg else None
    if plan is not None and memory_svg is not None:
        from ..module.files import TEXT, write_file
        from ..module.memory_svg import memory_svg as picture_of

        write_file(memory_svg, picture_of(plan, str(artifact.metadata["name"])), TEXT)
        note_file(memory_svg)
    about = _describe(artifact, check)
    if print_json(about):
        return
    if not memory_svg or memory or kernels or weights or placements or schedules or why:
        _print(artifact, about, kernels, weights)
    if placements:
        facts = "tensor", "shape", "stored_as", "storage", "image", "scope", "reason"
        _print_records("Placements", about.get("placements", []), facts)
    if schedules:
        if chosen := about.get("algorithms"):
            _print_records("Algorithms", chosen, ("convolution", "algorithm", "reason"))
        _print_schedules(about.get("schedules", {}))
    if why:
        _print_evidence(str(about["device"]), str(about["options"]["device"]))
    if plan is not None and memory:
        _print_memory(plan)
    if check:
        note(("Every byte matches its digest.", "green"))


def _print_evidence(device: str, asked: str) -> None:
    """Print the numbers of a preset that decisions rest on, and their sources.

    ``asked`` is the option ``device``: the name of a GPU refines its preset.
    """
    from dataclasses import asdict, is_dataclass

    from ..devices.gpus import gpu_named
    from ..devices.presets import PRESETS, SOURCES, device_of

    gpu = gpu_named(asked)
    refined = PRESETS[device] if gpu is None else device_of(gpu)

    def value(name: str) -> str:
        found: Any = refined
        for part in name.split("."):
            found = getattr(found, part)
        facts = asdict(found) if is_dataclass(found) and not isinstance(found, type) else found
        return knobs_text(facts) if isinstance(facts, dict) else str(facts)

    if device not in SOURCES:
        note(f"The heuristics for {device} were measured where tvmflow is developed, or assumed.")
        return
    rows = [(name, value(name), source) for name, source in SOURCES[device].items()]
    print_table(f"Evidence for the preset {device}", ["fact", "value", "source"], rows)


def _describe(artifact: Artifact, checked: bool) -> JsonObject:
    sidecar = artifact.sidecar
    return {
        "path": str(artifact.path),
        **artifact.metadata,
        "weights_path": str(artifact.weights_path) if artifact.weights_path else None,
        "architecture": artifact.architecture,
        "sizes": {
            "file": artifact.path.stat().st_size,
            "library": artifact.library_bytes,
            "weights": artifact.weights_bytes,
            "weights_file": sidecar.stat().st_size if sidecar else 0,
        },
        "checked": checked,
    }


def _print(artifact: Artifact, about: JsonMapping, with_kernels: bool, with_weights: bool) -> None:
    from ..module.storage_summary import storage_summary

    weights = "in the library"
    if artifact.weights:
        where = f"next to it in {artifact.sidecar.name}" if artifact.sidecar else "in the file"
        weights = f"{len(artifact.weights)} {where}, {bytes_text(artifact.weights_bytes)}"
    _print_summary(
        about,
        weights=weights,
        kernels=len(about["kernels"]),
        storage=storage_summary(about) if "memory" in about else "unknown",
        memory=_shared_memory_text(about),
    )
    if with_kernels:
        names = [(kernel["name"], kernel["function"]) for kernel in about["kernels"]]
        print_table("Kernels", ["kernel", "primary function"], names)
    if with_weights:
        made_of = about.get("initializers", {})
        records = [
            {**w, "made of": ", ".join(made_of.get(w["name"], ()))} for w in about["weights"]
        ]
        _print_records("Weights", records, ("name", "dtype", "shape", "bytes", "made of"))


def _print_summary(about: JsonMapping, **facts: Cell) -> None:
    """Print the facts of a module or standalone library; facts without a value are left out."""
    from ..module.artifact import tensor_infos

    part, form = ("plan", "plan_version") if "plan_version" in about else ("library", "format")
    sizes = about["sizes"]
    rows = [
        ("network", about["name"]),
        ("form", facts.get("form")),
        ("target", f"{about['target']} ({about['device']})"),
        ("host", about["host"]),
        ("size", f"{bytes_text(sizes['file'])}, {part} {bytes_text(sizes[part])}"),
        *(
            (name, facts.get(name))
            for name in ("pictures", "weights", "kernels", "fallback", "precompiled", "storage")
        ),
        ("chosen by", about.get("settled_storage") or None),
        ("memory", facts.get("memory")),
        ("loops", ", ".join(about.get("loops", ())) or None),
        ("needs", ", ".join(about.get("extensions", [])) or None),
        ("self-test", about.get("self_test")),
        (
            "versions",
            f"tvmflow {about['tvmflow']}, TVM {about['tvm']}, {form.split('_')[0]} {about[form]}",
        ),
        ("options", _options_text(about["options"])),
        ("compiled in", about["stage_ms"] and ms_text(sum(about["stage_ms"].values()))),
    ]
    print_facts(about["path"], rows)
    if variants := about.get("variants"):
        _print_variants(about, variants)
    _print_tensors("Inputs", tensor_infos(about["inputs"]))
    _print_tensors("Outputs", tensor_infos(about["outputs"]))


def _shared_memory_text(about: JsonMapping) -> str | None:
    """Return the memory that all shapes of a module share, if it has several."""
    if "variants" not in about:
        return None
    return f"{bytes_text(about['shared_memory_bytes'])} for any of {len(about['variants'])} shapes"


def _print_variants(about: JsonMapping, variants: Sequence[JsonMapping]) -> None:
    """Print the shapes of a module, and whether other batches run in parts."""
    rows = [
        (str(number), "; ".join(f"{i['name']} {shape_text(i['shape'])}" for i in each["inputs"]))
        for number, each in enumerate(variants)
    ]
    print_table("Shapes", [">shape", "inputs"], rows)
    batch = about.get("batch")
    if batch is None:
        return
    if batch["proven"]:
        note("Other batches run in parts: samples are independent of each other.")
        return
    where = f" at node {batch['node']}" if batch.get("node") else ""
    note(f"No other batches: independence of samples is not proven{where}: {batch.get('reason')}.")


def _print_tensors(title: str, infos: Sequence[TensorInfo]) -> None:
    """Print a table of inputs or outputs, with layouts if they differ from the ONNX model's."""
    columns = ["name", "dtype", "shape"]
    rows: list[tuple[str, ...]] = [(i.name, i.dtype, shape_text(i.extents)) for i in infos]
    if any(info.layout for info in infos):
        columns += ["layout", "logical shape", "image", "scope"]
        rows = [
            (
                *row,
                info.layout or "as in ONNX",
                shape_text(info.logical_shape or info.shape),
                _image_text(info.image),
                info.scope or "",
            )
            for row, info in zip(rows, infos, strict=True)
        ]
    print_table(title, columns, rows)


def _options_text(options: JsonMapping) -> str:
    """Return the options of a compilation as ``dtype=fp16, knobs for 3 functions``."""
    nouns = {
        "algorithms": "convolutions",
        "at": "inputs",
        "bounds": "sizes",
        "inputs": "inputs",
        "knobs": "functions",
        "shapes": "inputs",
    }

    def text(name: str, value: object) -> str:
        if isinstance(value, dict):
            return f"{name} for {len(value)} {nouns.get(name, 'tensors')}"
        return f"{name}={','.join(map(str, value)) if isinstance(value, list) else value}"

    return ", ".join(text(name, value) for name, value in options.items()) or "none"


def _image_text(extent: str | None) -> str:
    return (extent or "").replace("x", "×")


def _print_memory(plan: JsonMapping) -> None:
    peak, bound = plan["peak_bytes"], plan["lower_bound_bytes"]
    sizes = [
        ("peak", f"{bytes_text(peak)} in {len(plan['blocks'])} blocks"),
        ("lower bound", f"{bytes_text(bound)}, the most that is alive at one time"),
        ("ratio", f"{peak / bound:.3f}" if bound else "-"),
        ("steps", f"{len(plan['steps'])} calls"),
    ]
    print_facts("Memory of intermediate tensors", sizes)
    blocks = [
        (
            *(number, "image" if block["image"] else "buffer"),
            *(_image_text(block["image"]), bytes_text(block["bytes"])),
            sum(tensor["block"] == number for tensor in plan["tensors"]),
        )
        for number, block in enumerate(plan["blocks"])
    ]
    columns = [">block", "kind", "extent", ">size", ">tensors"]
    print_table("Blocks", columns, blocks)
    tensors = [
        (
            *(t[fact] for fact in ("name", "storage", "stored_as", "layout")),
            *(shape_text(t["shape"]), _image_text(t["image"]), bytes_text(t["bytes"])),
            "result" if t["block"] is None else t["block"],
            f"{t['first']}–{t['last']}",
            *(t["producer"] or "-", ", ".join(t["readers"]) or "-"),
        )
        for t in plan["tensors"]
    ]
    columns = [
        "tensor", "storage", "dtype", "layout", "shape", "image", ">size", ">block", ">steps",
        "written by", "read by"
    ]  # fmt: skip
    print_table("Tensors", columns, tensors)


_TITLES = {"bytes": ">size", "stored_as": "dtype", "reason": "why", "number": ">number"}
_TEXTS: Mapping[str, Any] = {"bytes": bytes_text, "shape": shape_text, "image": _image_text}


def _print_records(title: str, records: Iterable[JsonMapping], facts: Sequence[str]) -> None:
    rows = [[_TEXTS.get(fact, lambda it: it)(each[fact]) for fact in facts] for each in records]
    print_table(title, [_TITLES.get(fact, fact) for fact in facts], rows)


def _print_schedules(schedules: Mapping[str, JsonMapping]) -> None:
    rows = [
        (
            name,
            choice["family"],
            knobs_text(choice["knobs"]),
            choice["source"] + (f" ({origin})" if (origin := choice.get("origin")) else ""),
        )
        for name, choice in schedules.items()
    ]
    columns = ["primary function", "family", "knobs", "from"]
    print_table("Schedules", columns, rows)


def _choices(about: JsonMapping) -> list[tuple[str, str | None]]:
    """Return what a device has chosen for a library that it opened."""
    device, memory = about["device"], about["memory"]
    is_cpu = about["backend"] == "cpu"
    shipped, built = about["programs_shipped"], about["programs_built"]
    origins = {
        "built by the driver": built,
        "shipped with the library": shipped,
        "from the cache": about["programs"] - built - shipped,
    }
    return [
        ("backend", about["backend"]),
        ("no OpenCL", about["opencl_rejected"] or None),
        ("device", device["name"]),
        ("driver", None if is_cpu else f"{device['platform']}, {device['driver']}"),
        *((f"fault {fault['id']}", fault["fault"]) for fault in about.get("faults", [])),
        ("programs", None if is_cpu else ", ".join(f"{n} {w}" for w, n in origins.items() if n)),
        ("recorded by", about["recording"] or None),
        ("buffers", bytes_text(memory["buffer_bytes"])),
        ("images", bytes_text(memory["image_bytes"]) if memory["image_bytes"] else None),
        ("weights", "read in place" if memory["weights_shared"] else "copied"),
        ("cache", about["cache"] or None),
    ]


def _print_standalone(
    about: JsonMapping, with_launches: bool, with_weights: bool, with_memory: bool
) -> None:
    sizes, launches, weights = about["sizes"], about["launches"], about["weights"]
    where = f"next to it in {about['weights_file']}" if about["weights_file"] else "in the file"
    programs = f"{counted(about['programs'], 'program')} of {bytes_text(sizes['source'])}"
    _print_summary(
        about,
        form="standalone library",
        weights=f"{len(weights)} {where}, {bytes_text(sizes['weights'])}",
        kernels=f"{len(launches)} launches, {programs} of source"
        if about["target"] == "opencl"
        else f"{len(launches)} calls of functions",
        fallback=_fallback_text(about["fallback"]),
        precompiled=_precompiled_text(about["precompiled"]),
        pictures="; ".join(map(_picture_text, about["pictures"])) or None,
        storage=about["storage_summary"],
        memory=f"{bytes_text(about['memory_bytes'])} on the device, without the weights",
    )
    if with_launches:
        rows: list[tuple[Cell, ...]] = [
            (k["name"], k["function"], *map(times_text, (k["global"], k["local"])), k["program"])
            for k in launches
        ]
        columns = ["kernel", "primary function", "work-items", "group", ">program"]
        print_table("Launches", columns, rows)
    if with_weights:
        _print_records("Weights", weights, ("name", "storage", "bytes"))
    if with_memory:
        facts = "number", "role", "storage", "bytes"
        _print_records("Memory objects", about["allocations"], facts)


def _picture_text(about: JsonMapping) -> str:
    """Return the pictures that an input takes, such as ``x: nv21, 640x480, letterbox``."""
    size = "x".join(map(str, about["size"])) if about["size"] else "any size"
    turned = f", turned by {about['rotate']} degrees" if about["rotate"] else ""
    return f"{about['input']}: {about['format']}, {size}, {about['fit']}{turned}"


def _fallback_text(about: JsonMapping | None) -> str | None:
    if about is None:
        return None
    needs = " ".join(about["extensions"]) or "any processor of the host"
    return f"{about['launches']} calls of functions for the CPU, which needs {needs}"


def _precompiled_text(about: JsonMapping | None) -> str | None:
    if about is None:
        return None
    parts = [f"for {counted(len(about['devices']), 'device')} in {about['file']}"]
    parts += [f"{d['device']} ({d['driver']}): {bytes_text(d['bytes'])}" for d in about["devices"]]
    if about["of_other_sources"]:
        parts.append(f"{about['of_other_sources']} programs of other sources")
    if about["damaged_bytes"]:
        parts.append(f"{bytes_text(about['damaged_bytes'])} damaged")
    return "; ".join(parts)


def _inspect_host_abi(library: Path, host: str | None) -> None:
    """Print whether a library fits a machine; exit with status 1 if it does not."""
    from ..devices.host import Host
    from ..module.standalone.host_abi import check_host_abi

    report = check_host_abi(library, Host.parse(host) if host else None)
    about: JsonObject = {
        "path": str(report.path),
        "kind": report.facts.kind,
        "host": report.host.triple,
        "fits": report.fits,
        "android_refuses": report.android_refuses,
    }
    if not print_json({**about, "rules": report.verdicts, **vars(report.facts)}):
        refuses = "; ".join(report.android_refuses)
        loads = f"not loaded: {refuses}" if refuses else "loaded, as far as the file shows"
        about |= {"fits": "yes" if report.fits else "no", "on Android": loads}
        print_facts(about["path"], [(n, about[n]) for n in ("kind", "host", "fits", "on Android")])
        rows = [
            (verdict.rule, verdict.found, verdict.expected, "" if verdict.kept else "broken")
            for verdict in report.verdicts
        ]
        print_table("Rules", ["rule", "found", "expected", ""], rows)
    if not report.fits:
        raise typer.Exit(1)
