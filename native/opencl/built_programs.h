// Programs that stay built for a while after the last module that used them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "program_build.h"

namespace tvmflow::opencl {

// The program of `source` on `device`: one that this process has built, else a new one.
// `names` are the kernels in it.  Throws a KernelBuildError when the compiler rejects it.
//
// The programs used last (Settings::kept_programs) are kept.  An application that closes
// and opens its network again does not wait for the driver a second time, and does not
// grow: PoCL's compiler keeps some of its notes on a program (5 KB for 34 kernels) for as
// long as its context lives, whoever releases the program.
std::shared_ptr<ProgramBuild> Built(Device& device, const std::vector<std::string>& names,
                                    const std::string& source, const std::string& options);

}  // namespace tvmflow::opencl
