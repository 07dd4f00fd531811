"""A session with a server: in the process that measures through it, one at a time."""

from __future__ import annotations

import functools
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import tvm
from tvm import rpc

from ..errors import FarmError
from ..tuning.building import Built, Case
from ..tuning.measure import CRASH, DEVICE, DEVICES, Config, Measured, Session
from .connect import about_of, open_session
from .tracker import Offer, ServerInfo

#: One of those that tvmflow's plug-in registers.
_PLUGIN_FUNCTION = "tvmflow.opencl.describe"
_EVERY_SERVERS_FUNCTION = "tvm.rpc.server.workpath"
#: What can be said from here; a connection that broke has no status.
_ENDED = (
    "the server's process ended during the trial: the kernel or the driver crashed it, or the "
    "system there killed it, most often because memory ran out (`dmesg` there tells)"
)


@dataclass(frozen=True)
class Opened:
    """What a session knows about its server."""

    #: The device's.
    name: str
    #: ``None`` from a stock server.
    about: ServerInfo | None
    #: Whether the OpenCL runtime there is tvmflow's, as that of stock servers may be, too.
    has_plugin: bool


class RemoteSession(Session):
    """Measures on a server's first device of a kind.

    After ``limit_s`` the server ends the session, whatever is running; ``first`` is the time of the
    reference kernel in the device's first session, if it had one.
    """

    def __init__(
        self, offer: Offer, kind: str, config: Config, limit_s: float, first: float | None
    ):
        self.remote = open_session(offer, limit_s)
        # Not a method: the server stays busy until the last reference has gone.
        load = functools.partial(_bring, self.remote)
        super().__init__(self.remote.device(DEVICES[kind]), load, config)
        self.first = first
        # The device may have become hot since its last session.
        self._since = config.reference_every

    def answers(self) -> bool:
        """Tell whether the server's process of this session still runs."""
        try:
            # A function of every server, also of stock ones: that it is missing is no answer.
            self.remote.get_function(_EVERY_SERVERS_FUNCTION)("")
        except Exception:  # noqa: BLE001 (a broken connection fails in every way)
            return False
        return True


def _bring(remote: rpc.RPCSession, path: Path) -> tvm.runtime.Module:
    """Load a library on the server."""
    remote.upload(str(path))
    library = remote.load_module(path.name)
    # It is loaded: phones have little room.
    with suppress(AttributeError, RuntimeError):
        remote.remove(path.name)
    return library


_session: RemoteSession | None = None


def begin(offer: Offer, kind: str, config: Config, limit_s: float, first: float | None) -> Opened:
    """Open the session of this process."""
    global _session
    end()
    try:
        _session = RemoteSession(offer, kind, config, limit_s, first)
    except FarmError as error:
        # The runner shows the last line, which is the reason in TVM's errors.
        raise RuntimeError(error.message) from error
    about = about_of(_session.remote)
    # Of a CPU, TVM does not tell the name.
    if about is not None and (served := about.device_of(kind)) is not None:
        _session.name, _session.driver = served.name, served.driver
    plugin = None
    with suppress(AttributeError):
        plugin = _session.remote.get_function(_PLUGIN_FUNCTION)
    return Opened(_session.name, about, plugin is not None)


def measure(built: Built, case: Case, incumbent: Built | None) -> tuple[Measured, float | None]:
    """Measure a candidate; return the time of the reference kernel, too.

    A session that ended meanwhile is told from a kernel that failed.
    """
    assert _session is not None
    measured = _session.measure(built, case, incumbent)
    if measured.error == DEVICE and not _session.answers():
        measured = replace(measured, error=CRASH, message=_ENDED)
    return measured, _session.first


def end() -> None:
    """End the session, if there is one: the server takes the next."""
    global _session
    _session = None
