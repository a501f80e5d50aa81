"""How engines are told what a scorecard found best of its draft alone: tokens a round, and the doubt that ends one.

Each of these engines ends rounds in a way of its own (eval/proposing/stopping.py), and its threshold was tuned by that.
Two differences remain: llama.cpp takes the confidence among its ten likeliest tokens, and transformers that of the
token it drew, after temperature and filters; both are what was replayed where drafts propose greedily.
"""

from architectures.engines.pair.facts import Drafting
from eval.policies.tune_stopping import StopRule
from eval.records.scorecard import Scorecard

RULES: dict[str, StopRule] = {"llama.cpp": "before doubt", "transformers": "after doubt"}


def engine_settings(scorecard: Scorecard) -> dict[str, Drafting]:
    """For each engine that knows of doubt, how it is to draft at the temperature of the headline.

    Empty where nothing was tuned; where doubt promises less on the scored answers than rounds of one length at the
    best lookahead, these.
    """
    fixed = scorecard.main_forecast
    tuned = {row.rule: row for row in scorecard.stopping if row.temperature == fixed.temperature}
    settings = {}
    for engine, rule in RULES.items():
        if (row := tuned.get(rule)) is not None:
            pays = row.predicted > fixed.predicted
            settings[engine] = Drafting(row.lookahead, row.least) if pays else Drafting(fixed.best_lookahead)
    return settings


def setting_words(engine: str, drafting: Drafting) -> str:
    """An engine's own words for how it drafts."""
    lookahead, confidence = drafting.lookahead, f"{drafting.confidence:g}"
    if engine == "llama.cpp":
        return f"--spec-draft-n-max {lookahead} --spec-draft-p-min {confidence}"
    return f"num_assistant_tokens={lookahead}, assistant_confidence_threshold={confidence}"
