"""TVM's RPC tracker and server, restarted after crashes, with a listener that asks for the secret.

TVM's server runs each session in its own process, but ends itself when one crashes: one bad
kernel would remove the device from the farm.  Here it is restarted on the same port, and facts
about the machine are published through the tracker.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import FarmError
from ..runtime.devices import why_no_opencl
from ..runtime.secret import Address, Secret, UnprovenError
from ..runtime.tracker import ABOUT, Tracker, TrackerAwayError, check_key, protocol
from . import modules
from .network import SecretListener, check_bind, is_loopback, listen
from .precompile import PRECOMPILE_FUNCTION, precompile_for_client
from .server_info import ABOUT_FUNCTION, ServerInfo

if TYPE_CHECKING:
    from tvm.support.popen_pool import PopenWorker

#: Ports to try if none is given.
PORTS = range(9090, 9190)
_THERMAL = Path("/sys/class/thermal")
#: Files with the name of a board, or of a computer.
_MODELS = (Path("/proc/device-tree/model"), Path("/sys/class/dmi/id/product_name"))
#: Interval of attempts to reach an absent tracker.
_RETRY_S = 1.0
#: Most events of sessions that wait to be logged; the oldest are dropped.
_LOGGED = 1000

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServeOptions:
    """Options of a server: key, devices and addresses."""

    #: Tracker that lends the server; they share its secret.
    tracker: Address
    #: Key that clients request.
    key: str
    #: Address to listen at.
    host: str = "127.0.0.1"
    #: ``None`` for the first free one of :data:`PORTS`.
    port: int | None = None
    #: Host that clients connect to, if it differs from `host`.
    advertise: str | None = None
    #: Device that becomes ``opencl:0``: ``PLATFORM:DEVICE``, indices or parts of names.
    opencl_device: str | None = None
    #: How long to wait for an absent tracker; ``None`` without a limit.
    wait_s: float | None = None

    @property
    def advertised(self) -> str | None:
        """Return the host that clients connect to; ``None`` for the one that the tracker sees."""
        # These mean all addresses of the machine.
        return self.advertise or (None if self.host in ("0.0.0.0", "::") else self.host)

    def check(self) -> None:
        """Refuse addresses that nobody, or everybody, could connect to.

        Raises `FarmError` if the key or the address to listen at cannot be used.
        """
        check_key(self.key)
        check_bind(self.host, self.tracker.secret)
        if self.advertise is None and is_loopback(self.host) and not is_loopback(self.tracker.host):
            raise FarmError(
                f"Serving for the tracker at {self.tracker} was refused: the server would listen "
                f"at {self.host}, which no other machine reaches.",
                remedy="Give `bind=ADDRESS` and `secret_file=FILE`, or, behind a tunnel, "
                "`advertise=HOST`.",
            )


@dataclass(frozen=True)
class Event:
    """A line of a service's log."""

    text: str
    #: Whether it is part of normal operation: begin and end of sessions, a tracker that is back.
    is_routine: bool = False


