"""Open shared libraries by the file that is at a path now, whatever was loaded from that path.

glibc's ``dlopen`` takes two files for the same library if they were opened under the same name,
although one has replaced the other.  Files are the same if device and inode are, which no file
can take over while another one has them and is loaded.  ``native/bindings/tvmflow_library.h`` does
the same in C.
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
    """The file at a path, as opposed to others that have been or will be there."""

    device: int
    inode: int
    size: int
    modified_ns: int  #: Inodes of deleted files are used again.

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> Self:
        """Return the identity of the file at a path; `OSError` if there is none."""
        found = os.stat(path)
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


class OpenLibrary:
    """A shared library that the system's loader has opened.

    It stays open until `close`, or until this object is collected.
    """

    def __init__(self, path: str | os.PathLike[str]):
        """Open the file at a path; `OSError` if there is none or the loader refuses it."""
        plain = os.path.realpath(path)
        while True:
            opened = FileIdentity.of(plain)
            own_name = _own_name(plain, opened)
            # Another file, if one is open under this name.
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
                    # Replaced meanwhile: it is not known which of the two was opened.
                    dlclose(self.handle)
                    continue
            break
        self._finalizer = weakref.finalize(self, dlclose, self.handle)

    def close(self) -> None:
        """Unload the library, if nobody else has it open; once, then nothing."""
        self._finalizer()


def _own_name(path: str, file: FileIdentity) -> str:
    """Return another spelling of an absolute path: one for each file.

    ``/./`` and ``//`` before the last name are the bits of device and inode.
    """
    device, inode, bits = file.device, file.inode, ""
    while device or inode:
        bits += "/." if device & 1 else "//"
        bits += "/." if inode & 1 else "//"
        device, inode = device >> 1, inode >> 1
    folder, name = os.path.split(path)
    return f"{folder.rstrip('/')}{bits}/{name}"
