"""Running compiled modules: the OpenCL plug-in and the devices."""
