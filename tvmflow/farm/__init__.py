"""The device farm: TVM's RPC tracker and servers, with secrets, restarts and status added.

A *tracker* lends servers by key.  A *server* serves the devices of one machine by TVM's RPC
(:mod:`.server`), or one phone or board without TVM by the agent's protocol (:mod:`.agents`).
Tracker and RPC servers are TVM's own, so stock servers and clients work with them.
"""

from __future__ import annotations
