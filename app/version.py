"""Owns the number of this release as installed.

Knows nothing else.
"""

from importlib import metadata

try:
    VERSION = metadata.version("evserve")
except metadata.PackageNotFoundError:  # run from a checkout that was never installed
    VERSION = "0.0.0+checkout"
