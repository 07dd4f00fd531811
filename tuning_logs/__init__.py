"""Tuning journals that ship with the package: one file a device, none yet.

Read them with ``importlib.resources.files("tvmflow.tuning_logs")``, which finds them in
an installed package and in the tree.
"""

from __future__ import annotations
