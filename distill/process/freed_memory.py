"""Memory that a training frees stays with the process, on a processor.

glibc gives large blocks back to the system when they are freed, and a step of a training asks for as many again as the
one before freed: the system clears every page anew. A draft whose embeddings are trained, and have a gradient of their
size, learns 1.2 times as fast without that; one whose embeddings are frozen no faster (docs/log.md, 2026-11-24).
"""

import ctypes

TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3  # as glibc's malloc.h numbers them
KEPT = {
    MMAP_THRESHOLD: 1 << 30,  # bytes; smaller blocks come from what is kept
    TRIM_THRESHOLD: (1 << 31) - 1,  # bytes free at the end before any go back: the most an int says
    TOP_PAD: 64 << 20,  # bytes asked for beyond what is needed
}


def keep_freed_memory() -> bool:
    """Have the C library keep what is freed; whether it is one that can be told so, which glibc is.

    Numbers computed do not depend on it.
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):
        return False
    return all(library.mallopt(which, value) for which, value in KEPT.items())  # it gives 1 where it obeys
