// The process and its forks: a child has the memory, but only one of the threads.
#ifndef TVMFLOW_STANDALONE_PROCESS_H
#define TVMFLOW_STANDALONE_PROCESS_H

#include <stdbool.h>

// Returns the number of this process, which differs between a forked child and its parent.  The
// first call in a child gives it its own pool of threads.
unsigned tf_process(void);

// Records that this process opens a driver of OpenCL.  Returns false if a process that this one was
// forked from has opened one: its threads are missing here, and the first wait would never end.
bool tf_process_opens_driver(void);

#endif
