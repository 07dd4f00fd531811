"""The memory plan: no tensor is overwritten before its last reader, and little memory is wasted."""

from __future__ import annotations

import random

import pytest
from support.first_stages import compiled_until
from support.networks import NETWORKS

from tvmflow.graph.memory import ALIGNMENT, MemoryPlan, Tensor, assign_blocks, shared_sizes
from tvmflow.ir.scope import HALF_BUFFER, is_half
from tvmflow.models import build as build_model


def random_tensors(generator: random.Random) -> list[Tensor]:
    tensors = []
    for number in range(generator.randrange(1, 40)):
        first = generator.randrange(30)
        tensor = Tensor(f"t{number}", (), "float32", first=first)
        tensor.last = first + generator.choice([0, 1, 1, 1, 2, 5, 20])
        kind = generator.randrange(3)
        blocks, height, width = (generator.randrange(1, n) for n in (9, 20, 20))
        if kind == 0:
            tensor.shape = (generator.randrange(1, 5000),)
            tensor.scope = generator.choice([None, HALF_BUFFER])
        else:
            tensor.shape = (1, blocks, height, width, 4)
            half = "-half" if kind == 2 else ""
            tensor.scope = f"global.texture{half}:p{generator.choice([1, 2, 4])}"
        tensors.append(tensor)
    return tensors


def check_plan(plan: MemoryPlan) -> None:
    """Check the invariants of every plan."""
    for number, block in enumerate(plan.blocks):
        assert block.tensors
        for index, tensor in enumerate(block.tensors):
            assert tensor.block == number
            assert tensor.kind == block.kind
            for other in block.tensors[:index]:
                assert tensor.last < other.first or other.last < tensor.first
            # The block is large enough.
            if tensor.extent is None:
                assert tensor.bytes <= block.bytes
                assert block.bytes % ALIGNMENT == 0
            else:
                assert tensor.extent.width <= block.extent.width
                assert tensor.extent.height <= block.extent.height
                assert tensor.extent.layers <= block.extent.layers
                assert block.extent.texels * (8 if is_half(block.kind) else 16) == block.bytes
    in_blocks = [t for block in plan.blocks for t in block.tensors]
    assert len({id(t) for t in in_blocks}) == len(in_blocks)
    assert {id(t) for t in in_blocks} == {id(t) for t in plan.tensors if t.block is not None}
    assert plan.peak_bytes >= plan.lower_bound_bytes


@pytest.mark.parametrize("seed", range(60))
def test_no_two_tensors_that_live_at_one_time_share_a_block(seed):
    tensors = random_tensors(random.Random(seed))
    plan = MemoryPlan(tensors, assign_blocks(tensors))
    check_plan(plan)
    assert all(t.block is not None for t in tensors)
    # No worse than no plan at all, except for alignment and padding of images.
    alone = sum(block.bytes for t in tensors for block in assign_blocks([t]))
    check_plan(MemoryPlan(tensors, assign_blocks(tensors)))
    assert plan.peak_bytes <= alone


def test_the_lower_bound_is_the_most_that_lives_at_one_time():
    def tensor(size: int, first: int, last: int) -> Tensor:
        return Tensor("t", (size,), "float32", first=first, last=last)

    tensors = [tensor(100, 0, 2), tensor(50, 1, 1), tensor(70, 2, 4), tensor(10, 4, 5)]
    plan = MemoryPlan(tensors, assign_blocks(tensors))
    assert plan.lower_bound_bytes == 4 * (100 + 70)
    # 50 and 70 share a block, and so do 100 and 10.
    assert [t.block for t in tensors] == [0, 1, 1, 0]


class CountingTensor(Tensor):
    """A tensor that counts the reads of its first and last step."""

    looked_at = 0

    def __getattribute__(self, name: str) -> object:
        if name in ("first", "last"):
            CountingTensor.looked_at += 1
        return super().__getattribute__(name)


@pytest.mark.parametrize("readers", ["next", "end"])
def test_the_life_of_each_of_many_tensors_is_looked_at_a_few_times(readers):
    """The tensors form a chain, or parts that are joined at the end."""
    count, life = 600, 1 if readers == "next" else 600
    tensors = [
        CountingTensor(f"t{i}", (8,), "float32", first=i, last=min(i + life, count))
        for i in range(count)
    ]
    CountingTensor.looked_at = 0
    plan = MemoryPlan(tensors, assign_blocks(tensors))
    assert plan.lower_bound_bytes == 4 * 8 * (2 if readers == "next" else count)
    assert CountingTensor.looked_at < 20 * count
    assert len(plan.blocks) == (2 if readers == "next" else count)


