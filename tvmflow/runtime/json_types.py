"""Types of JSON documents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: A JSON object; readers check its members.
JsonObject = dict[str, Any]

#: A read-only JSON object.
JsonMapping = Mapping[str, Any]
