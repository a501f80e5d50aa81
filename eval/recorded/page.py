"""What a reader of a scorecard on recorded responses must know."""

from eval.records.scorecard import RecordedScorecard


def find_warnings(scorecard: RecordedScorecard) -> tuple[str, ...]:
    """What a reader must know before believing the numbers."""
    warnings, recording = [], scorecard.recording
    if recording.unanswered:
        warnings.append(
            f"{recording.path} answers the first {recording.given:,} of {recording.given + recording.unanswered:,} "
            f"prompts: these are used, the {recording.unanswered:,} behind them are left out."
        )
    if recording.form == "text":
        warnings.append(
            "The text does not say which tokenizer its ids are of; only their range was checked. With another "
            "tokenizer than the draft's every figure here is meaningless."
        )
    if recording.scored < 2:
        warnings.append("Only one prompt was scored: nothing here has an interval.")
    return tuple(warnings)
