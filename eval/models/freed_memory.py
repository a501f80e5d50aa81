"""Memory that was freed goes back to the system before more is asked for, on a processor.

glibc keeps blocks of up to 32 MiB when they are freed, and a model whose weights come from another place, such as a
mapped file, does not fit into the gaps: before its drafts were loaded, a process that had answered with a target of
513 MiB held some 580 MiB of nothing.
"""

import ctypes

MMAP_THRESHOLD, MAPPED_BYTES = -3, 1 << 20  # the first as glibc's malloc.h numbers it


def give_back_freed_memory() -> bool:
    """Have the C library give back what nobody uses; whether it is one that can, which glibc is."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "malloc_trim"):
        return False
    library.malloc_trim(ctypes.c_size_t(0))
    return True


def give_back_from_now_on() -> bool:
    """Have the C library give tensors back whenever they are freed; whether it is one that can be told so.

    By itself it soon keeps blocks of up to 32 MiB for later ones, and what stays between them keeps them from the
    system: a target in layers then comes to hold several times what it says it takes.
    """
    library = ctypes.CDLL(None)
    return hasattr(library, "mallopt") and bool(library.mallopt(MMAP_THRESHOLD, MAPPED_BYTES))
