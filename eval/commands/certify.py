"""`widedraft certify`: its arguments, and what it prints. No torch until it runs."""

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from architectures.errors import UserError
from architectures.files.rehash import rehash_argument
from eval.prompts.words import prompts_argument

if TYPE_CHECKING:
    from eval.engine_runs.record import Certificate


@dataclass(frozen=True)
class OwnForm:
    """What an engine loads that is no Hugging Face folder.

    Attributes:
        suffix: Of the options that name it.
        marker: The file that a folder of it holds; "" where it is a file itself.
        made_by: How it is made.
    """

    suffix: str
    marker: str
    made_by: str


ENGINES = ("transformers", "vllm", "llama.cpp", "openvino")
OWN_FORMS: Mapping[str, OwnForm] = MappingProxyType(
    {
        "llama.cpp": OwnForm("gguf", "", "`widedraft export --gguf` writes a draft's"),
        "openvino": OwnForm(
            "ir", "openvino_model.xml", "`optimum-cli export openvino --weight-format fp32` writes a model's"
        ),
    }
)


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
    parser.add_argument(
        "--python", type=Path, metavar="FILE", help="of the environment that has vLLM, xllamacpp or openvino-genai"
    )
    for role in ("target", "draft"):
        parser.add_argument(f"--{role}-gguf", type=Path, metavar="FILE", help=f"what llama.cpp loads of the {role}")
        parser.add_argument(f"--{role}-ir", type=Path, metavar="DIR", help=f"what OpenVINO loads of the {role}")
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
    files = files_of(options)
    from architectures.checkpoints.fingerprint import fingerprint_checkpoint
    from eval.certificate.certify import Asked, certify_pair
    from eval.engine_runs.record import write_certificate
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
            files=files,
            threads=threads,
            seed=options.seed,
        )
        certificate, loaded = certify_pair(asked)
    prints = {"target": fingerprint_checkpoint(loaded.target), "draft": fingerprint_checkpoint(loaded.draft)}
    path = write_certificate(options.out or loaded.draft, certificate, **prints)
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


def files_of(options: argparse.Namespace) -> tuple[Path, Path] | None:
    """What the engine loads of target and draft, in a form of its own; None of an engine that has none.

    Raises:
        UserError: If one is missing, or another engine's is named.
    """
    for engine, form in OWN_FORMS.items():
        words, given = named_files(options, form)
        if engine != options.engine and any(given):
            raise UserError(f"{' and '.join(words)} are for {engine}, not {options.engine}. Leave them out.")
    form = OWN_FORMS.get(options.engine)
    return None if form is None else require_there(*named_files(options, form), form)


def named_files(options: argparse.Namespace, form: OwnForm) -> tuple[list[str], list[Path | None]]:
    """The two options of a form, and their values."""
    roles = ("target", "draft")
    return [f"--{role}-{form.suffix}" for role in roles], [getattr(options, f"{role}_{form.suffix}") for role in roles]


def require_there(words: list[str], given: list[Path | None], form: OwnForm) -> tuple[Path, Path]:
    """Both of them; UserError if one is not there."""
    found = [path for path in given if path is not None and (path / form.marker).is_file()]
    for word, path in zip(words, given, strict=True):
        if path not in found:
            kind = f"folder with {form.marker}" if form.marker else "file"
            raise UserError(f"{word}: {path or 'nothing'} is no {kind}. {form.made_by}.")
    return found[0], found[1]
