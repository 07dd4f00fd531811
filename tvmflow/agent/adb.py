"""Android phones at this machine, reached by the user's own adb."""

from __future__ import annotations

import os
import re
import secrets
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..devices.host import HOSTS, Host
from ..errors import AgentError
from .executable import agent_build, agent_executable
from .transports import CONNECT_S, SEND_S, ProcessStream, Stream, Transport

#: Folder of the agent on phones: the only one where a shell may write and execute programs.
FOLDER = "/data/local/tmp/tvmflow"
#: Hosts by Android's names of ABIs.
_HOSTS = {"arm64-v8a": "android-arm64", "armeabi-v7a": "android-armv7", "x86_64": "android-x64"}
#: First level of Android's interface whose shell carries bytes unchanged (Android 7).
_LEAST_LEVEL = 24
#: Environment variables that name a folder with ``platform-tools``.
_SDK_VARIABLES = ("ANDROID_HOME", "ANDROID_SDK_ROOT")
_LIST = "`adb devices -l` lists phones."
_FULL = "Free space on the phone: its /data is full."
#: Serial number and state in a line of ``adb devices -l``; serial numbers of phones on the wireless
#: network may contain spaces.
_LINE = re.compile(
    r"(\S.*?)\s+(device|offline|unauthorized|authorizing|connecting|host|no permissions|recovery|"
    r"bootloader|rescue|sideload|no device|unknown)(?=[\s;]|$)(.*)"
)
#: Reasons why a phone cannot be used, by the state that adb reports: what to do.
_STATES = {
    "unauthorized": "Accept this computer's key on the phone's screen (USB debugging).",
    "authorizing": "Accept this computer's key on the phone's screen (USB debugging).",
    "offline": "Unplug the phone and plug it in again, or run: adb reconnect",
    "no permissions": "Let this user access USB devices (udev rules; adb devices -l says more).",
    "recovery": "Start the phone's system.",
    "bootloader": "Start the phone's system.",
    "sideload": "Start the phone's system.",
}


@dataclass(frozen=True)
class Attached:
    """A line of ``adb devices -l``."""

    serial: str
    state: str
    model: str

    def __str__(self) -> str:
        return f"{self.serial} ({self.model or self.state})"


class Adb(Transport):
    """A phone at this machine: the one of a serial number, or the only one.

    Raises `AgentError` if adb is not installed, or the phone cannot be used.
    """

    def __init__(self, serial: str | None = None):
        self.name = "adb" if serial is None else f"adb:{serial}"
        self._adb = find_adb()
        phone = self._choose(serial)
        self.name = f"adb:{phone.serial}"
        self.model = phone.model
        self._serial = phone.serial

    @classmethod
    def all(cls) -> list[str]:
        """Return the serial numbers of the phones that can be used."""
        return [phone.serial for phone in list_phones(find_adb()) if phone.state == "device"]

    def start(self) -> Stream:
        """Send the agent if it is not there, and start it."""
        agent = self._install()
        # `-T`: without a terminal, which would change bytes.
        command = shlex.join(["exec", agent, "--folder", FOLDER])
        return ProcessStream([self._adb, "-s", self._serial, "shell", "-T", command])

    def host(self) -> Host:
        """Return the host that programs of the phone are compiled for."""
        command = (
            "getprop ro.product.cpu.abilist; getprop ro.build.version.sdk; "
            "getprop ro.build.version.release"
        )
        # Without `-T`, which the systems that are refused here do not know.
        facts = self._call(["shell", command], "Asking for its processor").splitlines()
        abis, level, release = (*map(str.strip, facts), "", "", "")[:3]
        if level.isdigit() and int(level) < _LEAST_LEVEL:
            raise AgentError(
                f"Using {self._phone} failed: it has Android {release}, and Android 7 or newer was "
                "expected, whose shell carries bytes unchanged.",
                remedy="Use a newer phone.",
            )
        for abi in abis.split(","):
            if abi in _HOSTS:
                return Host.parse(HOSTS[_HOSTS[abi]])
        raise AgentError(
            f"Using {self._phone} failed: its system runs programs for {abis or 'unknown ABIs'}; "
            f"there are agents for {', '.join(_HOSTS)}.",
            remedy="Use another phone.",
        )

    def clean(self) -> str:
        """Remove the agent's folder."""
        self._shell(f"rm -rf {FOLDER}", "Removing the agent's folder")
        return FOLDER

    def lost(self) -> str:
        """Return the state of the phone, if it is no longer there."""
        try:
            phones = list_phones(self._adb)
        except AgentError as error:
            return error.message
        found = next((phone for phone in phones if phone.serial == self._serial), None)
        if found is None:
            return f"{self._phone} is no longer attached"
        return "" if found.state == "device" else f"{self._phone} is {found.state}"

    @property
    def _phone(self) -> str:
        return f"the phone {self._serial}" + (f" ({self.model})" if self.model else "")

    def _choose(self, serial: str | None) -> Attached:
        phones = list_phones(self._adb)
        if serial is not None:
            phone = next((phone for phone in phones if phone.serial == serial), None)
            if phone is None:
                there = ", ".join(map(str, phones)) or "none"
                raise AgentError(
                    f"Using {self.name} failed: no phone of this serial number is attached; "
                    f"attached: {there}.",
                    remedy=f"Plug it in, and switch USB debugging on. {_LIST}",
                )
        else:
            ready = [phone for phone in phones if phone.state == "device"]
            if len(ready) > 1:
                raise AgentError(
                    f"Using {self.name} failed: {len(ready)} phones are attached: "
                    f"{', '.join(map(str, ready))}.",
                    remedy=f"Name one, such as `on=adb:{ready[0].serial}`.",
                )
            if not phones:
                raise AgentError(
                    f"Using {self.name} failed: no phone is attached.",
                    remedy="Plug one in, switch USB debugging on (developer options), and accept "
                    "this computer on its screen.",
                )
            phone = (ready or phones)[0]
        if phone.state != "device":
            raise AgentError(
                f"Using the phone {phone.serial} failed: it is {phone.state}.",
                remedy=_STATES.get(phone.state, f"Restart the phone. {_LIST}"),
            )
        return phone

    # -- the agent there --------------------------------------------------------------------

    def _install(self) -> str:
        """Send the agent unless it is there, and return its path."""
        executable = agent_executable(self.host())
        agent = f"{FOLDER}/agent-{agent_build()}"
        size = executable.stat().st_size
        check = f"test -x {agent} && stat -c %s {agent} || true"
        if self._shell(check, "Looking for the agent") == str(size):
            return agent
        # Agents of other versions are removed.
        self._shell(f"mkdir -p {FOLDER} && rm -f {FOLDER}/agent-*", "Creating the agent's folder")
        # Another process may send the agent at the same time, under another name.
        new = f"{agent}.{secrets.token_hex(4)}"
        try:
            self._call(["push", str(executable), new], "Sending the agent", SEND_S)
            # It gets its name when it has run: otherwise the next start would take it as usable.
            self._shell(
                f"chmod 755 {new} && {shlex.join([new, '--help'])} >/dev/null && mv {new} {agent}",
                "Starting the agent",
            )
        except AgentError:
            # A part of a file would keep a full disk full.
            with suppress(AgentError):
                self._shell(f"rm -f {new}", "Removing the agent")
            raise
        return agent

    def _shell(self, command: str, attempt: str) -> str:
        """Run a command of the phone's shell, and return its output."""
        return self._call(["shell", "-T", command], attempt).strip()

    def _call(self, words: Sequence[str], attempt: str, limit_s: float = CONNECT_S) -> str:
        done = run_adb([self._adb, "-s", self._serial, *words], limit_s, self._phone)
        if done.returncode:
            reason = said_last(done) or f"status {done.returncode}"
            printed = done.stdout + done.stderr
            remedy = f"Try it by hand: adb -s {self._serial} shell"
            if "No space left" in printed:
                remedy = _FULL
            elif "Permission denied" in printed or done.returncode == 126:
                remedy = f"This phone's shell may not write or run programs in {FOLDER}."
            elif lost := self.lost():
                reason, remedy = lost, f"Check the cable, and run the command again. {_LIST}"
            raise AgentError(
                f"{attempt} on {self._phone} failed: {reason}.",
                remedy=remedy,
                details=printed.strip() or None,
            )
        return done.stdout


