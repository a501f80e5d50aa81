"""Whether a chat template can be rendered in bounded time and memory, tried in a child process.

transformers renders templates in a sandbox, which keeps them from files and from Python, and bounds one `range`; loops
inside each other, and a text times 10^11, it lets run. A template that grows with what a conversation says, and not
with its form, passes here.
"""

import os
import resource
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from architectures.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MOST_CPU_S = 5  # a usual template takes less than a millisecond
MOST_BYTES = 1 << 30  # beside what the process has
MOST_CHARACTERS = 1 << 20  # of a conversation of a few words
TOO_LARGE = 3  # exit code of the child

USER, ANSWER = {"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}
FORMS = ([USER], [{"role": "system", "content": "."}, USER], [USER, ANSWER, USER], [USER, ANSWER, USER, ANSWER])

# What Python raises inside a template: of 1 + "a", of a missing field, of a division by zero.
TEMPLATE_FAULTS = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)

known_cheap: set[tuple[str, str]] = set()  # templates with their special tokens


def refuse_costly_template(tokenizer: "PreTrainedTokenizerBase") -> None:
    """Raise UserError if rendering a few words takes too long or too much memory; tried once for each template."""
    key = (str(tokenizer.chat_template), str(tokenizer.special_tokens_map))
    if key in known_cheap:
        return
    if not renders_cheaply(tokenizer):
        raise UserError(
            f"{tokenizer.name_or_path}: its chat template takes more than {MOST_CPU_S} s, {MOST_BYTES >> 30} GiB or "
            f"{MOST_CHARACTERS:,} characters for a conversation of a few words. Fetch the checkpoint again, or mend "
            "chat_template.jinja."
        )
    known_cheap.add(key)


def renders_cheaply(tokenizer: "PreTrainedTokenizerBase") -> bool:
    """Whether a child of this process could render every form within its limits."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork beside threads: the child uses none
        child = os.fork()
    if child == 0:
        code = TOO_LARGE
        try:
            code = render_within_limits(tokenizer)
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) == 0


def render_within_limits(tokenizer: "PreTrainedTokenizerBase") -> int:
    """Render every form under limits of this process; 0 or TOO_LARGE. Errors of the template are for later."""
    from jinja2 import TemplateError

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_CPU_S, MOST_CPU_S))
    limit = address_space_bytes() + MOST_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for form in FORMS:
        try:
            text = tokenizer.apply_chat_template(form, add_generation_prompt=True, tokenize=False)
        except MemoryError:
            return TOO_LARGE
        except (TemplateError, *TEMPLATE_FAULTS):
            continue
        if len(text) > MOST_CHARACTERS:
            return TOO_LARGE
    return 0


def address_space_bytes() -> int:
    """What this process has mapped, used or not."""
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0])
    return pages * resource.getpagesize()
