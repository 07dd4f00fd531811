"""Commands that are given a FIFO, a device or a huge file: none waits, or reads without end."""

from __future__ import annotations

import os

import pytest

#: A command that waits fails the test.
pytestmark = pytest.mark.timeout(60)

#: Commands, for a FIFO (@) and a module of the tests (MODULE) or its network (MODEL).
COMMANDS = [
    "run @ --random-seed 0",
    "run MODULE --inputs @",
    "bench @",
    "verify @ MODULE",
    "verify MODEL @",
    "inspect @",
    "profile @",
    "profile MODULE --html out.html --compare @",
    "isa @ --gpu sm_90",
    "package --aar out.aar @",
    "precompile @",
    "compile @",
    "compile MODEL --storage-overrides @",
    "compile MODEL --knobs @",
    "compile MODEL --ops @",
    "compile MODEL --shape x/in=1,3,8,8 --journal @",
    "journal ls @",
    "journal show @",
    "journal verify @",
    "journal compact @",
    "journal merge out.journal @",
    "journal import @ --journal out.journal",
    "journal import LOG --journal @",
    "farm status --tracker 127.0.0.1:1 --secret-file @",
]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("kind", ["FIFO", "device"])
def test_special_files_are_refused(cli, model, compiled, tmp_path, command, kind):
    path = tmp_path / "special"
    if kind == "FIFO":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    (tmp_path / "log.json").touch()
    names = {"@": path, "MODULE": compiled, "MODEL": model, "LOG": tmp_path / "log.json"}
    result = cli(*(os.fspath(names.get(word, word)) for word in command.split()))
    result.refused()
    assert "No such option" not in result.stderr
    assert path.name in result.stderr


@pytest.mark.parametrize(
    "command",
    ["compile MODEL --storage-overrides @", "farm status --tracker 127.0.0.1:1 --secret-file @"],
)
def test_what_is_larger_than_such_files_is_not_read(cli, model, tmp_path, command):
    path = tmp_path / "huge"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    path.chmod(0o600)
    names = {"@": path, "MODEL": model}
    cli(*(os.fspath(names.get(word, word)) for word in command.split())).refused("more than")
