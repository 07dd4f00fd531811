"""Faults of builds on a cluster's workers, which preload this file: by the knobs."""

from __future__ import annotations

import os
import signal
import time

from tvmflow.devices.target import TargetSpec
from tvmflow.tuning import cluster
from tvmflow.tuning.building import Built, build_candidate
from tvmflow.tuning.tasks import Knobs


def build(text: str, target: TargetSpec, knobs: Knobs, *arguments: str | bool) -> Built:
    """Build a candidate, or fail as its knobs say; called in a worker's build process."""
    fault = knobs.get("fault")
    if fault == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if fault == "kill the worker":
        os.kill(os.getppid(), signal.SIGKILL)
    if fault:
        time.sleep(600)
    return build_candidate(text, target, knobs, *arguments)


def dask_setup(worker: object) -> None:
    """Have a worker build with these faults."""
    cluster.build_candidate = build
