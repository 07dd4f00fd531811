"""A compiled network as one library with a C interface: plan, runtime and weights inside."""
