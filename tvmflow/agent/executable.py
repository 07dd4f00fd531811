"""The agent as an executable for a host: compiled once, and kept in the user's cache folder."""

from __future__ import annotations

import hashlib
import logging
import lzma
import os
import tempfile
from pathlib import Path

from ..devices.host import HOSTS, Host
from ..errors import TargetError
from ..module.files import staging
from ..module.link import Tool, first_success, native_folder, tools
from ..runtime.caches import user_cache
from ..runtime.notices import told_if_slow

logger = logging.getLogger(__name__)

#: Folders of the agent's sources.
_FOLDERS = ("agent", "core", "bindings", "bionic")
FLAGS = (
    *("-std=gnu11", "-O2", "-fPIE", "-fvisibility=hidden", "-fno-unroll-loops"),
    *("-ffunction-sections", "-fdata-sections", "-fno-ident"),
)
_OPTIONS = ("--gc-sections", "--as-needed", "-s", "--hash-style=both", "--build-id=sha1")
#: Defines `_start` on Android, where compilers other than the NDK's have no start files.
_START = "start_android.c"
#: Suffix of agents in wheels: auditwheel refuses executables of other machines.
_PACKED = ".xz"


def agent_build() -> str:
    """Return the digest of the agent's sources, as 16 hexadecimal digits."""
    digest = hashlib.sha256()
    for folder in _FOLDERS:
        for path in sorted(native_folder(folder).rglob("*.[ch]")):
            digest.update(f"{folder}/{path.name}".encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def host_name(host: Host) -> str:
    """Return the short name of a host, such as ``android-arm64``; its triple if it has none."""
    return next((name for name, triple in HOSTS.items() if Host.parse(triple) == host), host.triple)


def agent_executable(host: Host) -> Path:
    """Return the agent for a host: kept from an earlier call, of the wheel, or compiled now.

    Raises `TargetError` if no compiler for the host is installed, or all of them fail.
    """
    build = agent_build()
    folder = Path(os.environ.get("TVMFLOW_CACHE_DIR") or user_cache()) / "agents"
    final = folder / f"agent-{host_name(host)}-{build}"
    if final.is_file():
        return final
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        final = Path(tempfile.mkdtemp(prefix="tvmflow-agent-")) / final.name
    packed = Path(__file__).with_name("bin") / (final.name + _PACKED)
    with staging(final) as work:

        def make(tool: Tool) -> Path:
            return _compile(tool, host, build, work)

        if packed.is_file():
            made = work / final.name
            made.write_bytes(lzma.decompress(packed.read_bytes()))
        else:
            candidates = sorted(tools(host), key=lambda tool: not tool.is_portable)
            attempt = f"Compiling the agent for the host {host.triple}"
            with told_if_slow(logger, f"{attempt}, which is done once."):
                made = first_success(make, candidates, attempt, host)
        # Not `publish`, which gives files the mode of data.
        made.chmod(0o755)
        os.replace(made, final)
    return final


def _compile(tool: Tool, host: Host, build: str, work: Path) -> Path:
    sources = [*native_folder("agent").glob("*.c"), *native_folder("core").glob("*.c")]
    needs_start = host.is_android and not tool.is_driver
    sources = [path for path in sources if path.name != _START or needs_start]
    names = (f'-DTF_AGENT_BUILD="{build}"', f'-DTF_AGENT_HOST="{host_name(host)}"')
    objects = []
    for path in sorted(sources):
        objects.append(work / f"{path.parent.name}-{path.stem}.o")
        tool.compile(path, objects[-1], work, (*FLAGS, *names))
    libraries = ("m", "dl") if host.is_android else ("m", "dl", "pthread")
    output = work / "agent"
    tool.link(objects, output, work, _OPTIONS, libraries, executable=True)
    return output


def write_agents(folder: str | os.PathLike[str]) -> None:
    """Write the agents for all hosts to a new folder, for wheels; errors as `agent_executable`."""
    Path(folder).mkdir(parents=True)
    for triple in HOSTS.values():
        agent = agent_executable(Host.parse(triple))
        (Path(folder) / (agent.name + _PACKED)).write_bytes(lzma.compress(agent.read_bytes()))


def check_agent_host(host: Host) -> None:
    """Raise `TargetError` for a host that no agent is made for."""
    known = {Host.parse(triple) for triple in HOSTS.values()}
    if host not in known:
        raise TargetError(
            f"The agent was asked for the host {host.triple}; it exists for {', '.join(HOSTS)}.",
            remedy="Use a device of one of them.",
        )
