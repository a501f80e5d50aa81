"""`--rehash`, of every command that fingerprints: read each file again, whatever is remembered of it. No torch."""

import argparse


def rehash_argument(parser: argparse.ArgumentParser) -> None:
    """--rehash; the command line obeys it before the command begins."""
    parser.add_argument(
        "--rehash",
        action="store_true",
        help="read every byte of models and text again for their fingerprints, whatever is remembered of them",
    )
