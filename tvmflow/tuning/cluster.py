"""Building of candidates on the workers of a Dask cluster.

A worker builds in a process of its own for each of its threads, with the same function, time limit
and protection from crashes as on this machine (:mod:`.building`).  It sends the file back.
"""

from __future__ import annotations

import platform
import tempfile
import threading
from collections.abc import Mapping
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from .. import _versions
from ..devices.host import Host
from ..devices.target import TargetSpec
from ..errors import FarmError, TvmflowError
from ..module.files import publish, staging
from ..module.link import check_linker
from ..runtime.process import Worker, WorkerLostError
from .building import BUILD_LIMIT_S, Builder, Built, build_candidate, failure_text
from .tasks import Knobs, Task

if TYPE_CHECKING:
    import distributed

#: Time limit for the scheduler to answer, and for its first worker to be there, in seconds.
CONNECT_LIMIT_S = 5.0

#: Names and versions that must be equal everywhere; a tuple, as it is a key of a cache.
Versions = tuple[tuple[str, str], ...]


class BuildFailedError(Exception):
    """Raised on a worker for a candidate that cannot be built on any worker."""


# -- on a worker of the cluster ------------------------------------------------------------------

_own = threading.local()
#: The largest thresholds that glibc chooses by itself.  Dask sets the first one to 64 KiB in its
#: workers, with which a build takes half as long again.
_ALLOCATOR = {"MALLOC_TRIM_THRESHOLD_": str(64 << 20), "MALLOC_MMAP_THRESHOLD_": str(32 << 20)}


def build_here(
    text: str,
    target: TargetSpec,
    knobs: Knobs,
    digest: str,
    as_kernels: bool,
    limit_s: float,
    versions: Versions,
) -> tuple[Built, bytes]:
    """Build a candidate in this thread's process; return it and its file's content.

    The arguments are those of `build_candidate`.  The path of the result is only a file name.
    Raises `BuildFailedError`, or `FarmError` if this worker has other versions.
    """
    from distributed import get_worker

    # Workers may join the cluster at any time.
    check_versions(versions)
    if not hasattr(_own, "process"):
        _own.process = Worker(_ALLOCATOR)
    # Dask removes this folder's content if the worker is killed.
    with tempfile.TemporaryDirectory(dir=get_worker().local_directory) as folder:
        arguments = text, target, knobs, digest, folder, as_kernels
        try:
            built = _own.process.call(build_candidate, *arguments, timeout_s=limit_s)
        except (WorkerLostError, RuntimeError) as error:
            raise BuildFailedError(failure_text(error)) from error
        if built.path is None:
            return built, b""
        return replace(built, path=Path(built.path.name)), built.path.read_bytes()


@lru_cache(maxsize=64)
def check_versions(expected: Versions) -> None:
    """Raise `FarmError` if this machine's versions differ from the expected ones."""
    found = dict(versions_here(links="machine" in dict(expected)))
    wrong = [(name, version) for name, version in expected if found[name] != version]
    if wrong:
        raise FarmError(
            f"Candidates should be built on a worker of {platform.node()}, which needs "
            f"{', '.join(f'{name} {version}' for name, version in wrong)} as here, but has "
            f"{', '.join(f'{name} {found[name]}' for name, _ in wrong)}.",
            remedy="Install the same versions on all workers, and start them again.",
        )


def check_worker(expected: Versions, host: Host | None) -> None:
    """Check versions, and whether this machine links for a host; ``None`` means no linking."""
    check_versions(expected)
    if host is not None:
        check_linker(host)


def versions_here(links: bool) -> Versions:
    """Return this machine's versions; with ``links`` also its kind, which libraries depend on."""
    found = {"tvmflow": _versions.__version__}
    found |= {name: version or "(missing)" for name, version in _versions.installed_tvm().items()}
    if links:
        found["machine"] = Host.native().triple
    return tuple(found.items())


# -- in the tuning process -----------------------------------------------------------------------


