#include "errors.h"

#include <array>

#include "../core/error_codes.h"

namespace tvmflow::opencl {
namespace {

struct CodeName {
  cl_int code;
  const char* name;
  const char* hint;
};

constexpr std::array kCodes = {
#define TVMFLOW_OPENCL_ROW(code, name, hint) CodeName{code, name, hint},
    TVMFLOW_OPENCL_CODES(TVMFLOW_OPENCL_ROW)
#undef TVMFLOW_OPENCL_ROW
};

const CodeName* Find(cl_int code) {
  for (const CodeName& row : kCodes) {
    if (row.code == code) return &row;
  }
  return nullptr;
}

}  // namespace

std::string ErrorName(cl_int code) {
  const CodeName* row = Find(code);
  return row ? row->name : "an unknown OpenCL error";
}

void ThrowDriverError(cl_int code, const std::string& attempt) {
  std::string message =
      attempt + " failed with " + ErrorName(code) + " (" + std::to_string(code) + ")";
  if (const CodeName* row = Find(code); row && *row->hint) message += std::string(": ") + row->hint;
  throw DriverError(code, message + ".");
}

}  // namespace tvmflow::opencl
