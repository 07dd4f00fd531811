#include "pocl.h"

#include <cstdlib>

#include "version.h"

namespace tvmflow::opencl {

bool IsPocl(const Platform& platform) { return platform.name == "Portable Computing Language"; }

bool PoclWorks(const std::string& version) { return IsNumberAtLeast(version.c_str(), 3, 1); }

void PreparePocl() {
  constexpr int kKeepUsersChoice = 0;
  setenv("POCL_WORK_GROUP_SPECIALIZATION", "0", kKeepUsersChoice);
}

}  // namespace tvmflow::opencl
