"""The release of pages of a mapped file that are not read any more.

Until they are released they count as memory of this process.
"""

import ctypes
import mmap
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

SMAPS = Path("/proc/self/smaps")
SUFFIX = ".safetensors"
DONT_NEED = 4  # advice of madvise, on Linux

Place = tuple[int, int]  # the first address, and the address behind the last


def release_pages(places: Iterable[Place]) -> None:
    """Release the whole pages within these places.

    Only pages of files of weights that this process has not written to are released: a later read reads the file again.
    On other systems than Linux it does nothing.
    """
    if sys.platform != "linux":
        return
    files = list(_find_unwritten_places())
    for place in places:
        begin, end = -(-place[0] // mmap.PAGESIZE) * mmap.PAGESIZE, place[1] // mmap.PAGESIZE * mmap.PAGESIZE
        if begin < end and any(start <= begin and end <= stop for start, stop in files):
            ctypes.CDLL(None).madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), DONT_NEED)


def _find_unwritten_places() -> Iterator[Place]:
    """Yield the places where files of weights are mapped, if no page there is this process's own."""
    place = None
    for line in SMAPS.read_text().splitlines():
        name, *values = line.split()
        if not name.endswith(":"):
            place = _parse_place(name) if line.endswith(SUFFIX) else None
        elif name == "Anonymous:" and values[0] == "0" and place:
            yield place


def _parse_place(name: str) -> Place:
    begin, end = name.split("-")
    return int(begin, 16), int(end, 16)
