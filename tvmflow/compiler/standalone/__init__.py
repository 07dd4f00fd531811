"""The execution plan of a standalone library: made from `main`, checked, and written with it."""
