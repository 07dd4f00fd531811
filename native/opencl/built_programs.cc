#include "built_programs.h"

#include <algorithm>
#include <list>
#include <mutex>

#include "program_cache.h"
#include "settings.h"

namespace tvmflow::opencl {
namespace {

struct Kept {
  std::mutex mutex;
  std::list<std::shared_ptr<ProgramBuild>> used_last;  // the most recent first
};

// Never destroyed, because at the end of the process the driver may be unloaded before it.
Kept& Global() {
  static Kept* kept = new Kept();
  return *kept;
}

}  // namespace

std::shared_ptr<ProgramBuild> Built(Device& device, const std::vector<std::string>& names,
                                    const std::string& source, const std::string& options) {
  const Settings settings = CurrentSettings();
  const size_t limit = settings.cache_enabled ? settings.kept_programs : 0;
  const Digest key = ProgramKey(device, source, options);
  Kept& kept = Global();
  std::shared_ptr<ProgramBuild> build;
  if (limit > 0) {
    std::lock_guard<std::mutex> lock(kept.mutex);
    auto found = std::find_if(kept.used_last.begin(), kept.used_last.end(),
                              [&](const auto& program) { return program->Is(device, key); });
    if (found != kept.used_last.end()) {
      kept.used_last.splice(kept.used_last.begin(), kept.used_last, found);
      return *found;
    }
  }
  // Build without the lock, so that other modules need not wait for the compiler.
  build = std::make_shared<ProgramBuild>(device, key, names, source, options);
  // Release evicted programs after unlocking, because that calls the driver.
  std::list<std::shared_ptr<ProgramBuild>> released;
  std::lock_guard<std::mutex> lock(kept.mutex);
  if (limit > 0) kept.used_last.push_front(build);
  if (kept.used_last.size() > limit)
    released.splice(released.begin(), kept.used_last,
                    std::next(kept.used_last.begin(), static_cast<std::ptrdiff_t>(limit)),
                    kept.used_last.end());
  return build;
}

}  // namespace tvmflow::opencl
