"""Where a network's time goes: measured, counted, and against what the device can do."""

from __future__ import annotations
