"""`widedraft push`: its settings, and what it prints. No torch until it runs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator

from architectures.errors import UserError
from architectures.files.section import Section
from architectures.gguf_format import GgufKind
from architectures.settings.flags import Flag

if TYPE_CHECKING:
    from distill.hub.push.publish import Wanted
    from distill.hub.push.upload import Pushed


class PushSettings(Section):
    """Which run's draft is published where, and how."""

    run: Annotated[Path, Flag(metavar="RUN", is_word=True)] = Field(description="The folder of a finished run.")
    repo_id: Annotated[str, Flag(metavar="ORG/NAME")] = Field(description="The repository; made if it is not there.")
    dry_run: Annotated[Path | None, Flag(metavar="DIR")] = Field(
        default=None, description="Write exactly the files that would go, send none."
    )
    public: Annotated[bool, Flag(absent="private")] = Field(default=False, description="Let everybody see it.")
    pull_request: bool = Field(default=False, description="Open a pull request in place of a commit.")
    revision: Annotated[str | None, Flag(metavar="BRANCH", absent="main")] = Field(
        default=None, description="Push to this branch."
    )
    base_model: Annotated[str | None, Flag(metavar="ORG/NAME", absent="target.path")] = Field(
        default=None, description="The target's hub id; or none."
    )
    license: Annotated[str | None, Flag(metavar="ID", absent="what is known of the target")] = Field(
        default=None, description="The hub's identifier."
    )
    allow: Annotated[tuple[Literal["unscored", "stale", "misleading-name"], ...], Flag(is_repeated=True)] = Field(
        default=(),
        description="Publish a draft without a scorecard, with one of another draft, or under a name that misleads "
        "vLLM.",
    )
    certificates: Annotated[tuple[Path, ...], Flag(metavar="DIR", is_repeated=True)] = Field(
        default=(), description="A folder with a certificate.json of one of its forms, beside that in RUN/draft."
    )
    gguf: Annotated[tuple[GgufKind, ...], Flag(is_repeated=True)] = Field(
        default=(), description="Also send NAME-KIND.gguf, for llama.cpp; the first is on the serve line."
    )

    @model_validator(mode="after")
    def _sends_or_not(self) -> "PushSettings":
        if self.dry_run is not None and (self.pull_request or self.revision):
            raise UserError(
                "--dry-run sends nothing, so --revision and --pull-request are for nothing. Leave them out."
            )
        return self


def push(settings: PushSettings) -> None:
    """Lay out what is published, and push it unless it is a dry run."""
    from distill.hub.push.publish import Wanted

    wanted = Wanted(
        repo_id=settings.repo_id,
        base_model=settings.base_model,
        licence=settings.license,
        public=settings.public,
        allowed=settings.allow,
        revision=settings.revision,
        pull_request=settings.pull_request,
        certificates=settings.certificates,
        gguf=settings.gguf,
    )
    push_or_write(settings, wanted)


def push_or_write(settings: PushSettings, wanted: "Wanted") -> None:
    """Push a draft and say where it stands; of a dry run write what would go, and list it."""
    from distill.hub.push.publish import dry_run, push_run

    if settings.dry_run is not None:
        files = dry_run(settings.run, wanted, settings.dry_run)
        sizes = [(settings.dry_run / name).stat().st_size for name in files]
        print("\n".join(f"{size / 1e6:10.2f} MB  {name}" for name, size in zip(files, sizes, strict=True)))
        print(f"{settings.dry_run}: {len(files)} files of {sum(sizes) / 1e6:.1f} MB; nothing was sent")
        return
    print(pushed_words(push_run(settings.run, wanted)))


def pushed_words(pushed: "Pushed") -> str:
    """Where a draft stands, and who sees it."""
    seen = "private" if pushed.is_private else "public"
    return f"{pushed.url}, {seen}"
