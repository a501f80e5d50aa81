"""Memory that was freed goes back to the system before more is asked for, on a processor.

glibc keeps blocks of up to 32 MiB when they are freed, and a model whose weights come from another place, such as a
mapped file, does not fit into the gaps: before its drafts were loaded, a process that had answered with a target of
513 MiB held some 580 MiB of nothing.
"""

import ctypes


def give_back_freed_memory() -> bool:
    """Have the C library give back what nobody uses; whether it is one that can, which glibc is."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "malloc_trim"):
        return False
    library.malloc_trim(ctypes.c_size_t(0))
    return True
