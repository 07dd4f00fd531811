"""Linking runtime, plan and weights to one shared library with a C interface."""

from __future__ import annotations

from pathlib import Path

from ...devices.host import Host
from ...errors import TargetError
from ..files import place_copy, publish, staging
from ..link import first_success
from ..reader import SIDECAR_SUFFIX
from ..tool import Tool
from .format import WEIGHT_ALIGNMENT, WEIGHTS_MAGIC
from .toolchain import candidates, runtime_objects

#: Code reaches its data with signed 32-bit distances.
LARGEST_BYTES = (1 << 31) - (16 << 20)

#: Section of the weights, and where it goes: behind everything else that is loaded, so that a
#: file that was cut short still has all that is needed to say so.
_WEIGHTS = ".tvmflow.weights"
_SCRIPT = f"SECTIONS {{ {_WEIGHTS} : {{ KEEP(*({_WEIGHTS})) }} }} INSERT AFTER .bss;\n"

_OPTIONS = (
    *("--gc-sections", "--no-undefined", "--as-needed", "-s"),
    *("--hash-style=both", "--build-id=sha1", "--eh-frame-hdr"),
    # All libraries have functions of the same names: each calls its own, also in a program that
    # is linked to another one.
    "-Bsymbolic",
)
#: In older versions of glibc, threads are a library of their own.
_LIBRARIES = ("m", "dl", "pthread")
_ANDROID_LIBRARIES = ("m", "dl")


def link_library(
    plan: bytes, weights: Path | None, host: Host, output: Path, *, embed: bool
) -> None:
    """Write a library that runs a network: runtime, execution plan and weights.

    The same plan, weights and compiler give the same bytes.  The file (or the two files)
    appear complete or not at all.

    Parameters
    ----------
    plan
        The execution plan, as :mod:`.format` has it.
    weights
        File of the weights with their header; ``None`` for a network without any.
    host
        The machine that loads the library.
    output
        The library to write; its file name becomes the library's own name.
    embed
        Whether the weights are put into the library; else they are written to
        ``OUTPUT.weights``.

    Raises
    ------
    TargetError
        If no compiler for `host` is installed or each one fails, or if the weights are too
        large to be embedded.
    ArtifactError
        If a file cannot be written.
    """
    embedded = weights if embed else None
    if embedded is not None and embedded.stat().st_size + len(plan) > LARGEST_BYTES:
        raise TargetError(
            f"Linking {output.name} failed: at most {LARGEST_BYTES} bytes fit into a library, but "
            f"plan and weights have {embedded.stat().st_size + len(plan)}.",
            remedy="Leave `embed_limit_bytes` at its default: the weights then go beside the "
            "library.",
        )
    sidecar = output.with_name(output.name + SIDECAR_SUFFIX)
    with staging(output) as stage:
        library = stage / "library"
        (stage / "plan").write_bytes(plan)
        if embedded is None:
            (stage / "weights").touch()
        else:
            (stage / "weights").symlink_to(embedded.absolute())
        (stage / "data.s").write_text(_data())
        (stage / "script.ld").write_text(_SCRIPT)
        libraries = _ANDROID_LIBRARIES if host.is_android else _LIBRARIES
        options = ("-soname", output.name, "-T", str(stage / "script.ld"), *_OPTIONS)

        def link(tool: Tool) -> None:
            objects = runtime_objects(tool, stage)
            tool.compile(stage / "data.s", stage / "data.o", stage)
            tool.link([*objects, stage / "data.o"], library, stage, options, libraries)

        attempt = f"Linking {output.name} for the host {host.triple}"
        first_success(link, candidates(host), attempt, host)
        outputs = {library: output}
        if weights is not None and not embed:
            place_copy(weights, stage / sidecar.name)
            outputs = {stage / sidecar.name: sidecar, **outputs}
        publish(outputs)
    if embed or weights is None:
        _remove_stale(sidecar)


def _data() -> str:
    """Assembler text: plan and weights between the symbols by which the runtime finds them."""
    return "".join(
        [
            _blob("plan", '.rodata.tvmflow_plan,"a"', 64),
            _blob("weights", f'{_WEIGHTS},"a"', WEIGHT_ALIGNMENT),
            # The section that the weights stand behind exists only if something is in it.
            '.section .bss.tvmflow_anchor,"awR",%nobits\n.zero 1\n',
            '.section .note.GNU-stack,"",%progbits\n',
        ]
    )


def _blob(name: str, section: str, alignment: int) -> str:
    symbols = {"begin": f".balign {alignment}\n", "end": f'.incbin "{name}"\n'}
    lines = [f".section {section},%progbits\n"]
    for end, before in symbols.items():
        symbol = f"tvmflow_{name}_{end}"
        lines.append(f"{before}.globl {symbol}\n.hidden {symbol}\n{symbol}:\n")
    return "".join(lines)


def _remove_stale(sidecar: Path) -> None:
    """Remove the weights that a library of the same name had before, and only those."""
    try:
        with open(sidecar, "rb") as file:
            is_ours = file.read(len(WEIGHTS_MAGIC)) == WEIGHTS_MAGIC
    except OSError:
        return
    if is_ours:
        sidecar.unlink(missing_ok=True)
