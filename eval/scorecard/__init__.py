"""Run it all on a target and its drafts -> scorecard.json and scorecard.md."""

from eval.scorecard.score import score_drafts
from eval.scorecard.verdict import headline, main_forecast

__all__ = ["headline", "main_forecast", "score_drafts"]
