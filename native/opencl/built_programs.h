// Cache of built programs, which outlive the modules that used them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "program_build.h"

namespace tvmflow::opencl {

// Returns the program of `source` on `device`, from this process's cache or newly built.
// `names` are its kernels.  Throws a KernelBuildError if the compiler rejects it.
//
// The most recently used programs (Settings::kept_programs) are kept.  An application that
// closes and reopens its network does not wait for the driver a second time, and its memory
// does not grow: PoCL's compiler keeps some data on a program (5 KB for 34 kernels) as long as
// its context lives, even after the program is released.
std::shared_ptr<ProgramBuild> Built(Device& device, const std::vector<std::string>& names,
                                    const std::string& source, const std::string& options);

}  // namespace tvmflow::opencl