class ClusterBuilder(Builder):
    """Builder on the workers of the Dask scheduler at ``address``; test cases are computed here.

    ``host`` is the host of libraries, ``None`` for kernels without host code.  The future of a
    build fails with `FarmError` if the scheduler is lost or a worker does not fit.
    """

    def __init__(
        self,
        address: str,
        host: Host | None = None,
        *,
        workers: int | None = None,
        limit_s: float = BUILD_LIMIT_S,
        as_kernels: bool = False,
    ):
        self._address = address
        self._closing = False
        host = None if as_kernels else host or Host.native()
        self._expected = versions_here(links=host is not None and host.is_native)
        self._client = _connect(address)
        try:
            self._check_workers(host)
            super().__init__(workers, limit_s, as_kernels=as_kernels)
        except BaseException:
            self._client.close()
            raise

    def _check_workers(self, host: Host | None) -> None:
        """Wait for a worker, and check all that are there."""
        # Before Python 3.11, it is not Python's own.
        from distributed import TimeoutError as NoWorkerError

        try:
            self._client.wait_for_workers(1, timeout=CONNECT_LIMIT_S)
            failures = self._client.run(check_worker, self._expected, host, on_error="return")
        except NoWorkerError as error:
            raise FarmError(
                f"Candidates should be built on the cluster at {self._address}, but no worker "
                f"joined it within {CONNECT_LIMIT_S:g} s.",
                remedy=f"Start workers with `dask worker {self._address}`.",
            ) from error
        except OSError as error:
            raise self._lost() from error
        for worker, failure in failures.items():
            if failure is not None:
                raise _worker_error(f"worker {worker}", failure)

    def submit(self, task: Task, knobs: Mapping[str, object] | None) -> Future[Built]:
        """Build a candidate; ``None`` means the heuristic's knobs."""
        chosen = dict(task.heuristic if knobs is None else knobs)
        result: Future[Built] = Future()

        def finish(done: distributed.Future) -> None:
            from distributed import KilledWorker

            failed = Built(task.digest, chosen, "", None, task.arguments, None)
            try:
                result.set_result(self._written(*done.result()))
            except BuildFailedError as error:
                result.set_result(replace(failed, error=str(error)))
            except KilledWorker as error:
                reason = f"The build failed: the workers that tried it ended. {error}"
                result.set_result(replace(failed, error=reason))
            except CancelledError:
                self._lose(result)
            except Exception as error:  # noqa: BLE001 (the session ends with it)
                result.set_exception(_worker_error("cluster", error))

        # A copy without cached TVM objects, which cannot be sent.  The text has about 20 kB, so it
        # is sent with each build.
        arguments = task.text, replace(task.target), chosen, task.digest
        settings = self._as_kernels, self._limit_s, self._expected
        try:
            sent = self._client.submit(build_here, *arguments, *settings, pure=False)
            sent.add_done_callback(finish)
        except Exception:  # noqa: BLE001 (a client that lost its scheduler is closed)
            self._lose(result)
        return result

    def _written(self, built: Built, content: bytes) -> Built:
        """Return a candidate whose file was written to this builder's folder."""
        if built.path is None:
            return built
        path = self.folder / built.path
        if not path.exists():
            with staging(path) as work:
                (work / path.name).write_bytes(content)
                publish({work / path.name: path})
        return replace(built, path=path)

    def _lose(self, result: Future[Built]) -> None:
        """End a build without a result: the scheduler was lost, or the session ends."""
        if self._closing:
            result.cancel()
        else:
            result.set_exception(self._lost())

    def _lost(self) -> FarmError:
        return FarmError(
            f"The scheduler at {self._address} was lost, or it cancelled a build.",
            remedy="Start it and its workers again; the same command continues after the "
            "journal's last trial.",
        )

    def close(self) -> None:
        """Cancel what is left on the cluster, end the processes here, and remove the files."""
        self._closing = True
        with suppress(TimeoutError):
            self._client.close()
        super().close()


def _connect(address: str) -> distributed.Client:
    try:
        from distributed import Client, Security
        from distributed import TimeoutError as NoAnswerError
    except ImportError as error:
        raise FarmError(
            "Building on a cluster needs the package distributed, which is not installed.",
            remedy=_versions.install_command("cluster"),
        ) from error
    secrets = Security().get_connection_args("client")
    if address.startswith("tls://") and secrets.get("ssl_context") is None:
        raise FarmError(
            f"Building on the cluster at {address} needs a certificate, but Dask's configuration "
            "has none for clients.",
            remedy="Set ca-file, client.cert and client.key of distributed.comm.tls in "
            "~/.config/dask/distributed.yaml.",
        )
    try:
        return Client(address, timeout=CONNECT_LIMIT_S, set_as_default=False, name="tvmflow-tune")
    except (OSError, ValueError, NoAnswerError) as error:
        raise FarmError(
            f"Candidates should be built on a cluster, but no Dask scheduler answered at {address} "
            f"within {CONNECT_LIMIT_S:g} s.",
            remedy="Start one with `dask scheduler`, and give the address that it prints, as in "
            "`build_on=tcp://10.0.0.2:8786`.",
            details=str(error),
        ) from error


def _worker_error(where: str, error: Exception) -> FarmError:
    """Return the error that ends a session because a worker cannot build."""
    if isinstance(error, FarmError):
        return error
    message, remedy = f"{type(error).__name__}: {error}", None
    if isinstance(error, TvmflowError):
        message, remedy = error.message, error.remedy
    return FarmError(
        f"The {where} cannot build candidates: {message}",
        remedy=remedy
        or "Install this version of tvmflow in the environments that run the scheduler and the "
        "workers.",
    )
