"""Layouts of tensors between primary functions, and where they are stored."""
