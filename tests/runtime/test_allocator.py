"""Storage that TVM's virtual machine and generated code allocate."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax

pytestmark = pytest.mark.opencl

SHAPE = (1, 3, 7, 5, 4)
OTHER = (1, 2, 3, 5, 4)


@tvm_ffi.register_global_func("tvmflow.tests.copy", override=True)
def _copy(source: tvm.runtime.Tensor, target: tvm.runtime.Tensor) -> None:
    source.copyto(target)


def machine(storage_scope: str, tensors: list[tuple[tuple[int, ...], str]]) -> object:
    """Return a machine that copies its input into tensors on one storage, and returns the last."""
    builder = relax.ExecBuilder()
    constant = builder.convert_constant
    dtype = constant(tvm_ffi.dtype("float32"))
    with builder.function("main", num_inputs=1):
        storage = [builder.vm_state(), constant(tvm_ffi.Shape(SHAPE)), constant(0), dtype]
        storage.append(constant(storage_scope))
        builder.emit_call("vm.builtin.alloc_storage", args=storage, dst=builder.r(1))
        for shape, scope in tensors:
            tensor = [builder.r(1), constant(0), constant(tvm_ffi.Shape(shape)), dtype]
            if scope != "global":
                tensor.append(constant(scope))
            builder.emit_call("vm.builtin.alloc_tensor", args=tensor, dst=builder.r(2))
            copied = [builder.r(0), builder.r(2)]
            builder.emit_call("tvmflow.tests.copy", args=copied, dst=builder.r(3))
        builder.emit_ret(builder.r(2))
    return relax.VirtualMachine(builder.get(), tvm.opencl())


@pytest.fixture
def images() -> None:
    from tvmflow.runtime.devices import opencl_devices

    if not opencl_devices()[0].images:
        pytest.skip("the device has no images")


def check(run: object, shape: tuple[int, ...]) -> None:
    for turn in range(3):  # The later turns reuse what the first gave back.
        x = np.arange(np.prod(shape), dtype="float32").reshape(shape) + turn
        np.testing.assert_array_equal(run["main"](tvm.runtime.tensor(x, tvm.opencl())).numpy(), x)


def test_a_buffer_on_buffer_storage():
    check(machine("global", [(SHAPE, "global")]), SHAPE)


@pytest.mark.parametrize(
    "scope", ["global.texture", "global.texture-nhwc", "global.texture-weight"]
)
def test_an_image_on_image_storage(images, scope):
    check(machine(scope, [(SHAPE, scope)]), SHAPE)


def test_an_image_on_buffer_storage(images):
    # How TVM plans textures; without image-from-buffer the image is one of its own.
    check(machine("global", [(SHAPE, "global.texture")]), SHAPE)


def test_an_image_of_another_shape_on_image_storage(images):
    check(machine("global.texture", [(OTHER, "global.texture-weight")]), OTHER)


def test_a_buffer_too_small_for_its_tensor(images):
    with pytest.raises(RuntimeError, match="storage allocation failure"):
        machine("global", [((9, *SHAPE[1:]), "global.texture")])["main"](
            tvm.runtime.tensor(np.zeros((9, *SHAPE[1:]), "float32"), tvm.opencl())
        )


@pytest.mark.parametrize(("texel_bits", "dtype"), [(128, "float32"), (64, "float16")])
def test_textures_of_generated_code(images, texel_bits, dtype):
    allocate = tvm_ffi.get_global_func("device_api.opencl.alloc_nd")
    free = tvm_ffi.get_global_func("device_api.opencl.free_nd")
    extents = (ctypes.c_int64 * 3)(5, 7, 3)
    address = ctypes.c_void_p(ctypes.addressof(extents))
    code = tvm_ffi.dtype(dtype)
    first = allocate(4, 0, code.type_code, code.bits, "global.texture", 3, address, texel_bits)
    second = allocate(4, 0, code.type_code, code.bits, "global.texture", 3, address, texel_bits)
    assert first.value != second.value
    free(4, 0, "global.texture", first)
    # The next allocation gets the texture that was freed.
    again = allocate(4, 0, code.type_code, code.bits, "global.texture", 3, address, texel_bits)
    assert again.value == first.value
    for texture in (second, again):
        free(4, 0, "global.texture", texture)
    with pytest.raises(ValueError, match="32 bits a texel"):
        allocate(4, 0, code.type_code, code.bits, "global.texture", 3, address, 32)


def test_memory_that_is_cleared_is_released():
    run = machine("global", [(SHAPE, "global")])
    check(run, SHAPE)
    tvm_ffi.get_global_func("vm.builtin.memory_manager.clear")()
    check(run, SHAPE)