def test_a_half_texture_and_a_texture_share_nothing():
    shape = (1, 1, 4, 4, 4)
    single = Tensor("a", shape, "float32", "global.texture:p1", 0, 1)
    half = Tensor("b", shape, "float32", "global.texture-half:p1", 2, 3)
    assert half.bytes * 2 == single.bytes
    assert len(assign_blocks([single, half])) == 2


# -- plans of networks ------------------------------------------------------------------------


def plan_of(model, storage="texture", half=False):
    """Plan the memory only: nothing is built or run."""
    dtype = "fp16" if half else "fp32"
    return compiled_until("lower", model, device="adreno", storage=storage, dtype=dtype).memory


@pytest.mark.parametrize("storage", ["texture", "buffer", "auto"])
@pytest.mark.parametrize("network", NETWORKS)
def test_plans_of_networks(network, storage):
    plan = plan_of(NETWORKS[network](), storage)
    check_plan(plan)
    assert len({t.name for t in plan.tensors}) == len(plan.tensors)
    for tensor in plan.tensors:
        assert tensor.producer
        assert tensor.producer == plan.steps[tensor.first]
        assert 0 <= tensor.first <= tensor.last < len(plan.steps)
        # Step by step: each reader is called while the tensor is alive.
        for reader in tensor.readers:
            assert reader in plan.steps[tensor.first + 1 : tensor.last + 1]
        if tensor.readers:
            assert plan.steps[tensor.last] in tensor.readers


@pytest.mark.parametrize("half", [False, True])
def test_peak_memory_of_mobilenet_v2_is_near_the_bound(half, tmp_path):
    path = tmp_path / "mobilenet_v2.onnx"
    build_model("mobilenet_v2", path, size=224)
    plan = plan_of(path, half=half)
    check_plan(plan)
    textures = [t for t in plan.tensors if t.is_image]
    assert len(textures) >= 0.9 * len(plan.tensors)
    assert plan.peak_bytes <= 1.3 * plan.lower_bound_bytes


def test_the_report_is_complete():
    plan = plan_of(NETWORKS["bottlenecks"]())
    report = plan.report()
    assert report["peak_bytes"] == sum(block["bytes"] for block in report["blocks"])
    assert report["steps"] == plan.steps
    tensor = next(t for t in report["tensors"] if t["name"] == "t1")
    assert tensor["storage"] == "texture"
    assert tensor["layout"] == "NCHW4c"
    assert tensor["shape"][-1] == 4
    assert "x" in tensor["image"]
    assert tensor["producer"].startswith("fused_conv2d")
    assert tensor["readers"]


# -- memory of several plans --------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
def test_shared_sizes_fit_every_plan(seed):
    draw = random.Random(seed)
    plans = []
    for _ in range(4):
        tensors = random_tensors(draw)
        plans.append(MemoryPlan(tensors, assign_blocks(tensors)))
    sizes, total = shared_sizes(plans)
    for plan, own in zip(plans, sizes, strict=True):
        for block, size in zip(plan.allocations, own, strict=True):
            assert size.bytes >= block.bytes
            if block.extent is not None:
                assert size.extent is not None
                for side in ("width", "height", "layers"):
                    assert getattr(size.extent, side) >= getattr(block.extent, side)
    peaks = [plan.peak_bytes for plan in plans]
    assert max(peaks) <= total <= sum(peaks)


def test_plans_of_one_network_for_several_batches_need_the_memory_of_the_largest():
    def plan(batch: int) -> MemoryPlan:
        sizes = ((100, 0, 2), (50, 1, 3), (70, 3, 4))
        tensors = [
            Tensor(f"t{n}", (batch * size,), "float32", first=first, last=last)
            for n, (size, first, last) in enumerate(sizes)
        ]
        return MemoryPlan(tensors, assign_blocks(tensors))

    plans = [plan(batch) for batch in (1, 8, 2)]
    sizes, total = shared_sizes(plans)
    assert total == plans[1].peak_bytes
    assert {tuple(sorted(size.bytes for size in own)) for own in sizes} == {
        tuple(sorted(block.bytes for block in plans[1].blocks))
    }
