"""Machine code of a module's kernels for GPUs that are not here."""
