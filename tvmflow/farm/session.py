"""Measuring session with a server, in a worker process; one at a time.

Servers run TVM's sessions (`RemoteSession`) or agents (`tvmflow.tuning.remote.KernelSession`).
"""

from __future__ import annotations

import functools
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import tvm
from tvm import rpc

from ..agent.device import RemoteDevice
from ..agent.lent import LentAgent, TicketError
from ..errors import FarmError, TvmflowError
from ..module.session import DEVICES
from ..runtime.tracker import Offer
from ..tuning.building import Built, Case
from ..tuning.measure import (
    CRASH,
    DEVICE,
    MEASURE_LIMIT_S,
    Config,
    Measured,
    Session,
    TvmDevice,
)
from ..tuning.remote import KernelSession, failure_kind, identify, is_build_failure
from .connect import about_of, open_session
from .server_info import ServerInfo

#: A function that tvmflow's plug-in registers.
_PLUGIN_FUNCTION = "tvmflow.opencl.describe"
_EVERY_SERVERS_FUNCTION = "tvm.rpc.server.workpath"
#: Explanation of a broken connection, which has no exit status.
_ENDED = (
    "the server's process ended during the trial: the kernel or the driver crashed it, or the "
    "system there killed it, most often because memory ran out (`dmesg` there tells)"
)


@dataclass(frozen=True)
class Opened:
    """Facts about the server of a session."""

    #: Name and driver of the device.
    name: str
    driver: str
    #: ``None`` for a stock server.
    about: ServerInfo | None
    #: Whether the OpenCL runtime there is tvmflow's; stock servers may load it, too.
    has_plugin: bool


class RemoteSession(Session):
    """Measuring session on a server's first device of a kind.

    The server ends the session after ``limit_s`` seconds, even during a run.  ``first`` is the time
    of the reference kernel in the device's first session, if there was one.
    """

    def __init__(
        self, offer: Offer, kind: str, config: Config, limit_s: float, first: float | None
    ):
        self.remote = open_session(offer, limit_s)
        # Not a bound method: the server stays busy until the last reference is gone.
        load = functools.partial(_bring, self.remote)
        device = self.remote.device(DEVICES[kind])
        super().__init__(TvmDevice(device, load), config, str(device.device_name or device))
        self.first = first
        # The device may have become hot since its last session.
        self._since = config.reference_every

    def answers(self) -> bool:
        """Return whether the server's process of this session still runs."""
        try:
            # Every server has this function, also stock ones: if it is missing, nothing answered.
            self.remote.get_function(_EVERY_SERVERS_FUNCTION)("")
        except Exception:  # noqa: BLE001 (a broken connection fails in every way)
            return False
        return True


def _bring(remote: rpc.RPCSession, path: Path) -> tvm.runtime.Module:
    """Load a library on the server."""
    remote.upload(str(path))
    library = remote.load_module(path.name)
    # The file is loaded: free the phone's disk.
    with suppress(AttributeError, RuntimeError):
        remote.remove(path.name)
    return library


_session: RemoteSession | KernelSession | None = None
#: Time limit of a trial behind an agent.
_limit_s = MEASURE_LIMIT_S


def begin(offer: Offer, kind: str, config: Config, limit_s: float, first: float | None) -> Opened:
    """Open the session of this process."""
    global _session
    end()
    try:
        _session = RemoteSession(offer, kind, config, limit_s, first)
    except FarmError as error:
        # The runner shows the last line, which holds the reason in TVM's errors.
        raise RuntimeError(error.message) from error
    about = about_of(_session.remote)
    # TVM does not report the name of a CPU.
    if about is not None and (served := about.device_of(kind)) is not None:
        _session.name, _session.driver = served.name, served.driver
    plugin = None
    with suppress(AttributeError):
        plugin = _session.remote.get_function(_PLUGIN_FUNCTION)
    return Opened(_session.name, _session.driver, about, plugin is not None)


def begin_agent(offer: Offer, config: Config, limit_s: float, first: float | None) -> Opened | None:
    """Open the session of this process with an agent; a trial may take ``limit_s`` seconds.

    Returns ``None`` if the server has withdrawn the device.
    """
    global _session, _limit_s
    end()
    try:
        with ExitStack() as stack:
            remote = stack.enter_context(RemoteDevice(LentAgent(offer)))
            device = identify(remote)
            stack.pop_all()
    except TicketError:
        return None
    except TvmflowError as error:
        raise RuntimeError(error.message) from error
    _limit_s = limit_s
    _session = KernelSession(remote, config, device, 0, first)
    return Opened(device.name, device.driver, None, has_plugin=True)


def measure(built: Built, case: Case, incumbent: Built | None) -> tuple[Measured, float | None]:
    """Measure a candidate; return its result and the time of the reference kernel.

    An ended session is distinguished from a failed kernel.
    """
    global _session
    assert _session is not None
    if isinstance(_session, KernelSession):
        measured, failure = _session.attempt(built, case, incumbent, _limit_s)
        first = _session.first
        if failure is not None:
            measured = replace(measured, error=failure_kind(failure))
            if not is_build_failure(failure):
                _session = _session.renewed()
        return measured, first
    measured = _session.measure(built, case, incumbent)
    if measured.error == DEVICE and not _session.answers():
        measured = replace(measured, error=CRASH, message=_ENDED)
    return measured, _session.first


def end() -> None:
    """End the session, if there is one, so that the server accepts the next."""
    global _session
    if isinstance(_session, KernelSession):
        _session.remote.close()
    _session = None
