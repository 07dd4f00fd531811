"""The device farm: TVM's RPC tracker and servers, with secrets, restarts and status added.

A *tracker* lends servers by key; a *server* serves the devices of one machine.  Both are TVM's
own and speak its protocol, so stock servers (TVM's RPC app on a phone) and stock clients work
with them.
"""

from __future__ import annotations
