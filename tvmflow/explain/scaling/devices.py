"""Devices that scaling is measured on: those of this machine, or of a farm."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...devices.host import Host
from ...errors import DeviceError, FarmError, TargetError, TvmflowError
from ...farm import connect
from ...farm.network import Address
from ...farm.tracker import ServerInfo, Tracker, check_host, check_key, check_served
from ...ir.units import counted
from ...module.load import load
from ...module.module import Module
from ...runtime.devices import DeviceInfo, list_devices
from ...runtime.process import Worker, WorkerLostError
from .measure import check_numbers

if TYPE_CHECKING:
    from tvm.rpc import RPCSession

_POCL = "Portable Computing Language"
#: PoCL's names of its setting of threads, of old versions and of new ones.
_POCL_THREADS = ("POCL_MAX_PTHREAD_COUNT", "POCL_CPU_MAX_CU_COUNT")


@dataclass(frozen=True)
class LocalDevices:
    """Devices of this machine, from one on."""

    #: All of them, in the order of their indices.
    infos: tuple[DeviceInfo, ...]
    #: Of the CPU.
    cores: int

    @classmethod
    def find(cls, target: str, device_index: int) -> LocalDevices:
        """Look for a target's devices; `DeviceError` if there is no such device."""
        infos = list_devices()
        found = [info for info in infos if info.kind == target]
        if device_index >= len(found):
            raise DeviceError(
                f"Measuring failed: there is no {target} device {device_index} on this machine, "
                f"which has {len(found)}.",
                remedy="`tvmflow devices` lists the devices and their numbers.",
            )
        cores = next(info.compute_units for info in infos if info.kind == "llvm")
        return cls(tuple(found[device_index:]), cores)

    @property
    def existing(self) -> int:
        """Number of them."""
        return len(self.infos)

    def name(self, devices: int) -> str:
        """Return names of so many of them."""
        return _counted(info.name for info in self.infos[:devices])

    @property
    def driver(self) -> str:
        """Platform, driver and version of the first device."""
        first = self.infos[0]
        # For the host, the driver's name is TVM's version.
        driver = "" if first.kind == "llvm" else first.driver
        return ", ".join(filter(None, (first.platform, driver, first.version)))

    def environment(self, threads: int) -> dict[str, str]:
        """Return variables for a process with so many threads.

        `InputError` for more than the CPU has cores, `DeviceError` if the driver has no variable.
        """
        check_numbers("threads", [threads], range(1, self.cores + 1))
        info = self.infos[0]
        if info.kind == "llvm":
            return {"TVM_NUM_THREADS": str(threads)}
        if info.platform == _POCL:
            return {name: str(threads) for name in _POCL_THREADS}
        raise DeviceError(
            f"Measuring with {counted(threads, 'thread')} failed: the threads of {info.name} "
            f"({info.platform or info.kind}) cannot be set, only those of llvm and of PoCL.",
            remedy="Leave `threads` out.",
        )

    def prepare(self, worker: Worker, devices: int, limit_s: float) -> None:
        """Nothing: modules are loaded by themselves."""

    def modules(self, path: Path, devices: int) -> list[Module]:
        """Return a module for each of so many devices; in the process that measures."""
        return [load(path, device=info.index) for info in self.infos[:devices]]

    def check_threads(self, threads: int) -> None:
        """Refuse a driver that took no notice of the number; in that process, when it ran."""
        first = self.infos[0]
        if first.kind == "llvm":
            return
        same = (i for i in list_devices() if (i.kind, i.index) == (first.kind, first.index))
        if (units := next(same).compute_units) != threads:
            raise DeviceError(
                f"Measuring with {counted(threads, 'thread')} failed: the driver uses {units}.",
                remedy="Leave `threads` out.",
            )


