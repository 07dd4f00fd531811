// TVM's description of a device function, and the serialized form of OpenCL modules.
#pragma once

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/dtype.h>
#include <tvm/ffi/string.h>

#include <string>

namespace tvmflow::tvm_plugin {

// The object that TVM's code generators create under the type key
// "runtime.FunctionInfo".  The wheel's headers do not contain its class; the members
// here have the types and the order of the pinned TVM.
class FunctionInfoObj : public tvm::ffi::Object {
 public:
  tvm::ffi::String name;
  tvm::ffi::Array<DLDataType> arg_types;
  tvm::ffi::Array<tvm::ffi::String> launch_param_tags;
  tvm::ffi::Array<int> arg_extra_tags;

  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("runtime.FunctionInfo", FunctionInfoObj, tvm::ffi::Object);
};

class FunctionInfo : public tvm::ffi::ObjectRef {
 public:
  TVM_FFI_DEFINE_OBJECT_REF_METHODS_NULLABLE(FunctionInfo, tvm::ffi::ObjectRef, FunctionInfoObj);
};

// Contents of an OpenCL module.
struct ModuleContents {
  tvm::ffi::String format;  // "cl" for OpenCL C source
  tvm::ffi::Map<tvm::ffi::String, FunctionInfo> functions;
  tvm::ffi::Bytes code;
};

// Returns the contents in TVM's standard form: format, functions, code; little-endian, every text
// and list preceded by its length in 64 bits; dtypes as code (8 bits), bits (8), lanes (16).
tvm::ffi::Bytes Serialize(const ModuleContents& contents);

// Throws a ValueError for bytes that are cut short or of another form.
ModuleContents Deserialize(const tvm::ffi::Bytes& bytes);

}  // namespace tvmflow::tvm_plugin
