"""``tvmflow devices``: what can run modules here."""

from __future__ import annotations

from .options import Debug, Json, Quiet, Verbose
from .session import command

EXAMPLES = """
[bold]Choosing an OpenCL device[/bold]
  TVMFLOW_OPENCL_DEVICE=1:0 tvmflow bench net.so
      the first device of the second platform
  TVMFLOW_OPENCL_LIBRARY=/path/to/libOpenCL.so tvmflow devices
      another OpenCL library
"""


@command
def list_all(
    as_json: Json = False,
    _verbose: Verbose = False,
    _quiet: Quiet = False,
    _debug: Debug = False,
) -> None:
    """List the devices that TVM sees, with their images, fp16, limits and drivers."""
