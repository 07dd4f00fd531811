"""Module files under Oclgrind: no access out of bounds, no data race."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

import tvmflow
from support.drivers import Runner

_HEADER = Path(__file__).with_name("image_bounds.h")


class Oclgrind:
    """A process under Oclgrind that runs many modules.

    Parameters
    ----------
    folder
        Folder for its log.
    options
        More options for the compiler of kernels.
    """

    def __init__(self, folder: Path, options: str = ""):
        self._log = folder / "oclgrind.log"
        self._log.touch()
        command = ["oclgrind", "--data-races", "--check-api", "--inst-counts"]
        command += ["--build-options", f"-include {_HEADER} {options}", "--log", str(self._log)]
        # The command brings its own library and kernels, which are built with the header.
        env = {"TVMFLOW_OPENCL_LIBRARY": "", "TVMFLOW_OPENCL_DEVICE": "", "TVMFLOW_CACHE": "0"}
        self._runner = Runner(env, command)

    @property
    def alive(self) -> bool:
        """Return whether the process can run another module."""
        return self._runner.alive

    def __call__(
        self, module: tvmflow.Module, feeds: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Return the outputs of a module, by name.

        Raises
        ------
        AssertionError
            If Oclgrind found a fault, or did not run the kernels.
        """
        start, printed = self._log.stat().st_size, len(self._runner.output().encode())
        outputs = self._runner(module.path, feeds)
        found = self._log.read_bytes()[start:].decode(errors="replace")
        assert not found, f"Oclgrind found:\n{found[:3000]}"
        # The counts show that Oclgrind ran the kernels, and all of them.
        ran = self._runner.output(printed).count("Instructions executed for kernel")
        assert ran >= len(module.metadata["kernels"]), f"Oclgrind ran {ran} kernels"
        return outputs

    def close(self) -> None:
        """End the process."""
        self._runner.close()