@dataclass(frozen=True)
class FarmDevices:
    """Servers of a key, each with one device."""

    tracker: Address
    key: str
    target: str
    #: Which of the target's devices of each server.
    device_index: int
    existing: int
    #: Of the devices, where servers tell them.
    names: tuple[str, ...]
    driver: str = ""  #: Servers do not tell it.

    @classmethod
    def find(
        cls, tracker: Address, key: str, target: str, device_index: int, host: str | None
    ) -> FarmDevices:
        """Ask the tracker who serves a key, for modules of a host's triple, default this one.

        `FarmError` if the tracker cannot be reached, nobody serves the key, or only servers of
        other versions or processors do.
        """
        with Tracker(tracker) as connection:
            servers = check_served(connection, check_key(key))
        check_host(servers, Host.parse(host) if host else Host.native())
        told = [about for server in servers if (about := ServerInfo.read(server.about)) is not None]
        devices = [device for about in told for device in about.devices]
        names = [d.name for d in devices if (d.kind, d.index) == (target, device_index)]
        if told and not names:
            raise FarmError(
                f"Measuring failed: no server of the key {key!r} has the device "
                f"{target}:{device_index}.",
                remedy=f"`tvmflow farm status --tracker {tracker}` lists their devices.",
            )
        return cls(tracker, key, target, device_index, len(servers), tuple(names))

    def name(self, devices: int) -> str:
        """Return how many servers of how many, and what all of these are."""
        text = f"{devices} of {counted(self.existing, 'server')} of {self.key}"
        return f"{text} ({_counted(self.names)})" if self.names else text

    def environment(self, threads: int) -> dict[str, str]:
        """Refuse: servers have the threads that they were started with."""
        raise DeviceError(
            f"Measuring with {counted(threads, 'thread')} failed: those of servers cannot be set "
            "from here.",
            remedy="Leave `threads` out, or start the servers with TVM_NUM_THREADS.",
        )

    def prepare(self, worker: Worker, devices: int, limit_s: float) -> None:
        """Open a session with each server; `FarmError` if one is not free, or of other versions."""
        patience_s = devices * 2 * connect.OFFER_S
        try:
            answer = worker.call(_connect, self, devices, limit_s, timeout_s=patience_s)
        except (WorkerLostError, RuntimeError) as error:
            raise FarmError(
                f"Opening sessions with {counted(devices, 'server')} of the key {self.key!r} "
                f"failed: {connect.last_line(error)}.",
                remedy="`tvmflow farm status` shows which servers there are.",
            ) from error
        if isinstance(answer, TvmflowError):
            raise answer

    def modules(self, path: Path, devices: int) -> list[Module]:
        """Return a module for each server, in the order in which the tracker gave them."""
        from ...farm.modules import RemoteModule

        return [
            RemoteModule(load(path), remote, address, self.device_index)
            for address, remote in _sessions[:devices]
        ]

    def check_threads(self, threads: int) -> None:
        """Nothing: threads were refused."""


#: Devices of one kind; a copy goes to the process that measures.
DevicePool = LocalDevices | FarmDevices


def _counted(names: Iterable[str]) -> str:
    """``2 × Mali-G610, 1 × Adreno 740``, or a single name."""
    counts = Counter(names)
    if counts.total() == 1:
        return next(iter(counts))
    return ", ".join(f"{count} × {name}" for name, count in counts.items())


def check_preset(target: str, device: str) -> None:
    """Raise `TargetError` if a preset for a farm's devices stands for that of this machine."""
    if target != "llvm" and device == "auto":
        raise TargetError(
            "Compiling for a farm needs the preset of its devices, but the device is 'auto', "
            f"which stands for the {target} device of this machine.",
            remedy="Name it, for example with `device=adreno`.",
        )


# -- in the process that measures ------------------------------------------------------------

#: Servers with TVM's sessions, which keep them busy.
_sessions: Sequence[tuple[Address, RPCSession]] = ()


def _connect(farm: FarmDevices, devices: int, limit_s: float) -> TvmflowError | None:
    global _sessions
    found: list[tuple[Address, RPCSession]] = []
    try:
        for number in range(devices):
            offer = connect.borrow(farm.tracker, farm.key)
            if offer is None:
                raise FarmError(
                    f"Measuring on {counted(devices, 'server')} of the key {farm.key!r} failed: "
                    f"{number} of them were free within {connect.OFFER_S:g} s.",
                    remedy="Wait for whoever uses them (`tvmflow farm status`), or ask for fewer "
                    "`devices`.",
                )
            found.append((offer.address, connect.connect(offer, limit_s)[0]))
    except TvmflowError as error:
        return error
    _sessions = found
    return None
