"""Names of modules that tests share are unique: Python keeps one module per name."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent


def test_no_two_helpers_have_the_same_name():
    helpers = [
        path.stem
        for path in HERE.rglob("*.py")
        if not path.name.startswith(("test_", "__")) and path.name != "conftest.py"
    ]
    assert [name for name, count in Counter(helpers).items() if count > 1] == []
