"""`widedraft convert`: its arguments, and what it prints. No torch until it runs."""

import argparse
from pathlib import Path
from typing import get_args

from architectures.conversion.forms import Form


def convert_arguments(parser: argparse.ArgumentParser) -> None:
    """DRAFT --to DIR --form FORM."""
    parser.add_argument("draft", type=Path, metavar="DRAFT", help="the folder of a draft with a small output head")
    parser.add_argument("--to", type=Path, required=True, metavar="DIR", help="the Hugging Face folder to write")
    parser.add_argument(
        "--form",
        choices=get_args(Form),
        required=True,
        help="whole: a head of all ids, for any engine, no faster; own-tokenizer: for vLLM's use_heterogeneous_vocab",
    )


def convert(options: argparse.Namespace) -> None:
    """Write a draft in the form that an engine loads."""
    from architectures.conversion.folders import convert_draft

    convert_draft(options.draft, options.to, options.form)
    print(f"{options.to}: form {options.form} of {options.draft}; README.md there says which engine takes it how.")
