"""Machine code of a module's kernels for GPUs that this machine need not have."""
