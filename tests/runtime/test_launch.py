"""Kernel launches: arguments, extents, threads, and errors that tell what was attempted."""

from __future__ import annotations


def test_launches_on_every_driver(driver, script):
    options = ["--images"] if driver.images else []
    # Oclgrind simulates one kernel at a time, and aborts when two threads wait for one each.
    if driver.name != "oclgrind":
        options.append("--threads")
    assert script("launches.py", *options, env=driver.env) == []


def test_a_work_group_that_is_too_large(fake, script):
    result = script("attempt.py", "launch", 2, 128, env=fake)
    assert result["type"] == "DeviceError"
    assert "CL_INVALID_WORK_GROUP_SIZE (-54)" in result["message"]
    assert "kernel 'scale2'" in result["message"]
    assert "global size 256 and work-groups of 128" in result["message"]
    assert "64 work-items a group for this kernel" in result["message"]


def test_a_tensor_of_another_device(fake, script):
    env = {**fake, "FAKE_DEVICES": "A:One:gpu,A:Two:gpu"}
    result = script("attempt.py", "other_device", env=env)
    assert result["type"] == "ValueError"
    assert "'Two' (opencl:1, A)" in result["message"]
    assert "'One' (opencl:0, A)" in result["message"]


def test_a_tensor_of_the_host(fake, script):
    result = script("attempt.py", "host_tensor", env=fake)
    assert result["type"] == "ValueError"
    assert "tensor on an OpenCL device" in result["message"]


def test_too_few_arguments(fake, script):
    result = script("attempt.py", "too_few_arguments", env=fake)
    assert "expects 4 arguments, but got 2" in result["message"]
