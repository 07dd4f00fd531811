"""RPC servers have the plug-in, because TVM loads it in every process."""

from __future__ import annotations

import pytest


@pytest.mark.opencl
def test_a_library_runs_through_an_rpc_server(script, tmp_path):
    path = tmp_path / "triple.so"
    script("scale_library.py", path)
    result = script("remote.py", path)
    assert result["exists"]
    assert result["name"] == script("list_devices.py")["devices"][0]["name"]
    assert result["right"]
    assert all(us > 0 for us in result["us"])
