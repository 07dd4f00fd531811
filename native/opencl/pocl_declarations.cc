#include "pocl_declarations.h"

namespace tvmflow::opencl {
namespace {

// The attributes are those in Clang's header, so that the generated code is the same.
constexpr const char* kCommon = R"(
#define TVMFLOW_CONST __attribute__((overloadable, const))
#define TVMFLOW_PURE __attribute__((overloadable, pure))
#define TVMFLOW_VECTORS(M, ...) M(2, __VA_ARGS__) M(4, __VA_ARGS__) M(8, __VA_ARGS__) M(16, __VA_ARGS__)
#define TVMFLOW_WIDTHS(M, ...) M(, __VA_ARGS__) TVMFLOW_VECTORS(M, __VA_ARGS__)
#define TVMFLOW_INTEGERS(M, ...) M(char, __VA_ARGS__) M(uchar, __VA_ARGS__) M(short, __VA_ARGS__) \
  M(ushort, __VA_ARGS__) M(int, __VA_ARGS__) M(uint, __VA_ARGS__) M(long, __VA_ARGS__) M(ulong, __VA_ARGS__)
size_t TVMFLOW_CONST get_global_id(uint);
size_t TVMFLOW_CONST get_local_id(uint);
size_t TVMFLOW_CONST get_group_id(uint);
void __attribute__((overloadable, convergent)) barrier(cl_mem_fence_flags);
#define TVMFLOW_THREE(n, f, t) t##n TVMFLOW_CONST f(t##n, t##n, t##n);
TVMFLOW_WIDTHS(TVMFLOW_THREE, fma, float)
TVMFLOW_WIDTHS(TVMFLOW_THREE, mad, float)
#define TVMFLOW_TWO(n, f, t) t##n TVMFLOW_CONST f(t##n, t##n);
TVMFLOW_WIDTHS(TVMFLOW_TWO, fmax, float)
TVMFLOW_WIDTHS(TVMFLOW_TWO, fmin, float)
TVMFLOW_WIDTHS(TVMFLOW_TWO, max, float)
TVMFLOW_WIDTHS(TVMFLOW_TWO, min, float)
TVMFLOW_WIDTHS(TVMFLOW_TWO, max, int)
TVMFLOW_WIDTHS(TVMFLOW_TWO, min, int)
TVMFLOW_WIDTHS(TVMFLOW_TWO, max, long)
TVMFLOW_WIDTHS(TVMFLOW_TWO, min, long)
#define TVMFLOW_ONE(n, f) float##n TVMFLOW_CONST f(float##n);
TVMFLOW_WIDTHS(TVMFLOW_ONE, exp)
TVMFLOW_WIDTHS(TVMFLOW_ONE, floor)
TVMFLOW_WIDTHS(TVMFLOW_ONE, fabs)
TVMFLOW_WIDTHS(TVMFLOW_ONE, log)
TVMFLOW_WIDTHS(TVMFLOW_ONE, rint)
TVMFLOW_WIDTHS(TVMFLOW_ONE, sqrt)
TVMFLOW_WIDTHS(TVMFLOW_ONE, rsqrt)
TVMFLOW_WIDTHS(TVMFLOW_ONE, tanh)
)";

struct Block {
  const char* word;
  const char* text;
};

constexpr Block kBlocks[] = {
    {"convert_", R"(
#define TVMFLOW_CONVERT(n, from, to) to##n TVMFLOW_CONST convert_##to##n(from##n);
#define TVMFLOW_FROM(from, to) TVMFLOW_WIDTHS(TVMFLOW_CONVERT, from, to)
#define TVMFLOW_TO(to) TVMFLOW_INTEGERS(TVMFLOW_FROM, to) TVMFLOW_FROM(float, to)
)"},
    {"convert_char", "TVMFLOW_TO(char)\n"},
    {"convert_uchar", "TVMFLOW_TO(uchar)\n"},
    {"convert_short", "TVMFLOW_TO(short)\n"},
    {"convert_ushort", "TVMFLOW_TO(ushort)\n"},
    {"convert_int", "TVMFLOW_TO(int)\n"},
    {"convert_uint", "TVMFLOW_TO(uint)\n"},
    {"convert_long", "TVMFLOW_TO(long)\n"},
    {"convert_ulong", "TVMFLOW_TO(ulong)\n"},
    {"convert_float", "TVMFLOW_TO(float)\n"},
    {"select", R"(
#define TVMFLOW_SELECT(n, t, c) t##n TVMFLOW_CONST select(t##n, t##n, c##n);
TVMFLOW_WIDTHS(TVMFLOW_SELECT, float, int)
TVMFLOW_WIDTHS(TVMFLOW_SELECT, float, uint)
TVMFLOW_WIDTHS(TVMFLOW_SELECT, int, int)
TVMFLOW_WIDTHS(TVMFLOW_SELECT, int, uint)
)"},
    {"vload", R"(
#define TVMFLOW_LOAD(n, t, space) t##n TVMFLOW_PURE vload##n(size_t, const space t*);
#define TVMFLOW_LOADS(t, space) TVMFLOW_VECTORS(TVMFLOW_LOAD, t, space)
TVMFLOW_INTEGERS(TVMFLOW_LOADS, __constant) TVMFLOW_LOADS(float, __constant)
#ifdef __opencl_c_generic_address_space
TVMFLOW_INTEGERS(TVMFLOW_LOADS, ) TVMFLOW_LOADS(float, )
#endif
#ifdef __opencl_c_named_address_space_builtins
TVMFLOW_INTEGERS(TVMFLOW_LOADS, __global) TVMFLOW_LOADS(float, __global)
TVMFLOW_INTEGERS(TVMFLOW_LOADS, __local) TVMFLOW_LOADS(float, __local)
TVMFLOW_INTEGERS(TVMFLOW_LOADS, __private) TVMFLOW_LOADS(float, __private)
#endif
)"},
    {"vstore", R"(
#define TVMFLOW_STORE_TO(n, t, space) void __attribute__((overloadable)) vstore##n(t##n, size_t, space t*);
#define TVMFLOW_STORES(t, space) TVMFLOW_VECTORS(TVMFLOW_STORE_TO, t, space)
#ifdef __opencl_c_generic_address_space
TVMFLOW_INTEGERS(TVMFLOW_STORES, ) TVMFLOW_STORES(float, )
#endif
#ifdef __opencl_c_named_address_space_builtins
TVMFLOW_INTEGERS(TVMFLOW_STORES, __global) TVMFLOW_STORES(float, __global)
TVMFLOW_INTEGERS(TVMFLOW_STORES, __local) TVMFLOW_STORES(float, __local)
TVMFLOW_INTEGERS(TVMFLOW_STORES, __private) TVMFLOW_STORES(float, __private)
#endif
)"},
};

}  // namespace

std::string DeclarationsFor(const std::string& source) {
  std::string text = kCommon;
  for (const Block& block : kBlocks)
    if (source.find(block.word) != std::string::npos) text += block.text;
  return text;
}

}  // namespace tvmflow::opencl
