"""Modules on this machine, or on a device that ``--on`` names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..agent.device import RemoteDevice
    from ..module.module import Module


@dataclass(frozen=True)
class Place:
    """The options ``--on`` and ``--secret-file``."""

    on: str | None  #: ``None`` is this machine, without an agent.
    secret_file: Path | None

    def connect(self) -> AbstractContextManager[RemoteDevice]:
        """Connect to the device."""
        from ..agent.device import connect

        assert self.on is not None
        return connect(self.on, secret_file=self.secret_file)


@contextmanager
def loaded(
    path: Path, place: Place, device_index: int, check_weights: bool, backend: str
) -> Iterator[Module]:
    """Load a module for as long as the context lasts; other parameters as for `tvmflow.load`."""
    if place.on is None:
        from ..module.load import load

        options = {"check_weights": check_weights, "backend": backend}
        with load(path, device=device_index, **options) as module:  # type: ignore[arg-type]
            yield module
        return
    with (
        place.connect() as device,
        device.load(path, device_index=device_index, backend=backend) as module,
    ):
        yield module
