#include "errors.h"

#include "../core/errors.h"

namespace tvmflow::opencl {

std::string ErrorName(cl_int code) {
  const char* hint;
  return tf_error_name(code, &hint);
}

void ThrowDriverError(cl_int code, const std::string& attempt) {
  const char* hint;
  const std::string name = tf_error_name(code, &hint);
  const std::string cause = *hint ? std::string(": ") + hint : "";
  throw DriverError(
      code, attempt + " failed with " + name + " (" + std::to_string(code) + ")" + cause + ".");
}

}  // namespace tvmflow::opencl
