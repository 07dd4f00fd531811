// The device that a network runs on.
#ifndef TVMFLOW_STANDALONE_FIND_DEVICE_H
#define TVMFLOW_STANDALONE_FIND_DEVICE_H

#include "../core/device.h"
#include "plan.h"

// The message of calls in a forked process that cannot use OpenCL.
#define TF_FORKED                                                                                  \
  "An OpenCL device was used in a process forked from one that had used it. Remedy: fork before "  \
  "OpenCL is used, or have the child start a program (exec; in Python, multiprocessing's "         \
  "'spawn')."

// Finds the device that the options ask for.
tvmflow_status tf_device_find(tf_device* device, const tvmflow_options* options,
                              tf_message* message);

// Checks that the device has the images, extensions and sizes that the plan needs.
tvmflow_status tf_device_check(const tf_device* device, const tf_plan* plan, tf_message* message);

#endif
