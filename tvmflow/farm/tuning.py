"""The devices of a farm, as a tuning session sees them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..devices.host import Host
from ..errors import TargetError
from ..journal.records import Event
from ..tuning.measure import Config
from .address import Address
from .runner import FarmRunner
from .tracker import Tracker, check_host, check_served


@dataclass(frozen=True)
class Farm:
    """Devices at a tracker that measure instead of this machine's."""

    tracker: str
    key: str
    #: Holds the secret that the tracker and its servers ask for.
    secret_file: Path | None = None

    def address(self) -> Address:
        """Return the tracker's address, with the secret.

        Raises
        ------
        FarmError
            If it is not of the form, or the secret cannot be used.
        """
        return Address.parse(self.tracker, self.secret_file)

    def check(self, device: str, host: Host) -> None:
        """Refuse what would fail only after the network's tasks are found.

        Raises
        ------
        TargetError
            If no preset is named for the devices.
        FarmError
            If nobody serves the key, or on machines that load nothing for the host.
        """
        if device == "auto":
            raise TargetError(
                "Tuning on a farm needs the preset of its devices, but the device is 'auto', which "
                "stands for the OpenCL device of this machine.",
                remedy="Name it, for example with `device=adreno`.",
            )
        with Tracker(self.address()) as tracker:
            servers = check_served(tracker, self.key)
        check_host(servers, host)

    def runner(self, kind: str, measuring: Config, listener: Callable[[Event], None]) -> FarmRunner:
        """Measure on all of its devices."""
        return FarmRunner(self.address(), self.key, kind, measuring, listener=listener)
