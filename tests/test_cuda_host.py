"""Faults that CUDA tests on the host find, in kernels that were broken on purpose."""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import asdict

import numpy as np
import pytest
import tvm_ffi
from support.cuda_host import ON_GPU, cuda_host
from support.operators import check, conv, feeds_for, single

import tvmflow
import tvmflow.compiler.generate  # (registers the post-processing of CUDA source)
from tvmflow.schedules.gemm_simt import Knobs as Simt
from tvmflow.schedules.gemm_tensor import Knobs as Tensor
from tvmflow.verify.tolerance import STORED_AS_HALF, assert_close

pytestmark = [
    pytest.mark.cuda_host,
    pytest.mark.onnxruntime,
    pytest.mark.skipif(ON_GPU, reason="the GPU takes the host's place"),
]

POSTPROCESS = "tvm_callback_cuda_postproc"


def matmul():
    """Return a product that copies both operands to shared memory."""
    return single("MatMul", [(2, 20, 33), (2, 33, 18)])


def run(model):
    with closing(tvmflow.compile(model, target="cuda")) as module:
        return cuda_host()(module, feeds_for(model))["y"]


@pytest.fixture
def edit():
    """Return a function that sets an edit of the next modules' source."""
    own = tvm_ffi.get_global_func(POSTPROCESS)

    def use(pattern, replacement, count=0):
        def replace(source, target):
            edited, changes = re.subn(pattern, replacement, str(own(source, target)), count=count)
            assert changes, f"the source has no {pattern}"
            return edited

        tvm_ffi.register_global_func(POSTPROCESS, replace, override=True)

    yield use
    tvm_ffi.register_global_func(POSTPROCESS, own, override=True)


def test_right_kernels_pass():
    assert check(matmul(), "cuda", "nvidia") == ["matmul"]


@pytest.mark.parametrize(
    ("pattern", "replacement", "found"),
    [
        pytest.param(r"__syncthreads\(\);", "", "depends on the order of threads", id="no_barrier"),
        pytest.param(
            r"__syncthreads\(\);",
            "if (threadIdx.x) __syncthreads();",
            "end without a barrier",
            id="barrier_for_some",
        ),
        pytest.param(
            r"(__shared__ .*)\[200\];",
            r"\1[100];",
            "out of bounds|buffer-overflow",
            id="beyond_shared_memory",
        ),
        pytest.param(r"< 33\)", "< 34)", "heap-buffer-overflow", id="beyond_a_tensor"),
        pytest.param(
            r"\(float4\*\)\((matmul_right_shared_ptr)",
            r"(float4*)(1 + \1",
            "misaligned address",
            id="misaligned_vector",
        ),
    ],
)
def test_a_broken_kernel_is_found(pattern, replacement, found, edit):
    edit(pattern, replacement)
    with pytest.raises(AssertionError, match=found):
        run(matmul())


def test_values_that_nobody_wrote_are_not_numbers(edit):
    edit(r"matmul_left_shared_ptr[^;]* = condval;", "")
    assert np.isnan(run(matmul())).all()


# -- what TVM writes for tensor cores and asynchronous copies ----------------------------------

