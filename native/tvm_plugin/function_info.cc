#include "function_info.h"

#include <bit>
#include <cstring>

#include "../opencl/errors.h"

namespace tvmflow::tvm_plugin {
namespace {

using tvm::ffi::Array;
using tvm::ffi::Bytes;
using tvm::ffi::String;

static_assert(std::endian::native == std::endian::little,
              "the serialized form is written and read without swapping bytes");

class Writer {
 public:
  template <typename T>
  void Number(T value) {
    text_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void Text(const char* data, size_t size) {
    Number<uint64_t>(size);
    text_.append(data, size);
  }
  std::string Take() { return std::move(text_); }

 private:
  std::string text_;
};

class Reader {
 public:
  Reader(const char* data, size_t size) : position_(data), end_(data + size) {}

  template <typename T>
  T Number() {
    T value;
    std::memcpy(&value, Advance(sizeof(T)), sizeof(T));
    return value;
  }
  std::string Text() {
    const uint64_t size = Number<uint64_t>();
    return std::string(Advance(size), size);
  }
  // Reads the length of a list whose items take at least `item_bytes` each.
  uint64_t Count(size_t item_bytes) {
    const uint64_t count = Number<uint64_t>();
    if (count > static_cast<uint64_t>(end_ - position_) / item_bytes) Fail();
    return count;
  }
  void ExpectEnd() const {
    if (position_ != end_) Fail();
  }

 private:
  const char* Advance(uint64_t size) {
    if (size > static_cast<uint64_t>(end_ - position_)) Fail();
    const char* here = position_;
    position_ += size;
    return here;
  }
  [[noreturn]] static void Fail() {
    throw opencl::Error("ValueError",
                        "The bytes of an OpenCL module are damaged or of another TVM version.");
  }

  const char* position_;
  const char* end_;
};

void Write(Writer* writer, const FunctionInfoObj& info) {
  writer->Text(info.name.data(), info.name.size());
  writer->Number<uint64_t>(info.arg_types.size());
  for (DLDataType dtype : info.arg_types) {
    writer->Number<uint8_t>(dtype.code);
    writer->Number<uint8_t>(dtype.bits);
    writer->Number<uint16_t>(dtype.lanes);
  }
  writer->Number<uint64_t>(info.launch_param_tags.size());
  for (const String& tag : info.launch_param_tags) writer->Text(tag.data(), tag.size());
  writer->Number<uint64_t>(info.arg_extra_tags.size());
  for (int tag : info.arg_extra_tags) writer->Number<int32_t>(tag);
}

FunctionInfo ReadFunctionInfo(Reader* reader) {
  auto info = tvm::ffi::make_object<FunctionInfoObj>();
  info->name = String(reader->Text());
  for (uint64_t i = reader->Count(4); i > 0; --i) {
    DLDataType dtype;
    dtype.code = reader->Number<uint8_t>();
    dtype.bits = reader->Number<uint8_t>();
    dtype.lanes = reader->Number<uint16_t>();
    info->arg_types.push_back(dtype);
  }
  for (uint64_t i = reader->Count(8); i > 0; --i)
    info->launch_param_tags.push_back(String(reader->Text()));
  for (uint64_t i = reader->Count(4); i > 0; --i)
    info->arg_extra_tags.push_back(reader->Number<int32_t>());
  return FunctionInfo(std::move(info));
}

}  // namespace

Bytes Serialize(const ModuleContents& contents) {
  Writer writer;
  writer.Text(contents.format.data(), contents.format.size());
  writer.Number<uint64_t>(contents.functions.size());
  for (const auto& [name, info] : contents.functions) {
    writer.Text(name.data(), name.size());
    Write(&writer, *info.get());
  }
  writer.Text(contents.code.data(), contents.code.size());
  return Bytes(writer.Take());
}

ModuleContents Deserialize(const Bytes& bytes) {
  Reader reader(bytes.data(), bytes.size());
  ModuleContents contents;
  contents.format = String(reader.Text());
  for (uint64_t i = reader.Count(8); i > 0; --i) {
    String name(reader.Text());
    contents.functions.Set(name, ReadFunctionInfo(&reader));
  }
  contents.code = Bytes(reader.Text());
  reader.ExpectEnd();
  return contents;
}

}  // namespace tvmflow::tvm_plugin
