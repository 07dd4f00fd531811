"""TVM's runtime as it is used here: the OpenCL plug-in, devices, errors, processes beside ours."""
