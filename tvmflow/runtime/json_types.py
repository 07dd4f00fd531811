"""Types of what JSON documents hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: An object of a JSON document; whoever reads it checks what its members are.
JsonObject = dict[str, Any]

#: The same where it is only read.
JsonMapping = Mapping[str, Any]
