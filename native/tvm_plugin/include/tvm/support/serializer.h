// Stands in for a header that TVM's wheel does not ship; see io.h beside it.
#pragma once

#include <tvm/support/io.h>
