// Known faults of drivers, and what the runtime avoids on a device that has one.  The tables are
// JSON (docs/standalone.md): drivers.json, which is linked into the library, and the application's.
#ifndef TVMFLOW_STANDALONE_DRIVER_FAULTS_H
#define TVMFLOW_STANDALONE_DRIVER_FAULTS_H

#include "model.h"

// Finds the faults of the device: sets what is avoided and the options that its compiler needs, and
// describes them.  A plan for the CPU has no faults, but the tables are checked.
tvmflow_status tf_faults_find(tvmflow_model* model, const char* table);

#endif
