"""Launches of two profiles are tied together by the nodes that they compute."""

from __future__ import annotations

from dataclasses import replace

from support.profiles import synthetic_profile

from tvmflow.explain.profiling.page.write import Pair, pair


def with_nodes(*launches):
    """A profile whose kernels compute these nodes, or none and have this function."""
    profile = synthetic_profile(len(launches))
    kernels = [
        replace(kernel, nodes=(), function=nodes)
        if isinstance(nodes, str)
        else replace(kernel, nodes=nodes)
        for kernel, nodes in zip(profile.kernels, launches, strict=True)
    ]
    return replace(profile, kernels=tuple(kernels))


def test_the_same_nodes_are_a_pair():
    before = with_nodes(("conv", "clip"), ("add",))
    assert pair(before, before) == (Pair(("conv", "clip"), (0,), (0,)), Pair(("add",), (1,), (1,)))


def test_what_was_fused_is_one_pair_with_its_parts():
    before = with_nodes(("conv",), ("clip",), ("add", "relu"))
    after = with_nodes(("pool",), ("conv", "clip", "add"), ("relu",))
    assert pair(before, after) == (
        Pair(("pool",), (), (0,)),
        Pair(("conv", "clip", "add", "relu"), (0, 1, 2), (1, 2)),
    )


def test_several_launches_of_a_node():
    before = with_nodes(("conv",))
    after = with_nodes(("conv",), ("add",), ("conv",))
    assert pair(before, after)[0] == Pair(("conv",), (0,), (0, 2))


def test_kernels_without_nodes_are_tied_by_function():
    before = with_nodes("fused_add", ("conv",), "fused_mean")
    after = with_nodes(("fused_mean",), "fused_add")
    assert pair(before, after) == (
        # A node that has a function's name is not that function.
        Pair(("fused_mean",), (), (0,)),
        Pair(("fused_add",), (0,), (1,)),
        Pair(("conv",), (1,), ()),
        Pair(("fused_mean",), (2,), ()),
    )


def test_no_launch_is_lost():
    before, after = synthetic_profile(30), synthetic_profile(50, seed=2)
    pairs = pair(before, after)
    assert sorted(index for one in pairs for index in one.before) == list(range(30))
    assert sorted(index for one in pairs for index in one.after) == list(range(50))