def find_adb() -> str:
    """Return the path of the user's adb; raise `AgentError` if it is not installed."""
    found = shutil.which("adb")
    for variable in _SDK_VARIABLES:
        if found is None and (folder := os.environ.get(variable)):
            found = shutil.which("adb", path=str(Path(folder, "platform-tools")))
    if found is None:
        raise AgentError(
            "Reaching a phone failed: the program adb was not found on the path, nor in "
            f"{' or '.join(_SDK_VARIABLES)}.",
            remedy="Install Android's platform tools, such as Debian's package adb.",
        )
    return found


def list_phones(adb: str) -> list[Attached]:
    """Return the attached phones, also those that cannot be used."""
    done = run_adb([adb, "devices", "-l"], CONNECT_S, "adb's server")
    if done.returncode:
        raise AgentError(
            f"Starting adb's server failed: {said_last(done) or f'status {done.returncode}'}.",
            remedy="Another program may use its port (ANDROID_ADB_SERVER_PORT, 5037 by default); "
            "try it by hand: adb start-server",
            details=done.stderr.strip() or None,
        )
    found = []
    # Messages about the server may come before the list.
    for line in done.stdout.partition("List of devices attached")[2].splitlines():
        match = _LINE.match(line) or re.match(r"(\S+)\s+(\S+)(.*)", line)
        if match is None:
            continue
        serial, state, rest = match.groups()
        facts = dict(word.partition(":")[::2] for word in rest.split() if ":" in word)
        found.append(Attached(serial, state, facts.get("model", "").replace("_", " ")))
    return found


def run_adb(command: Sequence[str], limit_s: float, whom: str) -> subprocess.CompletedProcess[str]:
    """Run an adb command; raise `AgentError` if it does not end in time."""
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=limit_s,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise AgentError(
            f"Waiting for {whom} failed: no answer within {limit_s:.0f} s to "
            f"{shlex.join(['adb', *command[1:]])}.",
            remedy="Wake the phone up and unplug it, plug it in again; or: adb kill-server",
        ) from None


def said_last(done: subprocess.CompletedProcess[str]) -> str:
    """Return a failed command's error, or else its last line, without a full stop."""
    lines = [*done.stdout.strip().splitlines(), *done.stderr.strip().splitlines()]
    # `adb push` prints its speed after the error.
    errors = [line for line in lines if "error: " in line]
    last = (errors or lines or [""])[-1]
    return last.rpartition("error: ")[2].strip().rstrip(".")