class FarmServer:
    """A server in its own process, and its entry in the tracker's summary.

    Raises `FarmError` if the tracker is absent for too long or asks for another secret, strangers
    could reach the server, or no port is free.
    """

    def __init__(self, options: ServeOptions):
        options.check()
        self.options = options
        self.crashes = 0
        # Before TVM is imported, here and in the server's process: the plug-in reads them once.
        if options.opencl_device is not None:
            os.environ["TVMFLOW_OPENCL_DEVICE"] = options.opencl_device
        # Candidates run only once: do not cache built programs.
        os.environ.setdefault("TVMFLOW_CACHE", "0")
        protocol()
        self.about = ServerInfo.here()
        if options.opencl_device and all(d.kind != "opencl" for d in self.about.devices):
            reason = (why_no_opencl() or "there is none").partition("\n")[0]
            raise FarmError(
                f"The OpenCL device {options.opencl_device!r} cannot be served: {reason}",
                remedy="Choose one that `tvmflow devices` lists.",
            )
        self._tracker: Tracker | None = wait_for(options.tracker, options.wait_s)
        self._start(PORTS if options.port is None else range(options.port, options.port + 1))
        self._publish()

    def check(self) -> list[Event]:
        """Restart the server if it ended, publish the state, and return new events."""
        is_alive, happened = _take_events(self._worker)
        if not is_alive:
            self._worker.kill()
            self.crashes += 1
            self._start(range(self.port, self.port + 1))
            happened.append(Event("A session crashed the server; it was started again."))
        try:
            if self._tracker is None:
                self._tracker = Tracker(self.options.tracker)
                again = f"Connected to the tracker at {self.options.tracker} again."
                happened.append(Event(again, is_routine=True))
            self._publish()
        except FarmError as error:
            if self._tracker is not None:
                self._tracker.close()
                self._tracker = None
                # TVM's server reconnects by itself.
                happened.append(Event(f"{error.message} Trying again."))
        return happened

    def close(self) -> None:
        """End the server and its sessions."""
        self._worker.kill()
        if self._tracker is not None:
            self._tracker.close()

    def _start(self, ports: range) -> None:
        import psutil
        from tvm.support.popen_pool import PopenWorker

        self._worker = PopenWorker()
        set_up = functools.partial(prepare, os.getpid())
        start = functools.partial(_serve, self.options, ports, set_up)
        self.port: int = _started(self._worker, start, self.options.host, ports)
        self._worker.send(os.getpid)
        self._process = psutil.Process(self._worker.recv())

    def _publish(self) -> None:
        assert self._tracker is not None
        facts = asdict(self.about) | {
            "model": model_of_machine(),
            "busy_s": self._busy_s(),
            "crashes": self.crashes,
            "temperature_c": temperature_c(),
            "throttled": is_throttled(),
        }
        key = ABOUT + self.options.key
        self._tracker.publish(key, facts, self.options.advertised, self.port)

    def _busy_s(self) -> float | None:
        """Return the age of the current session."""
        import psutil

        with suppress(psutil.Error):
            for session in self._process.children():
                if session.status() != psutil.STATUS_ZOMBIE:
                    return round(time.time() - session.create_time(), 1)
        return None


def wait_for(address: Address, limit_s: float | None) -> Tracker:
    """Connect to a tracker as soon as it answers."""
    began, told = time.monotonic(), ""
    while True:
        try:
            return Tracker(address)
        except TrackerAwayError as error:
            if limit_s is not None and time.monotonic() - began >= limit_s:
                raise
            if error.message != told:
                logger.warning("%s Waiting for it.", error.message)
                told = error.message
        time.sleep(_RETRY_S)


@contextmanager
def running_tracker(
    host: str, port: int, secret: Secret | None
) -> Iterator[Callable[[], list[Event]]]:
    """Run a tracker in its own process; yields a function that returns new events.

    Raises `FarmError` if strangers could reach it, the port is taken, or the address is not this
    machine's.
    """
    check_bind(host, secret)
    protocol()
    from tvm.support.popen_pool import PopenWorker

    tracker, ports = PopenWorker(), range(port, port + 1)
    try:
        _started(tracker, functools.partial(_track, host, ports, secret, os.getpid()), host, ports)
        yield lambda: _take_events(tracker)[1]
    finally:
        tracker.kill()


def _take_events(worker: PopenWorker) -> tuple[bool, list[Event]]:
    """Return whether a process still listens, and its new events."""
    try:
        worker.send(take_events)
        told: tuple[bool, list[Event]] = worker.recv()
    except ChildProcessError:
        return False, []
    return told


def _started(worker: PopenWorker, start: Callable[[], int | str], host: str, ports: range) -> int:
    """Start listening in a process; return the port."""
    worker.send(start)
    port: int | str = worker.recv()
    if isinstance(port, int):
        return port
    last = ports[-1]
    where = Address(host, last) if len(ports) == 1 else f"{host}, ports {ports[0]} to {last}"
    raise FarmError(
        f"Listening at {where} failed: {port}.",
        remedy="Give an address of this machine with `bind` and a free port with `port`.",
    )


# -- facts about this machine ----------------------------------------------------------------


def model_of_machine(files: Sequence[Path] = _MODELS) -> str:
    """Return the name of this board or computer; empty if Linux does not show it."""
    for file in files:
        with suppress(OSError, ValueError):
            if (name := file.read_text(encoding="utf-8").strip("\0\n ")).isprintable():
                return name
    return ""


def temperature_c(folder: Path = _THERMAL) -> float | None:
    """Return the temperature of the machine's hottest sensor; ``None`` without sensors."""
    found = [degrees / 1000 for degrees in _numbers(folder, "thermal_zone*/temp")]
    # Sensors that are switched off report nonsense.
    return max((value for value in found if 0 < value < 200), default=None)


