"""Coordinates of packages in a Maven repository, which Gradle can also read from a folder.

::

    REPOSITORY/com/example/face/1.0.0/face-1.0.0.aar
    REPOSITORY/com/example/face/1.0.0/face-1.0.0.pom    its dependencies

Files: https://maven.apache.org/repository/layout.html
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ...._versions import __version__

_PART = r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*"
_NAMES = re.compile(rf"({_PART}):({_PART})")


@dataclass(frozen=True)
class Coordinates:
    """Name of a Maven package."""

    group: str
    artifact: str
    version: str

    @classmethod
    def parse(cls, text: str, version: str) -> Coordinates | None:
        """Read ``com.example:face``; ``None`` if it is not of that form."""
        match = _NAMES.fullmatch(text)
        return cls(match[1], match[2], version) if match else None

    def path(self, repository: Path) -> Path:
        """Return the path of the AAR in a repository; the POM is next to it."""
        folder = repository.joinpath(*self.group.split("."), self.artifact, self.version)
        return folder / f"{self.artifact}-{self.version}.aar"

    def pom(self, *needed: Coordinates) -> str:
        """Return the project file of an AAR, with the packages that it needs."""
        dependencies = "".join(
            "    <dependency>\n"
            f"      <groupId>{each.group}</groupId>\n"
            f"      <artifactId>{each.artifact}</artifactId>\n"
            f"      <version>{each.version}</version>\n"
            "      <type>aar</type>\n"
            "      <scope>compile</scope>\n"
            "    </dependency>\n"
            for each in needed
        )
        return (
            '<?xml version="1.0" encoding="UTF-8"?>\n'
            '<project xmlns="http://maven.apache.org/POM/4.0.0">\n'
            "  <modelVersion>4.0.0</modelVersion>\n"
            f"  <groupId>{self.group}</groupId>\n"
            f"  <artifactId>{self.artifact}</artifactId>\n"
            f"  <version>{self.version}</version>\n"
            "  <packaging>aar</packaging>\n"
            f"  <dependencies>\n{dependencies}  </dependencies>\n"
            "</project>\n"
        )


#: Package of only the Java classes, on which packages without classes depend.
RUNTIME = Coordinates("ai.tvmflow", "tvmflow-runtime", __version__)
