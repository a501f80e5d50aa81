"""Run it all on a target and its drafts -> scorecard.json and scorecard.md."""

from eval.pages.headline import headline
from eval.scorecard.score import score_drafts

__all__ = ["headline", "score_drafts"]
