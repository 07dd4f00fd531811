// Tensor cores and asynchronous copies: `nvcuda::wmma`, and what `cuda_host.py` makes of PTX.
#pragma once

#include <algorithm>

#include "cuda_threads.h"

namespace nvcuda::wmma {

struct matrix_a {};
struct matrix_b {};
struct accumulator {};
struct row_major {};
struct col_major {};
enum layout_t { mem_row_major, mem_col_major };

// Every thread holds the whole fragment, row by row.
template <typename Use, int M, int N, int K, typename T, typename Layout = void>
struct fragment {
  static constexpr int kRows = std::is_same_v<Use, matrix_b> ? K : M;
  static constexpr int kColumns = std::is_same_v<Use, matrix_a> ? K : N;
  static constexpr int num_elements = kRows * kColumns;
  T x[num_elements];
};

namespace detail {

template <typename F, typename Visit>
void Each(F& f, bool by_rows, unsigned stride, Visit visit) {
  for (int row = 0; row < F::kRows; ++row)
    for (int column = 0; column < F::kColumns; ++column)
      visit(f.x[row * F::kColumns + column],
            by_rows ? row * stride + column : column * stride + row);
}

// What the hardware asks of an address; rows are read 16 bytes at a time.
template <typename T>
void CheckAddress(const T* address, unsigned stride) {
  if (reinterpret_cast<uintptr_t>(address) % 32)
    cuda_host::Fail("%s: a fragment's address is not a multiple of 32 bytes", cuda_host::grid.name);
  if (stride * sizeof(T) % 16)
    cuda_host::Fail("%s: rows of a fragment are %zu bytes apart, not a multiple of 16",
                    cuda_host::grid.name, stride * sizeof(T));
}

}  // namespace detail

template <typename F, typename T>
void fill_fragment(F& f, T value) {
  std::fill(std::begin(f.x), std::end(f.x), value);
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
  float left[M * K], right[K * N];
  std::copy(std::begin(a.x), std::end(a.x), left);
  std::copy(std::begin(b.x), std::end(b.x), right);
  for (int row = 0; row < M; ++row) {
    float sums[N] = {};
    for (int k = 0; k < K; ++k)
      for (int column = 0; column < N; ++column)
        sums[column] += left[row * K + k] * right[k * N + column];
    for (int column = 0; column < N; ++column)
      d.x[row * N + column] = static_cast<Out>(sums[column] + float(c.x[row * N + column]));
  }
}

}  // namespace nvcuda::wmma

namespace cuda_host {

inline void CopyAsync(void* to, const void* from, size_t bytes, size_t used) {
  if ((bytes != 4 && bytes != 8 && bytes != 16) || reinterpret_cast<uintptr_t>(to) % bytes ||
      (used && reinterpret_cast<uintptr_t>(from) % bytes))
    Fail("%s: an asynchronous copy of %zu bytes is not aligned", grid.name, bytes);
  grid.current->copies.push_back({to, from, bytes, used});
}

inline void CommitGroup() {
  grid.current->groups.push_back(std::move(grid.current->copies));
  grid.current->copies.clear();
}

// Completes all groups but the `left` newest.
inline void WaitGroup(size_t left) {
  auto& groups = grid.current->groups;
  for (; groups.size() > left; groups.pop_front()) {
    for (const Copy& copy : groups.front()) {
      std::memcpy(copy.to, copy.from, copy.used);
      std::memset(static_cast<char*>(copy.to) + copy.used, 0, copy.bytes - copy.used);
    }
  }
}

}  // namespace cuda_host
