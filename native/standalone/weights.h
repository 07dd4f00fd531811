// The library's own files: its plans, and the weights inside it or in a file next to it.
#ifndef TVMFLOW_STANDALONE_WEIGHTS_H
#define TVMFLOW_STANDALONE_WEIGHTS_H

#include "plan.h"

typedef struct tf_weights {
  const uint8_t* data;  // with their header
  size_t bytes;
  bool mapped;                     // from a file; otherwise they are in the library
  struct tf_weights_check* check;  // NULL: no comparison is under way
} tf_weights;

// Checks that the library's file holds all that its program headers list: memory after the end of
// a file that was cut short must not be touched.
tvmflow_status tf_library_check(tf_message* message);

// Opens the weights of the plan, checked for length and identity, and with `check` against their
// checksum.  `path`: the file of weights that are not in the library; NULL: the one next to it.
tvmflow_status tf_weights_open(tf_weights* weights, const tf_plan* plan, const char* path,
                               bool check, tf_message* message);
// Waits for the thread that compares the checksum while the driver is opened.
tvmflow_status tf_weights_checked(const tf_weights* weights, tf_message* message);
void tf_weights_close(tf_weights* weights);

// Lets the system take back pages that were read: they can be read from the file again.
void tf_forget(const uint8_t* data, size_t bytes);

// Maps a file of at least `least` bytes.  If that fails, `wrong` is why.
tvmflow_status tf_map_file(const char* path, size_t least, const uint8_t** data, size_t* bytes,
                           const char** wrong);

// Writes the library's path followed by `suffix`.  Returns false if the path is not known.
bool tf_library_path(char* path, size_t bytes, const char* suffix);

// Returns the library's plan for OpenCL, or for this machine's processors; it has no bytes where
// the library has none.
const void* tf_library_plan(tvmflow_backend backend, size_t* bytes);
// Returns the table of drivers' faults in the library.
const char* tf_library_drivers(size_t* bytes);

#endif
