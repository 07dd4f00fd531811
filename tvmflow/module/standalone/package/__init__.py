"""Standalone libraries as packages that other build systems take: an AAR, a tar archive."""
