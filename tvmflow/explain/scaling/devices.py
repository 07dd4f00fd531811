"""Devices for scaling measurements, on this machine or in a farm."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...devices.host import Host
from ...errors import DeviceError, FarmError, InputError, TvmflowError
from ...farm import connect
from ...farm.server_info import ServerInfo, check_host, check_served
from ...ir.units import counted
from ...module.load import load
from ...module.module import Module
from ...runtime.devices import DeviceInfo, list_devices
from ...runtime.process import Worker, WorkerLostError
from ...runtime.secret import Address
from ...runtime.tracker import Tracker, check_key

if TYPE_CHECKING:
    from tvm.rpc import RPCSession

_POCL = "Portable Computing Language"
#: Environment variables for PoCL's number of threads, in old and in new versions.
_POCL_THREADS = ("POCL_MAX_PTHREAD_COUNT", "POCL_CPU_MAX_CU_COUNT")

#: Range of numbers that may be requested at all.
_ANY = range(1, 10**9 + 1)


@dataclass(frozen=True)
class LocalDevices:
    """Devices of this machine, starting at an index."""

    #: Devices in the order of their indices.
    infos: tuple[DeviceInfo, ...]
    #: Number of cores of the CPU.
    cores: int

    @classmethod
    def find(cls, target: str, device_index: int) -> LocalDevices:
        """Find a target's devices; `DeviceError` if there is no device with the index."""
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
        """Return the number of devices."""
        return len(self.infos)

    def name(self, devices: int) -> str:
        """Return the names of the first devices."""
        return _counted(info.name for info in self.infos[:devices])

    @property
    def driver(self) -> str:
        """Return platform, driver and version of the first device."""
        first = self.infos[0]
        # The host's driver is TVM itself.
        driver = "" if first.kind == "llvm" else first.driver
        return ", ".join(filter(None, (first.platform, driver, first.version)))

    def environment(self, threads: int) -> dict[str, str]:
        """Return environment variables that give a process this number of threads.

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
        """Do nothing: local modules need no session."""

    def modules(self, path: Path, devices: int) -> list[Module]:
        """Load the module once for each device, in the measuring process."""
        return [load(path, device=info.index) for info in self.infos[:devices]]

    def check_threads(self, threads: int) -> None:
        """Raise a `DeviceError` if the driver of the measuring process ignored the number."""
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
    #: Index of the target's device on each server.
    device_index: int
    #: Number of servers.
    existing: int
    #: Names of the devices that servers report.
    names: tuple[str, ...]
    driver: str = ""  #: Servers do not report their driver.

    @classmethod
    def find(
        cls, tracker: Address, key: str, target: str, device_index: int, host: str | None
    ) -> FarmDevices:
        """Ask the tracker for the servers of a key that run modules for a host (default this one).

        `FarmError` if the tracker cannot be reached, or the key has no servers with this version
        and the host's processor.
        """
        with Tracker(tracker) as connection:
            servers = check_served(connection, check_key(key))
        check_host(servers, Host.parse(host) if host else Host.native())
        infos = [info for server in servers if (info := ServerInfo.read(server.about)) is not None]
        devices = [device for info in infos for device in info.devices]
        names = [d.name for d in devices if (d.kind, d.index) == (target, device_index)]
        if infos and not names:
            raise FarmError(
                f"Measuring failed: no server of the key {key!r} has the device "
                f"{target}:{device_index}.",
                remedy=f"`tvmflow farm status --tracker {tracker}` lists their devices.",
            )
        return cls(tracker, key, target, device_index, len(servers), tuple(names))

    def name(self, devices: int) -> str:
        """Return the number of measured servers, of all servers, and the devices' names."""
        text = f"{devices} of {counted(self.existing, 'server')} of {self.key}"
        return f"{text} ({_counted(self.names)})" if self.names else text

    def environment(self, threads: int) -> dict[str, str]:
        """Raise a `DeviceError`: servers have the threads that they were started with."""
        raise DeviceError(
            f"Measuring with {counted(threads, 'thread')} failed: those of servers cannot be set "
            "from here.",
            remedy="Leave `threads` out, or start the servers with TVM_NUM_THREADS.",
        )

    def prepare(self, worker: Worker, devices: int, limit_s: float) -> None:
        """Open a session with each server; `FarmError` if one is busy or has another version."""
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
        """Return a module for each server, in the order of their sessions."""
        from ...farm.modules import RemoteModule

        return [
            RemoteModule(load(path), remote, address, self.device_index)
            for address, remote in _sessions[:devices]
        ]

    def check_threads(self, threads: int) -> None:
        """Do nothing: `environment` has refused threads."""


#: Devices of one kind, which are pickled for the measuring process.
DevicePool = LocalDevices | FarmDevices


def _counted(names: Iterable[str]) -> str:
    """Count equal names: ``2 × Mali-G610, 1 × Adreno 740``, or a single name."""
    counts = Counter(names)
    if counts.total() == 1:
        return next(iter(counts))
    return ", ".join(f"{count} × {name}" for name, count in counts.items())


def check_numbers(
    name: str, numbers: Sequence[int], possible: Collection[int] = _ANY
) -> Sequence[int]:
    """Return the numbers in their order; `InputError` if one is not possible, or there is none."""
    wrong = [str(number) for number in numbers if number not in possible]
    if wrong or not numbers:
        if isinstance(possible, range):
            first, expected = possible[0], f"from {possible[0]} to {possible[-1]}"
        else:
            first, expected = min(possible), ", ".join(map(str, sorted(possible)))
        raise InputError(
            f"Numbers of {name} have to be {expected}, got {', '.join(wrong) or 'none'}.",
            remedy=f"Give others, for example `{name}={first}`.",
        )
    return sorted(set(numbers))


# -- in the measuring process ----------------------------------------------------------------

#: Open sessions with servers.
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
