#include "settings.h"

#include <cstdlib>
#include <mutex>

namespace tvmflow::opencl {
namespace {

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

std::string DefaultCacheFolder() {
  if (std::string folder = Environment("TVMFLOW_CACHE_DIR"); !folder.empty()) return folder;
  // The XDG specification requires that a relative path is ignored.
  if (std::string base = Environment("XDG_CACHE_HOME"); !base.empty() && base[0] == '/')
    return base + "/tvmflow/programs";
  if (std::string home = Environment("HOME"); !home.empty())
    return home + "/.cache/tvmflow/programs";
  return "";
}

Settings FromEnvironment() {
  Settings settings;
  settings.library = Environment("TVMFLOW_OPENCL_LIBRARY");
  settings.device = Environment("TVMFLOW_OPENCL_DEVICE");
  settings.build_options = Environment("TVMFLOW_OPENCL_OPTIONS");
  settings.cache_enabled = Environment("TVMFLOW_CACHE") != "0";
  settings.chains = Environment("TVMFLOW_CHAINS") != "0";
  if (const std::string kept = Environment("TVMFLOW_KEPT_PROGRAMS"); !kept.empty())
    settings.kept_programs = std::strtoul(kept.c_str(), nullptr, 10);
  settings.few_declarations = Environment("TVMFLOW_FEW_DECLARATIONS") == "1";
  settings.cache_folder = DefaultCacheFolder();
  return settings;
}

struct Guarded {
  std::mutex mutex;
  Settings settings = FromEnvironment();
};

Guarded& Global() {
  static Guarded* guarded = new Guarded();
  return *guarded;
}

}  // namespace

Settings CurrentSettings() {
  Guarded& global = Global();
  std::lock_guard<std::mutex> lock(global.mutex);
  return global.settings;
}

void ChangeSettings(const Settings& settings) {
  Guarded& global = Global();
  std::lock_guard<std::mutex> lock(global.mutex);
  global.settings = settings;
}

}  // namespace tvmflow::opencl
