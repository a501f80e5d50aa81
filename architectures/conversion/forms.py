"""The forms of a draft with a small output head, as the command line names them. No torch."""

from typing import Literal

Form = Literal["whole", "own-tokenizer"]