#: Replacement of the kernel; all threads do the same.
TENSOR_CORES = r"""\1
  __shared__ alignas(64) half left[256];
  __shared__ alignas(64) half right[256];
  __shared__ alignas(64) float product[256];
  for (int i = 0; i < 256; ++i) {
    left[i] = __float2half_rn(x0_0_0_ptr[i]);
    right[i] = ((half)x1_1_1_ptr[i]);
  }
  __syncthreads();
  nvcuda::wmma::fragment<nvcuda::wmma::matrix_a, 16, 16, 16, half, nvcuda::wmma::row_major> a[1];
  nvcuda::wmma::fragment<nvcuda::wmma::matrix_b, 16, 16, 16, half, nvcuda::wmma::LAYOUT> b[1];
  nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 16, 16, 16, float> c[1];
  nvcuda::wmma::load_matrix_sync(a[0], (&(left[0])), 16);
  nvcuda::wmma::load_matrix_sync(b[0], (&(right[0])), 16);
  nvcuda::wmma::fill_fragment(c[0], 0x0p+0f);
  nvcuda::wmma::mma_sync(c[0], a[0], b[0], c[0]);
  nvcuda::wmma::store_matrix_sync((&(product[0])), c[0], 16, nvcuda::wmma::mem_row_major);
  __syncthreads();
  for (int i = 0; i < 256; ++i) crop_ptr[i] = product[i];
}
"""
#: TVM's copies with and without a predicate; every fourth one copies zeros.
COPIES = r"""
__forceinline__ __device__ void tvm_builtin_ptx_cp_async_wait_group_async_wait_group_0() {
  asm volatile("cp.async.wait_group LEFT;" :  :  : "memory");
}
__forceinline__ __device__ void tvm_builtin_ptx_cp_async_commit_group_async_commit_group() {
  asm volatile("cp.async.commit_group;" :  : );
}
__forceinline__ __device__ void ptx_cp_async_legacy_cg_16_4_4(
    void* dst, int dst_off, void* src, int src_off) {
  uint8_t* dst_p = (uint8_t*)dst + dst_off * 4;
  uint8_t* src_p = (uint8_t*)src + src_off * 4;
  unsigned int dst_addr = __cvta_generic_to_shared(dst_p);
  asm volatile("cp.async.cg.shared.global [%0], [%1], %2;"
    :: "r"(dst_addr), "l"(src_p), "n"(16));
}
__forceinline__ __device__ void ptx_cp_async_legacy_pred_cg_16_4_4(
    void* dst, int dst_off, void* src, int src_off, int predicate) {
  uint8_t* dst_p = (uint8_t*)dst + dst_off * 4;
  uint8_t* src_p = (uint8_t*)src + src_off * 4;
  unsigned int dst_addr = __cvta_generic_to_shared(dst_p);
  __asm__ __volatile__(
    "cp.async.cg.shared.global [%0], [%1], %2, %3;"
    :: "r"(dst_addr), "l"(src_p), "n"(16), "r"(predicate ? 16 : 0)
  );
}
\1
  extern __shared__ __align__(64) float dynamic_ptr[];
  __shared__ alignas(64) float copied[256];
  if (threadIdx.x + threadIdx.y == 0) {
    for (int i = 0; i < 32; ++i) ptx_cp_async_legacy_cg_16_4_4(copied, i * 4, x0_0_0_ptr, i * 4);
    tvm_builtin_ptx_cp_async_commit_group_async_commit_group();
    for (int i = 32; i < 64; ++i)
      ptx_cp_async_legacy_pred_cg_16_4_4(copied, i * 4, x0_0_0_ptr, i * 4, i % 4 != 3);
    tvm_builtin_ptx_cp_async_commit_group_async_commit_group();
    tvm_builtin_ptx_cp_async_wait_group_async_wait_group_0();
  }
  __syncthreads();
  for (int i = 0; i < 256; ++i) crop_ptr[i] = copied[i];
}
"""
KERNEL = r"(extern \"C\" __global__ void [^;{]*\{)\n(?s:.*)"


@pytest.mark.parametrize("layout", ["row_major", "col_major"])
def test_tensor_cores(layout, edit):
    edit(KERNEL, TENSOR_CORES.replace("LAYOUT", layout))
    model = single("MatMul", [(16, 16), (16, 16)])
    left, right = feeds_for(model).values()
    right = right.T if layout == "col_major" else right
    assert_close(run(model), left @ right, STORED_AS_HALF, layout)


def test_asynchronous_copies(edit):
    edit(KERNEL, COPIES.replace("LEFT", "0"))
    model = single("MatMul", [(16, 16), (16, 16)])
    expected = feeds_for(model)["x0"].copy()
    expected.reshape(64, 4)[35::4] = 0
    assert np.array_equal(run(model), expected)


def test_an_asynchronous_copy_that_nobody_waits_for(edit):
    edit(KERNEL, COPIES.replace("LEFT", "1"))
    with pytest.raises(AssertionError, match="nobody has waited for"):
        run(single("MatMul", [(16, 16), (16, 16)]))


# -- barriers of a product whose tiles are copied ahead --------------------------------------------

#: A step of the loop over tiles: its wait and barrier, its copies, and the rest.
STEP = re.compile(
    r"(?P<wait> +tvm_builtin_ptx_cp_async_wait_group_\w+\(\);\n)(?P<barrier> +__syncthreads\(\);\n)"
    r"(?P<copies>(?:(?!__syncthreads|wait_group).)*?commit_group\w*\(\);\n)",
    re.DOTALL,
)


#: Knobs with several warps, each of which reads only what it copies itself.
SEVERAL_WARPS = {"fp16": Tensor(32, 32, 32, 2, 2, 3, 1), "fp32": Simt(2, 1, 16, 4, 16, 3, 1)}


@pytest.mark.parametrize("dtype", ["fp16", pytest.param("fp32", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "form",
    [
        pytest.param(r"\g<wait>\g<copies>\g<barrier>", id="copies_over_what_others_read"),
        pytest.param(r"\g<barrier>\g<wait>\g<copies>", id="reads_before_others_have_copied"),
    ],
)
def test_the_barrier_of_a_step_stands_where_it_must(dtype, form, edit):
    edit(STEP, form)
    model = conv((1, 256, 8, 12), 96, (1, 1), pad=0)
    feeds, name = feeds_for(model), "fused_conv2d_add_relu"
    options = {"dtype": dtype, "knobs": {name: asdict(SEVERAL_WARPS[dtype])}}
    with closing(tvmflow.compile(model, target="cuda", **options)) as module:
        assert module.metadata["schedules"][name]["source"] == "given"
        with pytest.raises(AssertionError, match="depends on the order of threads"):
            cuda_host()(module, feeds)
