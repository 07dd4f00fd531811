"""A network's time: measured, counted, and against what the device can do."""

from __future__ import annotations
