"""Refusals of the TIR pipeline: one clear sentence, from Python and from the command line."""

from __future__ import annotations

import pytest
import tvm
from support.kernels import build, by_channel, by_row, by_texel, opencl_target, pointwise, scheduled
from tvm import s_tir, te, tirx
from tvm.ir import Call
from tvm.script import tirx as T

from tvmflow.codegen.textures import STORE, TextureFlatten, VerifyTextures
from tvmflow.errors import CompileError
from tvmflow.ir.passes import original_errors, refuse
from tvmflow.ir.signatures import with_scopes

P1 = "global.texture:p1"
SHAPE = (1, 2, 3, 4, 4)


def refused(function, target=None):
    """Return the error of building a function; it must name the function."""
    with pytest.raises(CompileError) as error:
        build(function, target)
    message = error.value.message
    assert f"The primary function {function.attrs['global_symbol']} " in message
    assert "\n" not in message
    assert error.value.remedy
    return message


def double(scopes, name="scaled"):
    return pointwise(SHAPE, lambda x, i: x(*i) * 2.0, scopes, name)


def test_a_store_of_single_channels():
    message = refused(scheduled(double([None, P1], "one_by_one"), by_channel))
    assert "one_by_one stores single channels of the texture y" in message


def test_a_store_of_channels_in_a_plain_loop_is_gathered():
    def serial(sch, loops):
        sch.bind(sch.fuse(*loops[:-1]), "blockIdx.x")

    build(scheduled(double([P1, P1]), serial))


def test_a_store_whose_texel_depends_on_its_channel():
    # A transposition of columns and channels: a loop of four that spans four texels.
    x = te.placeholder(SHAPE, "float32", name="x")
    y = te.compute(SHAPE, lambda n, c, h, w, k: x[n, c, h, k, w], name="y")
    function = te.create_prim_func([x, y]).with_attr("global_symbol", "transposed")

    def across(sch, loops):
        n, c, h, w, k = loops
        sch.reorder(n, c, h, k, w)
        sch.bind(sch.fuse(n, c, h, k), "blockIdx.x")
        sch.vectorize(w)

    message = refused(scheduled(with_scopes(function, [P1, P1]), across))
    assert "stores single channels" in message


def test_half_a_texel():
    def halves(sch, loops):
        outer, inner = sch.split(loops[-1], [2, 2])
        sch.bind(sch.fuse(*loops[:-1], outer), "blockIdx.x")
        sch.vectorize(inner)

    assert "stores single channels" in refused(scheduled(double([P1, P1]), halves))


def test_an_image_that_one_kernel_writes_and_reads():
    @T.prim_func(s_tir=True)
    def in_place(y: T.Buffer((1, 1, 2, 3, 4), "float32", scope="global.texture:p1")):
        T.func_attr({"global_symbol": "in_place"})
        for i in T.thread_binding(6, thread="blockIdx.x"):
            for k in T.vectorized(4):
                y[0, 0, i // 3, i % 3, k] = y[0, 0, i // 3, i % 3, k] * T.float32(2)

    assert "writes and reads the image y" in refused(in_place)


def test_an_image_larger_than_the_devices():
    function = scheduled(double([P1, P1], "large"), by_texel)
    # Two panels stacked vertically: 4x6 texels.
    build(function, opencl_target(texture_spatial_limit=6))
    message = refused(function, opencl_target(texture_spatial_limit=5))
    assert "has an image of 4x6 texels, x" in message
    assert "at most 5x5" in message


def test_more_layers_than_the_devices():
    scope = "global.texture:2.3"
    function = scheduled(double([scope, None]), by_texel)
    build(function, opencl_target(texture_depth_limit=2))
    message = refused(function, opencl_target(texture_depth_limit=1))
    assert "an image of 4x3x2 texels, x" in message
    assert "in 1 layers" in message


def test_an_image_of_a_functions_own():
    x = te.placeholder(SHAPE, "float32", name="x")
    twice = te.compute(SHAPE, lambda *i: x(*i) * 2.0, name="twice")
    y = te.compute(SHAPE, lambda *i: twice(*i) + 1.0, name="y")
    sch = s_tir.Schedule(te.create_prim_func([x, y]).with_attr("global_symbol", "two_kernels"))
    for block in sch.get_child_blocks(sch.get_sblock("root")):
        *outer, lane = sch.get_loops(block)
        sch.bind(sch.fuse(*outer), "blockIdx.x")
        sch.vectorize(lane)
    sch.set_scope(sch.get_sblock("twice"), 0, P1)
    function = sch.mod["main"].with_attr("global_symbol", "two_kernels")
    message = refused(function)
    assert "two_kernels allocates the image twice" in message


# -- the verifier alone: what the passes before it should never let through ------------------------


@pytest.mark.parametrize(("scopes", "image"), [([P1, None], "x"), ([None, P1], "y")])
def test_an_access_that_was_left_unflattened(scopes, image):
    function = scheduled(double(scopes, "forgotten"), by_texel)
    message = f"forgotten treats the image {image} as memory"
    with pytest.raises(CompileError, match=message), original_errors():
        VerifyTextures(tvm.IRModule({"f": function}))


def test_stores_of_other_than_four_channels():
    image = tirx.decl_buffer((1, 1, 1, 1, 4), "float32", "image", scope=P1)
    for lanes in (1, 2, 8):
        value = tirx.const(1.5, "float32")
        value = tirx.Broadcast(value, lanes) if lanes > 1 else value
        zero = tirx.const(0, "int32")
        store = Call(STORE, [image.data, zero, zero, zero, tirx.const(128), value], ret_ty="void")
        function = tirx.PrimFunc([image], tirx.Evaluate(store))
        with (
            pytest.raises(CompileError, match=f"stores {lanes} of the 4 channels"),
            original_errors(),
        ):
            VerifyTextures(tvm.IRModule({"f": function}))


def test_what_is_right_passes():
    for how in (by_texel, by_row):
        function = scheduled(double([P1, "global.texture:p2"]), how)
        assert build(function) is not None


# -- errors on their way through TVM ---------------------------------------------------------------


def test_a_refusal_keeps_its_type_and_words_through_the_pass_manager():
    function = double([P1, P1], "whole")
    mod = tvm.IRModule({"whole": function})
    with pytest.raises(CompileError) as error, original_errors():
        VerifyTextures(mod)
    assert error.value.message.startswith("The primary function whole treats the image")
    assert error.value.remedy == "Compile with `storage=buffer`."
    assert error.value.__suppress_context__


def test_refusals_do_not_outlive_their_compilation():
    with pytest.raises(CompileError), original_errors():
        refuse(double([None, None]), "is the first", remedy="None.")
    # An error of another kind is not replaced by the earlier one.
    with pytest.raises(ZeroDivisionError), original_errors():
        raise ZeroDivisionError
    refused = pytest.raises(CompileError, match="second")
    with refused, original_errors():
        refuse(double([None, None]), "is the second", remedy="None.")


def test_the_next_compilation_works_after_a_refusal():
    for _ in range(3):
        refused(scheduled(double([None, P1]), by_channel))
        build(scheduled(double([P1, P1]), by_texel))


def test_a_buffer_is_left_alone():
    function = double([None, None])
    tvm.ir.assert_structural_equal(
        TextureFlatten(tvm.IRModule({"f": function}))["f"].body, function.body
    )
    VerifyTextures(tvm.IRModule({"f": function}))
