"""`widedraft push`: its arguments, and what it prints. No torch until it runs."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from architectures.errors import UserError
from architectures.files.rehash import rehash_argument
from architectures.gguf_export.names import GgufKind

if TYPE_CHECKING:
    from distill.hub.push.upload import Pushed

ALLOWED = ("unscored", "stale", "misleading-name")


def push_arguments(parser: argparse.ArgumentParser) -> None:
    """RUN --repo-id ORG/NAME and more."""
    parser.add_argument("run", type=Path, metavar="RUN", help="the folder of a finished run")
    parser.add_argument("--repo-id", required=True, metavar="ORG/NAME", help="the repository; made if it is not there")
    parser.add_argument("--dry-run", type=Path, metavar="DIR", help="write exactly the files that would go, send none")
    parser.add_argument("--public", action="store_true", help="let everybody see it (default: private)")
    parser.add_argument("--pull-request", action="store_true", help="open a pull request in place of a commit")
    parser.add_argument("--revision", metavar="BRANCH", help="push to this branch (default: main)")
    parser.add_argument("--base-model", metavar="ORG/NAME", help="the target's hub id (default: target.path); or none")
    parser.add_argument("--license", metavar="ID", help="the hub's identifier (default: what is known of the target)")
    parser.add_argument(
        "--allow",
        action="append",
        choices=ALLOWED,
        default=[],
        help="publish a draft without a scorecard, with one of another draft, or under a name that misleads vLLM",
    )
    parser.add_argument(
        "--certificate",
        action="append",
        type=Path,
        default=[],
        metavar="DIR",
        help="a folder with a certificate.json of one of its forms, beside that in RUN/draft",
    )
    parser.add_argument(
        "--gguf",
        action="append",
        choices=get_args(GgufKind),
        default=[],
        help="also send NAME-KIND.gguf, for llama.cpp; may be given several times, the first is on the serve line",
    )
    rehash_argument(parser)


def push(options: argparse.Namespace) -> None:
    """Lay out what is published, and push it unless it is a dry run."""
    if options.dry_run is not None and (options.pull_request or options.revision):
        raise UserError("--dry-run sends nothing, so --revision and --pull-request are for nothing. Leave them out.")
    from distill.hub.push.publish import Wanted, dry_run, push_run

    wanted = Wanted(
        repo_id=options.repo_id,
        base_model=options.base_model,
        licence=options.license,
        public=options.public,
        allowed=tuple(options.allow),
        revision=options.revision,
        pull_request=options.pull_request,
        certificates=tuple(options.certificate),
        gguf=tuple(options.gguf),
    )
    if options.dry_run is not None:
        files = dry_run(options.run, wanted, options.dry_run)
        sizes = [(options.dry_run / name).stat().st_size for name in files]
        print("\n".join(f"{size / 1e6:10.2f} MB  {name}" for name, size in zip(files, sizes, strict=True)))
        print(f"{options.dry_run}: {len(files)} files of {sum(sizes) / 1e6:.1f} MB; nothing was sent")
        return
    print(pushed_words(push_run(options.run, wanted)))


def pushed_words(pushed: "Pushed") -> str:
    """Where a draft stands, and who sees it."""
    seen = "private" if pushed.is_private else "public"
    return f"{pushed.url}: {'was there already' if pushed.was_complete else f'commit {pushed.commit}'}, {seen}"
