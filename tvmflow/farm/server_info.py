"""Descriptions of a farm's servers, and checks whether a run can use them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from .._versions import __version__
from ..devices.host import Host
from ..errors import FarmError, TargetError
from ..runtime.json_types import JsonMapping
from ..runtime.tracker import MalformedError, Server, Tracker, of_type

#: Function of sessions of tvmflow servers; stock servers do not have it.
ABOUT_FUNCTION = "tvmflow.farm.about"


@dataclass(frozen=True)
class ServedDevice:
    """A device of a server: ``tvm.device(kind, index)``, but ``cpu`` for the kind ``llvm``."""

    kind: str
    index: int
    name: str
    driver: str


@dataclass(frozen=True)
class ServerInfo:
    """Versions and devices of a tvmflow server, as reported in sessions and to the tracker."""

    tvmflow: str
    tvm: str
    #: Triple of the machine, for host code.
    host: str
    #: Devices to measure on.
    devices: tuple[ServedDevice, ...]

    @classmethod
    def here(cls) -> ServerInfo:
        """Describe this machine; opens the OpenCL library."""
        import tvm

        from ..runtime.devices import list_devices

        devices = (ServedDevice(d.kind, d.index, d.name, d.driver) for d in list_devices())
        return cls(__version__, str(tvm.__version__), Host.native().triple, tuple(devices))

    @classmethod
    def read(cls, told: JsonMapping) -> ServerInfo | None:
        """Read another server's description; ``None`` if it is malformed."""
        with suppress(KeyError, TypeError, MalformedError):
            devices = tuple(ServedDevice(**device) for device in told["devices"])
            for device in devices:
                of_type(int, device.index)
                for text in (device.kind, device.name, device.driver):
                    of_type(str, text)
            tvmflow, tvm, host = (of_type(str, told[name]) for name in ("tvmflow", "tvm", "host"))
            return cls(tvmflow, tvm, host, devices)
        return None

    def device_of(self, kind: str) -> ServedDevice | None:
        """Return the first device of a kind."""
        return next((device for device in self.devices if device.kind == kind), None)


def served_device(about: JsonMapping, kind: str) -> tuple[str, str]:
    """Return name and driver of a server's first device of a kind; empty if they are not known."""
    devices = (device for device in about.get("devices", ()) if device.get("kind") == kind)
    first: JsonMapping = next(devices, {})
    return str(first.get("name", "")), str(first.get("driver", ""))


def check_version(address: object, about: ServerInfo) -> None:
    """Refuse a server of another version.

    Raises `FarmError` if its version of tvmflow or TVM is not the one that runs here.
    """
    import tvm

    if (about.tvmflow, about.tvm) != (__version__, str(tvm.__version__)):
        raise FarmError(
            f"The server at {address} has tvmflow {about.tvmflow} with TVM {about.tvm}, "
            f"where {__version__} with {tvm.__version__} was expected.",
            remedy="Install the same version on both machines and restart the server.",
        )


def check_served(tracker: Tracker, key: str) -> list[Server]:
    """Return the servers of a key.

    Raises `FarmError` if there is none, or only such with other versions.
    """
    servers = tracker.servers_of(key)
    errors = []
    for server in servers:
        try:
            # Stock servers report no version.
            if (about := ServerInfo.read(server.about)) is not None:
                check_version(server.address, about)
            return servers
        except FarmError as error:
            errors.append(error)
    raise errors[0]


def check_preset(doing: str, device: str, kind: str) -> None:
    """Raise a `TargetError` for the preset ``auto``, which means this machine's device."""
    if device == "auto":
        raise TargetError(
            f"{doing} a farm needs the preset of its devices, but the device is 'auto', which "
            f"stands for the {kind} device of this machine.",
            remedy="Name it, for example with `device=adreno`.",
        )


def check_host(servers: Sequence[Server], host: Host) -> None:
    """Refuse to compile for a host that no server matches.

    Raises `FarmError` if all servers have another processor; stock servers do not report theirs.
    """
    told = [ServerInfo.read(server.about) for server in servers]
    triples = {about.host for about in told if about is not None}
    architectures = {Host.parse(triple).architecture for triple in triples}
    if None not in told and host.architecture not in architectures:
        triple = min(triples)
        raise FarmError(
            f"Candidates would be compiled for the host {host.triple}, but the servers of the key "
            f"{servers[0].key!r} run on {', '.join(sorted(triples))}.",
            remedy=f"Name their host: `host={triple}`",
        )
