"""Packages of standalone libraries for other build systems: AARs and tar archives."""
