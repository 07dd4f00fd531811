"""Phones and boards: a small program there, the *agent*, runs libraries and kernels for this host.

:mod:`.transports` reaches an agent, :mod:`.connection` speaks its protocol
(docs/agent-protocol.md), :mod:`.device` is the device behind it.
"""

from __future__ import annotations
