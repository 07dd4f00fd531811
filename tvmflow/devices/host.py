"""Hosts: machines that load a module, described by their triples."""

from __future__ import annotations

import platform
import re
from dataclasses import dataclass
from pathlib import Path

from ..errors import TargetError

#: Short names of hosts and their triples.
HOSTS = {
    "linux-x64": "x86_64-linux-gnu",
    "linux-arm64": "aarch64-linux-gnu",
    "android-arm64": "aarch64-linux-android24",
    "android-armv7": "armv7a-linux-androideabi24",
    "android-x64": "x86_64-linux-android24",
}
#: Android's names for architectures.
_ANDROID_ABIS = {"aarch64": "arm64-v8a", "armv7a": "armeabi-v7a", "x86_64": "x86_64"}
_ARCHITECTURES = {"amd64": "x86_64", "x64": "x86_64", "arm64": "aarch64"}


@dataclass(frozen=True)
class Host:
    """A machine with Linux or Android that runs host code: the parts of its triple."""

    architecture: str
    abi: str

    @classmethod
    def parse(cls, triple: str | None) -> Host:
        """Read a short name (`HOSTS`) or a triple of three or four parts; ``None`` is this machine.

        Raises a `TargetError` if it is not of that form, or its system not Linux or Android.
        """
        if triple is None:
            return cls.native()
        name = triple.strip().lower()
        parts = HOSTS.get(name, name).split("-")
        if len(parts) == 4:
            del parts[1]  # the vendor
        if len(parts) != 3 or not all(parts) or parts[1] != "linux":
            raise TargetError(
                f"The host triple {triple!r} was not understood: "
                f"{', '.join(HOSTS)} or ARCHITECTURE-linux-ABI was expected.",
                remedy="Use one of these names, or a triple such as x86_64-linux-gnu, "
                "aarch64-linux-gnu or aarch64-linux-android24.",
            )
        return cls(_ARCHITECTURES.get(parts[0], parts[0]), parts[2])

    @classmethod
    def native(cls) -> Host:
        """Return the machine that this process runs on."""
        machine = platform.machine().lower()
        is_musl = not platform.libc_ver()[0] and any(Path("/lib").glob("ld-musl-*"))
        return cls(_ARCHITECTURES.get(machine, machine), "musl" if is_musl else "gnu")

    @property
    def triple(self) -> str:
        """Return the three-part triple, as in names of cross compilers."""
        return f"{self.architecture}-linux-{self.abi}"

    @property
    def llvm_triple(self) -> str:
        """Return the four-part triple; LLVM takes Android's reserved registers from it only."""
        return f"{self.architecture}-unknown-linux-{self.abi}"

    @property
    def is_android(self) -> bool:
        """Return whether the C library is Android's."""
        return self.abi.startswith("android")

    @property
    def is_32_bit(self) -> bool:
        """Return whether addresses have 32 bits."""
        return self.architecture.startswith(("armv", "i")) or self.architecture == "arm"

    @property
    def android_abi(self) -> str | None:
        """Return Android's ABI name, such as arm64-v8a; ``None`` if it has none."""
        return _ANDROID_ABIS.get(self.architecture) if self.is_android else None

    @property
    def android_level(self) -> int:
        """Return the oldest Android API level that code runs on."""
        return int(re.sub(r"\D", "", self.abi) or 1)

    @property
    def is_native(self) -> bool:
        """Return whether this process could load a library of this host."""
        return self == Host.native()
