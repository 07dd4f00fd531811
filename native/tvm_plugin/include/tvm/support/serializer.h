// Substitute for a header that TVM's wheel does not contain; see io.h.
#pragma once

#include <tvm/support/io.h>
