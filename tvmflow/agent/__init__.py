"""Phones and boards: a small program there, the *agent*, runs libraries and kernels for this host.

:mod:`.places` names devices, :mod:`.transports` reaches them, :mod:`.connection` speaks the
agent's protocol (docs/agent-protocol.md), :mod:`.device` is the device behind it.
"""

from __future__ import annotations