def is_throttled(folder: Path = _THERMAL) -> bool | None:
    """Return whether the machine is throttled to cool it; ``None`` if Linux does not show it."""
    # Fans cool without throttling.
    states = [
        state
        for device in folder.glob("cooling_device*")
        if "fan" not in next(_contents(device, "type"), "").lower()
        for state in _numbers(device, "cur_state")
    ]
    return any(state > 0 for state in states) if states else None


def _contents(folder: Path, pattern: str) -> Iterator[str]:
    """Yield the contents of the files that can be read."""
    for path in sorted(folder.glob(pattern)):
        try:
            yield path.read_text(encoding="utf-8").strip()
        except (OSError, ValueError):
            continue


def _numbers(folder: Path, pattern: str) -> list[int]:
    return [int(t) for t in _contents(folder, pattern) if t.removeprefix("-").isdigit()]


# -- in the process of the server or the tracker ---------------------------------------------

#: Listening socket, and the thread that serves its connections.
_listening: socket.socket | SecretListener | None = None
_thread: threading.Thread | None = None
_sessions: deque[Event] = deque(maxlen=_LOGGED)


def _serve(options: ServeOptions, ports: range, set_up: Callable[[], None]) -> int | str:
    """Start TVM's server; return its port, or why that failed."""
    from tvm.rpc import base, server

    set_up()
    # TVM's own function gives up after a minute without the tracker, and knows no secret.
    base.connect_with_retry = _connect_to_tracker
    server._serving = _logging_sessions(server._serving)

    facts = options.key, options.tracker, None, options.advertised
    return _listen(
        options.host,
        ports,
        options.tracker.secret,
        lambda listening, port: server._listen_loop(listening, port, *facts),
    )


def _track(host: str, ports: range, secret: Secret | None, parent: int) -> int | str:
    """Start TVM's tracker; return its port, or why that failed."""
    from tvm.rpc import tracker

    _belong_to(parent)
    key = tracker.base.random_key("tracker")
    return _listen(host, ports, secret, lambda it, _port: tracker._tracker_server(it, key))


def _listen(
    host: str,
    ports: range,
    secret: Secret | None,
    loop: Callable[[socket.socket | SecretListener, int], object],
) -> int | str:
    global _listening, _thread
    try:
        _listening, port = listen(host, ports, secret)
    except OSError as error:
        return error.strerror or str(error)
    _thread = threading.Thread(target=loop, args=(_listening, port), daemon=True)
    _thread.start()
    return port


def take_events() -> tuple[bool, list[Event]]:
    """Return whether the server thread still runs, and new events."""
    taken = [_sessions.popleft() for _ in range(len(_sessions))]
    if isinstance(_listening, SecretListener):
        taken += [Event(refusal) for refusal in _listening.take_refused()]
    return _thread is not None and _thread.is_alive(), taken


def _logging_sessions(serving: Callable[..., None]) -> Callable[..., None]:
    """Wrap TVM's function that serves one session: log the session's name, beginning and end."""

    def serve(connection: socket.socket, client: tuple[str, int], *rest: object) -> None:
        name, began = f"Session {Address(*client[:2])}", time.monotonic()
        _sessions.append(Event(f"{name} connected.", is_routine=True))
        try:
            serving(connection, client, *rest)
        except BaseException as error:
            _sessions.append(Event(f"{name} failed: {error}."))
            raise
        lasted = f"{time.monotonic() - began:.1f} s"
        _sessions.append(Event(f"{name} ended after {lasted}.", is_routine=True))

    return serve


def prepare(parent: int) -> None:
    """Set up the server's process, from which sessions are forked."""
    import tvm_ffi

    _belong_to(parent)
    # Evaluated in a session's process: no driver may be opened before TVM forks.
    tvm_ffi.register_global_func(ABOUT_FUNCTION, lambda: json.dumps(asdict(ServerInfo.here())))
    tvm_ffi.register_global_func(PRECOMPILE_FUNCTION, precompile_for_client)
    modules.register()


def _connect_to_tracker(address: Address) -> socket.socket:
    """Connect as soon as the tracker answers; replaces a function of TVM."""
    while True:
        with suppress(OSError, UnprovenError):
            connection = address.connect(_RETRY_S)
            connection.settimeout(None)
            return connection
        time.sleep(_RETRY_S)


def _belong_to(parent: int) -> None:
    """End this process when its parent ends."""
    # Ctrl-C reaches all processes of a terminal; the parent ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
