"""A certificate as a page: findings, likely causes and speed."""

from architectures.pages.blocks import Block, Code, Facts, Section
from eval.engine_runs.record import Certificate


def certificate_page(certificate: Certificate) -> list[Block]:
    run, speed = certificate.run, certificate.speed
    interval = "" if speed.interval is None else " [{:.2f}, {:.2f}]".format(*speed.interval)
    outcomes = [
        (f"{'holds' if finding.holds else 'FAILS'} {finding.law}", finding.detail) for finding in certificate.findings
    ]
    causes = [("likely cause", cause) for cause in certificate.causes]
    measured = (
        f"{speed.value:.2f}x{interval}, {speed.plain_tokens_per_s:.1f} tokens/s without and "
        f"{speed.drafted_tokens_per_s:.1f} with the draft"
    )
    title = f"{run.engine} {run.version}, {run.dtype}, lookahead {run.lookahead}, on {certificate.hardware}"
    return [Section(title, [Code(run.command), Facts([*outcomes, *causes, ("speed in this engine", measured)])])]
