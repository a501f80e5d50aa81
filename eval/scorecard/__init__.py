"""Run it all on a target and its drafts -> scorecard.json and scorecard.md."""

from eval.pages.verdict import headline, main_forecast
from eval.scorecard.score import score_drafts

__all__ = ["headline", "main_forecast", "score_drafts"]
