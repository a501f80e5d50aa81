"""Models whose head is not their embedding although transformers' config says so."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

LOADER = "transformers.modeling_utils"
WARNING = "The tied weights mapping and config for this model specifies to tie"


@contextmanager
def own_heads_are_expected() -> Iterator[None]:
    """Within, transformers does not warn that it leaves two different weights untied.

    Of T5 1.1 it says in every config that they are tied, and advises an entry that it then overwrites.
    """

    def is_other(record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith(WARNING)

    logger = logging.getLogger(LOADER)
    logger.addFilter(is_other)
    try:
        yield
    finally:
        logger.removeFilter(is_other)
