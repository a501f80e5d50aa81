"""Run it all on a target and its drafts -> scorecard.json and scorecard.md."""

from eval.scorecard.score import score_drafts

__all__ = ["score_drafts"]
