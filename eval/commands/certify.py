"""`widedraft certify`: its settings, and what it prints. No torch until it runs."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from architectures.errors import UserError
from architectures.files.number_types import Dtype
from architectures.files.section import Section
from architectures.pages.terminal import terminal
from architectures.settings.flags import Flag, flag_of
from architectures.settings.holding import without_placing
from architectures.settings.kinds import MOST, Lookahead, MaxScoredTokens, NumThreads, Rehash, Seed, Target
from eval.tasks import PromptWords


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


Engine = Literal["transformers", "vllm", "llama.cpp", "openvino"]
OWN_FORMS: Mapping[str, OwnForm] = MappingProxyType(
    {
        "llama.cpp": OwnForm("gguf", "", "`widedraft export --gguf` writes a draft's"),
        "openvino": OwnForm(
            "ir", "openvino_model.xml", "`optimum-cli export openvino --weight-format fp32` writes a model's"
        ),
    }
)


GgufFile = Annotated[Path | None, Flag(metavar="FILE")]
IrFolder = Annotated[Path | None, Flag(metavar="DIR")]

ENGINES_OWN = "The engine loads the target itself, by its own options, and what it does with that is what is certified."


class CertifySettings(Section):
    """Which draft is certified in which engine, and on what."""

    draft: Annotated[
        str,
        Field(min_length=1, description="Folder or hub id of a draft, in the form that the engine loads."),
        Flag(metavar="DRAFT", is_word=True),
    ]
    target: Target
    engine: Annotated[Engine, Field(description="Which engine decodes.")]
    prompts: PromptWords = ()
    num_prompts: Annotated[int, Field(ge=24, le=MOST, description="Prompts.")] = 24
    max_new_tokens: MaxScoredTokens = 64
    lookahead: Lookahead = 3
    dtype: Annotated[Dtype, Field(description="Number type of target and draft.")] = "float32"
    python: Annotated[Path | None, Flag(metavar="FILE")] = Field(
        default=None, description="Of the environment that has vLLM, xllamacpp or openvino-genai."
    )
    target_gguf: GgufFile = Field(default=None, description="What llama.cpp loads of the target.")
    draft_gguf: GgufFile = Field(default=None, description="What llama.cpp loads of the draft.")
    target_ir: IrFolder = Field(default=None, description="What OpenVINO loads of the target.")
    draft_ir: IrFolder = Field(default=None, description="What OpenVINO loads of the draft.")
    num_threads: NumThreads = None
    out: Annotated[Path | None, Flag(metavar="DIR", absent="beside the draft")] = Field(
        default=None, description="Where certificate.json goes."
    )
    seed: Seed = Field(default=17, description="Seed of the order of turns.")
    rehash: Rehash = False

    left_out: ClassVar = without_placing(ENGINES_OWN, bits=ENGINES_OWN)

    @model_validator(mode="after")
    def _threads_of_the_engine(self) -> "CertifySettings":
        if self.num_threads == "auto":
            raise UserError(
                "--num-threads auto picks by steps that PyTorch takes in this process, and the engine takes its own in "
                "another. Name a number, or leave it out."
            )
        return self

    @model_validator(mode="after")
    def _files_are_there(self) -> "CertifySettings":
        files_of(self)
        return self


def certify(settings: CertifySettings) -> None:
    """Print every finding and the speed; exit code 1 where a law does not hold."""
    from architectures.checkpoints.fingerprint import fingerprint_checkpoint
    from eval.certificate.certify import Asked, certify_pair
    from eval.certificate.page import certificate_page
    from eval.engine_runs.record import write_certificate
    from eval.latency.machine import torch_threads

    assert settings.num_threads != "auto"
    with torch_threads(settings.num_threads) as threads:
        os.environ["OMP_NUM_THREADS"] = str(threads)  # of the engine's own process
        asked = Asked(
            draft=settings.draft,
            target=settings.target,
            engine=settings.engine,
            prompts=settings.prompts,
            num_prompts=settings.num_prompts,
            max_new_tokens=settings.max_new_tokens,
            lookahead=settings.lookahead,
            dtype=settings.dtype,
            python=settings.python,
            files=files_of(settings),
            threads=threads,
            seed=settings.seed,
        )
        certificate, loaded = certify_pair(asked)
    prints = {"target": fingerprint_checkpoint(loaded.target), "draft": fingerprint_checkpoint(loaded.draft)}
    path = write_certificate(settings.out or loaded.draft, certificate, **prints)
    print(terminal(*certificate_page(certificate)))
    print(f"{path}: {settings.engine} {'serves this draft as scored' if certificate.holds else 'FAILS'}")
    if not certificate.holds:
        raise SystemExit(1)


def files_of(settings: CertifySettings) -> tuple[Path, Path] | None:
    """What the engine loads of target and draft, in a form of its own; None of an engine that has none.

    Raises:
        UserError: If one is missing, or another engine's is named.
    """
    for engine, form in OWN_FORMS.items():
        words, given = named_files(settings, form)
        if engine != settings.engine and any(given):
            raise UserError(f"{' and '.join(words)} are for {engine}, not {settings.engine}. Leave them out.")
    form = OWN_FORMS.get(settings.engine)
    return None if form is None else require_there(*named_files(settings, form), form)


def named_files(settings: CertifySettings, form: OwnForm) -> tuple[list[str], list[Path | None]]:
    """The two options of a form, and their values."""
    names = [f"{role}_{form.suffix}" for role in ("target", "draft")]
    return [flag_of(name) for name in names], [getattr(settings, name) for name in names]


def require_there(words: list[str], given: list[Path | None], form: OwnForm) -> tuple[Path, Path]:
    """Both of them; UserError if one is not there."""
    present = [path for path in given if path is not None and (path / form.marker).is_file()]
    for word, path in zip(words, given, strict=True):
        if path not in present:
            kind = f"folder with {form.marker}" if form.marker else "file"
            raise UserError(f"{word}: {path or 'nothing'} is no {kind}. {form.made_by}.")
    return present[0], present[1]
