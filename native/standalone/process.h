// The process, which may be forked: the child has the memory, but of the threads only one.
#ifndef TVMFLOW_STANDALONE_PROCESS_H
#define TVMFLOW_STANDALONE_PROCESS_H

#include <stdbool.h>

// Returns the number of this process: a forked child has another one than its parent.  The first
// call in a child gives it a pool of threads of its own.
unsigned tf_process(void);

// Notes that this process opens a driver of OpenCL.  False: a process that this one was forked
// from has opened one, whose threads are missing here: the first wait would never end.
bool tf_process_opens_driver(void);

#endif
