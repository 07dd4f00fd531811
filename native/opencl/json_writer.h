// Writer of JSON text, with the features that this runtime's reports need.
#pragma once

#include <cmath>
#include <cstdio>
#include <string>
#include <string_view>

namespace tvmflow::opencl {

// Writes members and items in the order of the calls, separated by commas.
class JsonWriter {
 public:
  JsonWriter& BeginObject() { return Open('{'); }
  JsonWriter& EndObject() { return Close('}'); }
  JsonWriter& BeginArray() { return Open('['); }
  JsonWriter& EndArray() { return Close(']'); }
  JsonWriter& Key(std::string_view name) {
    Text(name);
    text_ += ':';
    fresh_ = true;
    return *this;
  }
  JsonWriter& Text(std::string_view value) {
    Separate();
    text_ += '"';
    for (char c : value) Escape(c);
    text_ += '"';
    return *this;
  }
  JsonWriter& Bool(bool value) { return Raw(value ? "true" : "false"); }
  template <typename Integer>
  JsonWriter& Number(Integer value) {
    return Raw(std::to_string(value));
  }
  JsonWriter& Real(double value) {
    char buffer[40];
    std::snprintf(buffer, sizeof(buffer), "%.17g", std::isfinite(value) ? value : 0.0);
    return Raw(buffer);
  }
  const std::string& str() const { return text_; }

 private:
  JsonWriter& Open(char bracket) {
    Separate();
    text_ += bracket;
    fresh_ = true;
    return *this;
  }
  JsonWriter& Close(char bracket) {
    text_ += bracket;
    fresh_ = false;
    return *this;
  }
  JsonWriter& Raw(std::string_view value) {
    Separate();
    text_ += value;
    return *this;
  }
  void Separate() {
    if (!fresh_) text_ += ',';
    fresh_ = false;
  }
  void Escape(char c) {
    if (c == '"' || c == '\\') {
      text_ += '\\';
      text_ += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7F) {
      // Names from drivers have an unknown encoding: interpret bytes as Latin-1.
      char buffer[8];
      std::snprintf(buffer, sizeof(buffer), "\\u%04x", static_cast<unsigned char>(c));
      text_ += buffer;
    } else {
      text_ += c;
    }
  }

  std::string text_;
  bool fresh_ = true;
};

}  // namespace tvmflow::opencl
