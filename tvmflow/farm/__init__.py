"""The device farm: TVM's RPC tracker and servers, and what tvmflow adds around them.

A *tracker* hands out servers by key, a *server* serves the devices of one machine.  Both
are TVM's own and speak its protocol, so that stock servers (TVM's RPC app on a phone)
and stock clients take part.
"""

from __future__ import annotations
