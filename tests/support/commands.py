"""Commands that tests run."""

from __future__ import annotations

import os
import subprocess


def run(
    *command: object, status: int | None = 0, timeout: float = 600, **env: object
) -> subprocess.CompletedProcess[str]:
    """Run a command with more variables; check its exit status, unless that is ``None``."""
    done = subprocess.run(
        list(map(str, command)),
        env={**os.environ, **{name: str(value) for name, value in env.items()}},
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )
    if status is not None:
        assert done.returncode == status, done.stdout + done.stderr
    return done


def output(*command: object, **env: object) -> str:
    """Return the output of a command that must succeed."""
    return run(*command, **env).stdout
