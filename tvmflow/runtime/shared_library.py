"""Opening of shared libraries by their current file, even if another was loaded from the path.

glibc's ``dlopen`` returns the library that is open under a name, although another file has
replaced it.  Here files are identified by device and inode, which no other file can have while the
first is loaded.  ``native/bindings/tvmflow_library.h`` does the same in C.
"""

from __future__ import annotations

import os
import weakref
from _ctypes import dlclose, dlopen
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing_extensions import Self


class FileIdentity(NamedTuple):
    """Identity of the file at a path, as opposed to earlier and later files there."""

    device: int
    inode: int
    size: int
    modified_ns: int  #: Time of modification, since inodes of deleted files are reused.

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> Self:
        """Return the identity of the file at a path; raises `OSError` if there is none."""
        found = os.stat(path)
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


class OpenLibrary:
    """A shared library, open until `close` or until this object is collected."""

    def __init__(self, path: str | os.PathLike[str]):
        """Open the file at a path; raises `OSError` if there is none or the loader refuses it."""
        plain = os.path.realpath(path)
        while True:
            opened = FileIdentity.of(plain)
            own_name = _own_name(plain, opened)
            # This is another file if one is open under this name.
            handle = dlopen(plain, os.RTLD_NOW)
            own = 0
            with suppress(OSError):
                own = dlopen(own_name, os.RTLD_NOW | os.RTLD_NOLOAD)
            #: The name under which the loader knows this file and no other.
            self.name = plain if own == handle else own_name
            dlclose(handle)
            self.handle: int = own or dlopen(own_name, os.RTLD_NOW)
            with suppress(OSError):
                if FileIdentity.of(plain) != opened:
                    # The file was replaced meanwhile, and either may be open: try again.
                    dlclose(self.handle)
                    continue
            break
        self._finalizer = weakref.finalize(self, dlclose, self.handle)

    def close(self) -> None:
        """Unload the library, unless it is open elsewhere; further calls do nothing."""
        self._finalizer()


def _own_name(path: str, file: FileIdentity) -> str:
    """Return a spelling of an absolute path that is unique to a file.

    ``/./`` and ``//`` before the last name encode the bits of device and inode.
    """
    device, inode, bits = file.device, file.inode, ""
    while device or inode:
        bits += "/." if device & 1 else "//"
        bits += "/." if inode & 1 else "//"
        device, inode = device >> 1, inode >> 1
    folder, name = os.path.split(path)
    return f"{folder.rstrip('/')}{bits}/{name}"
