// `nvcuda::wmma`: every thread of a warp holds whole fragments and does all of the work.
#pragma once

#include "cuda_host.h"

namespace nvcuda::wmma {

struct matrix_a {};
struct matrix_b {};
struct accumulator {};
struct row_major {};
struct col_major {};
enum layout_t { mem_row_major, mem_col_major };

// Elements row by row.
template <typename Use, int M, int N, int K, typename T, typename Layout = void>
struct fragment {
  static constexpr int kRows = std::is_same_v<Use, matrix_b> ? K : M;
  static constexpr int kColumns = std::is_same_v<Use, matrix_a> ? K : N;
  static constexpr int num_elements = kRows * kColumns;
  T x[num_elements];
};

namespace detail {

// Visits each element with its place in memory.
template <typename F, typename Visit>
void Each(F& f, bool by_rows, unsigned stride, Visit visit) {
  for (int row = 0; row < F::kRows; ++row)
    for (int column = 0; column < F::kColumns; ++column)
      visit(f.x[row * F::kColumns + column],
            by_rows ? row * stride + column : column * stride + row);
}

// What the programming guide asks of addresses and strides.
template <typename T>
void CheckAddress(const T* address, unsigned stride) {
  if (reinterpret_cast<uintptr_t>(address) % 32)
    cuda_host::Fail("a fragment's address is not a multiple of 32 bytes");
  if (stride * sizeof(T) % 16)
    cuda_host::Fail("the rows of a fragment are not a multiple of 16 bytes apart");
}

}  // namespace detail

template <typename F, typename T>
void fill_fragment(F& f, T value) {
  for (auto& element : f.x) element = value;
}

template <typename Use, int M, int N, int K, typename T, typename Layout>
void load_matrix_sync(fragment<Use, M, N, K, T, Layout>& f, const T* address, unsigned stride) {
  detail::CheckAddress(address, stride);
  detail::Each(f, std::is_same_v<Layout, row_major>, stride,
               [&](T& element, unsigned at) { element = address[at]; });
}

template <int M, int N, int K, typename T>
void load_matrix_sync(fragment<accumulator, M, N, K, T>& f, const T* address, unsigned stride,
                      layout_t layout) {
  detail::CheckAddress(address, stride);
  detail::Each(f, layout == mem_row_major, stride,
               [&](T& element, unsigned at) { element = address[at]; });
}

template <int M, int N, int K, typename T>
void store_matrix_sync(T* address, const fragment<accumulator, M, N, K, T>& f, unsigned stride,
                       layout_t layout) {
  detail::CheckAddress(address, stride);
  detail::Each(f, layout == mem_row_major, stride,
               [&](const T& element, unsigned at) { address[at] = element; });
}

template <int M, int N, int K, typename In, typename LayoutA, typename LayoutB, typename Out>
void mma_sync(fragment<accumulator, M, N, K, Out>& d,
              const fragment<matrix_a, M, N, K, In, LayoutA>& a,
              const fragment<matrix_b, M, N, K, In, LayoutB>& b,
              const fragment<accumulator, M, N, K, Out>& c) {
  float left[M * K], right[K * N], sums[M * N];
  for (int i = 0; i < M * K; ++i) left[i] = a.x[i];
  for (int i = 0; i < K * N; ++i) right[i] = b.x[i];
  for (int i = 0; i < M * N; ++i) sums[i] = c.x[i];
  cuda_host::MultiplyAccumulate(M, N, K, left, right, sums);
  for (int i = 0; i < M * N; ++i) d.x[i] = static_cast<Out>(sums[i]);
}

}  // namespace nvcuda::wmma
