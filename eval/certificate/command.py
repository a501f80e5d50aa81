"""`widedraft certify`: its arguments, and what it prints. No torch until it runs."""

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from architectures.errors import UserError
from eval.rehash import rehash_argument
from eval.tasks.words import prompts_argument

if TYPE_CHECKING:
    from eval.certificate.record import Certificate

ENGINES = ("transformers", "vllm", "llama.cpp")


def certify_arguments(parser: argparse.ArgumentParser) -> None:
    """DRAFT --target T --engine E and more."""
    parser.add_argument("draft", metavar="DRAFT", help="folder or hub id of a draft, in the form that the engine loads")
    parser.add_argument("--target", required=True, metavar="T", help="folder or hub id of the model it drafts for")
    parser.add_argument("--engine", required=True, choices=ENGINES, help="which engine decodes")
    prompts_argument(parser)
    parser.add_argument("--num-prompts", type=int, default=24, metavar="N", help="prompts, 24 at least (default: 24)")
    parser.add_argument("--max-new-tokens", type=int, default=64, metavar="N", help="of a text (default: 64)")
    parser.add_argument("--lookahead", type=int, default=3, metavar="N", help="tokens proposed a round (default: 3)")
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16", "float16"), default="float32", help="of both (default: float32)"
    )
    parser.add_argument("--python", type=Path, metavar="FILE", help="of the environment that has vLLM or xllamacpp")
    parser.add_argument("--target-gguf", type=Path, metavar="FILE", help="what llama.cpp loads of the target")
    parser.add_argument("--draft-gguf", type=Path, metavar="FILE", help="what llama.cpp loads of the draft")
    parser.add_argument(
        "--num-threads", type=int, metavar="N", help="of the processor (default: OMP_NUM_THREADS, or all)"
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="where certificate.json goes (default: beside the draft)"
    )
    parser.add_argument("--seed", type=int, default=17, help="of the order of turns (default: 17)")
    rehash_argument(parser)


def certify(options: argparse.Namespace) -> None:
    """Print every finding and the speed; exit code 1 where a law does not hold."""
    require_numbers(options)
    gguf = gguf_files(options)
    from architectures.fingerprint import fingerprint_checkpoint
    from eval.certificate.certify import Asked, certify_pair
    from eval.certificate.record import write_certificate
    from eval.latency.machine import torch_threads

    with torch_threads(options.num_threads) as threads:
        os.environ["OMP_NUM_THREADS"] = str(threads)  # of the engine's own process
        asked = Asked(
            draft=options.draft,
            target=options.target,
            engine=options.engine,
            prompts=options.prompts,
            num_prompts=options.num_prompts,
            max_new_tokens=options.max_new_tokens,
            lookahead=options.lookahead,
            dtype=options.dtype,
            python=options.python,
            gguf=gguf,
            threads=threads,
            seed=options.seed,
        )
        certificate, opened = certify_pair(asked)
    prints = {"target": fingerprint_checkpoint(opened.target), "draft": fingerprint_checkpoint(opened.draft)}
    path = write_certificate(options.out or opened.draft, certificate, **prints)
    print(certificate_page(certificate))
    print(f"{path}: {options.engine} {'serves this draft as scored' if certificate.holds else 'FAILS'}")
    if not certificate.holds:
        raise SystemExit(1)


def certificate_page(certificate: "Certificate") -> str:
    """Findings, likely causes and speed, as text."""
    run, speed = certificate.run, certificate.speed
    lines = [
        f"{run.engine} {run.version}, {run.dtype}, lookahead {run.lookahead}, on {certificate.hardware}",
        run.command,
    ]
    lines += [f"{'holds' if one.holds else 'FAILS':6} {one.law}: {one.detail}" for one in certificate.findings]
    lines += [f"likely cause: {cause}" for cause in certificate.causes]
    interval = "" if speed.interval is None else " [{:.2f}, {:.2f}]".format(*speed.interval)
    lines.append(
        f"speed in this engine: {speed.value:.2f}x{interval}, {speed.plain_tokens_per_s:.1f} tokens/s without and "
        f"{speed.drafted_tokens_per_s:.1f} with the draft"
    )
    return "\n".join(lines)


def require_numbers(options: argparse.Namespace) -> None:
    """Raise UserError for a number with which nothing can be certified."""
    for name, least in (("num_prompts", 24), ("max_new_tokens", 2), ("lookahead", 1)):
        value = getattr(options, name)
        if value < least:
            raise UserError(f"--{name.replace('_', '-')} must be {least} at least, got {value}. Ask for more.")


def gguf_files(options: argparse.Namespace) -> tuple[Path, Path] | None:
    """The files for llama.cpp, both or neither.

    Raises:
        UserError: If one is missing, or another engine is asked.
    """
    given = options.target_gguf, options.draft_gguf
    if options.engine != "llama.cpp":
        if any(given):
            raise UserError(f"--target-gguf and --draft-gguf are for llama.cpp, not {options.engine}. Leave them out.")
        return None
    for name, path in zip(("--target-gguf", "--draft-gguf"), given, strict=True):
        if path is None or not path.is_file():
            raise UserError(f"{name}: {path or 'nothing'} is no file. `widedraft export --gguf` writes a draft's.")
    return given
