"""`widedraft certify`: check that an engine serves a draft as scored, or that it could (--dry-run).

The engine decodes without and with the draft; exact replay runs over its texts; eval/engines/runs.py checks the laws.
Imports torch only when run.
"""

import os
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import cast

from architectures.compatibility import ENGINES, Pair, read_model, report
from eval.engines.certificate import (
    Certificate,
    CertifySettings,
    Engine,
    EngineRun,
    ServedCertificate,
    Speed,
    pooled,
    write_certificate,
)

RESAMPLES, CONFIDENCE = 2000, 0.95


def certify(settings: CertifySettings) -> None:
    """Print every finding and the speed; exit code 1 if a law does not hold."""
    if settings.dry_run:
        engines = ENGINES if settings.engine is None else (settings.engine,)
        draft = read_model(settings.draft)
        k = settings.num_speculative_tokens
        if "num_speculative_tokens" not in settings.model_fields_set:
            k = draft.num_assistant_tokens or k
        pair = Pair(
            draft=draft,
            target=read_model(settings.target, settings.revision),
            revision=settings.revision,
            tensor_parallel=settings.tensor_parallel,
            num_speculative_tokens=k,
        )
        text, serves = report(engines, pair)
        print(text)
        if not serves:
            raise SystemExit(1)
        return

    from architectures.hub import resolve_checkpoint
    from architectures.manifest import fingerprint_checkpoint
    from eval.machine import torch_threads

    target, draft = (resolve_checkpoint(each) for each in (settings.target, settings.draft))
    with torch_threads(settings.num_threads) as threads:
        os.environ["OMP_NUM_THREADS"] = str(threads)  # for the engine's own process
        if settings.as_served:
            from eval.engines.as_served import certify_as_served
            from eval.engines.runs import prepared

            certificate = certify_as_served(prepared(settings, target, draft, threads=threads))
        else:
            certificate = make_certificate(settings, target, draft, threads=threads)
    prints = {"target": fingerprint_checkpoint(target), "draft": fingerprint_checkpoint(draft)}
    path = write_certificate(settings.out or draft, certificate, **prints)
    print_certificate(certificate)
    print(f"{path}: {settings.engine} {'matches the replay' if certificate.holds else 'FAILS'}")
    if not certificate.holds:
        raise SystemExit(1)


def make_certificate(settings: CertifySettings, target: Path, draft: Path, *, threads: int) -> Certificate:
    """Run the engine on a pair of directories, replay its texts, and check the laws.

    Raises:
        UserError: If the draft has a reduced vocabulary, there are too few prompts, or the engine fails.
    """
    from architectures.target_files import TEMPLATES, TOKENIZERS, bytes_below
    from eval.engines.runs import AssistedGeneration, find, near_ties, prepared, replay_run, run_pair
    from eval.engines.worker_process import WorkerProcess
    from eval.models import load_model

    given = prepared(settings, target, draft, threads=threads)
    request = given.request(
        max(map(len, given.ids)) + settings.max_new_tokens + settings.num_speculative_tokens + 1,
        is_chat=given.is_chat,
        chat_template_kwargs=given.chat_template_kwargs,
        engine_settings={"enforce_eager": True},
    )
    lengths = {"max_new_tokens": settings.max_new_tokens, "seed": settings.seed}
    if settings.engine == "transformers":
        models = {str(each.absolute()): load_model(each, dtype=settings.dtype) for each in (target, draft)}
        run = run_pair("transformers", partial(AssistedGeneration, models), request, given.ids, **lengths)
    else:
        assert settings.python is not None  # validated by the settings
        engine, conversations = cast("Engine", settings.engine), [list(prompt.messages) for prompt in given.prompts]
        with closing(WorkerProcess(settings.python, engine, flag="--python")) as worker:
            run = run_pair(engine, worker.open, request, conversations, **lengths)

    # Files that differ from the target's; texts that differ at a near-tie.
    kinds = {"tokenizer": () if given.own is not None else TOKENIZERS, "chat template": TEMPLATES}
    differing = [
        kind
        for kind, names in kinds.items()
        if any(bytes_below(target / name) != bytes_below(draft / name) for name in names)
    ]
    [ties] = near_ties(target, [run.texts], run.dtype)
    replay = pooled(replay_run(given.load_draft(), run, given.own))
    return Certificate(
        run=run,
        replay=replay,
        findings=tuple(find(run, given.ids, replay, differing=differing, ties=ties)),
        speed=speed_of(run, settings.seed),
        **given.made,
    )


def speed_of(run: EngineRun, seed: int) -> Speed:
    from eval.intervals import Resampling, paired_ratio_quotient

    plain = [text.plain_s for text in run.texts], [float(len(text.plain_ids)) for text in run.texts]
    drafted = [text.drafted_s for text in run.texts], [float(len(text.drafted_ids)) for text in run.texts]
    quotient = paired_ratio_quotient(plain, drafted, Resampling(CONFIDENCE, RESAMPLES, seed))
    return Speed(
        plain_tokens_per_s=sum(plain[1]) / sum(plain[0]),
        drafted_tokens_per_s=sum(drafted[1]) / sum(drafted[0]),
        value=quotient.value,
        interval=quotient.interval,
    )


def print_certificate(certificate: Certificate | ServedCertificate) -> None:
    is_single = isinstance(certificate, Certificate)
    run = certificate.run if is_single else certificate
    if not is_single:
        print(
            f"exercised: {', '.join(certificate.exercised)}; not: {', '.join(certificate.not_exercised) or 'nothing'}"
        )
    print(f"{run.engine} {run.version}, {run.dtype}, k = {run.num_speculative_tokens}, {certificate.hardware}")
    print(f"  {run.command}")
    for finding in certificate.findings:
        print(f"  {'ok' if finding.holds else 'FAIL':4} {finding.law}: {finding.detail}")
    if is_single:
        speed = certificate.speed
        interval = "" if speed.interval is None else " [{:.2f}, {:.2f}]".format(*speed.interval)
        print(
            f"  speedup {speed.value:.2f}x{interval}: {speed.plain_tokens_per_s:.1f} tokens/s without, "
            f"{speed.drafted_tokens_per_s:.1f} with the draft"
        )
