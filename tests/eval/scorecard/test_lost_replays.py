"""A command that is killed between replays makes those alone that are missing, and scores as if it had not been."""

import dataclasses
import shutil

import pytest

from architectures.kept import SUFFIX
from architectures.settings.holding import WHOLE
from architectures.sharing import ALONE
from eval.config import SamplingConfig
from eval.scorecard import loaded_models, score_drafts
from eval.scorecard.score import REPLAYS_NAME, replay_prompts
from tests.eval.scorecard.test_score import PROMPTS, TIMED, config
from tests.sharing import by_processes

SETTINGS = config(num_prompts=3, policy_prompts=2, live_prompts=1, latency_repeats=2, max_new_tokens=8)
NUM_REPLAYS = 2 * (3 + 2)  # temperatures; along scored answers, and along those that policies are tuned on


@pytest.fixture
def replay(target_folder, noisy_folder, tiny_draft):
    """replay(out, share, settings, draft) -> what a scorecard is made from."""

    def replay(out, share=ALONE, settings=SETTINGS, draft=noisy_folder):
        drafts = {"undistilled": tiny_draft, "draft": draft}
        how = {"seed": 17, "answered_by": None, "holding": WHOLE, "share": share}
        return replay_prompts(target_folder, drafts, PROMPTS, settings, out, **how)

    return replay


@pytest.fixture
def replayed(monkeypatch) -> list[int]:
    """Answers that were replayed since this was cleared; whoever comes to the sixth of the first command is killed."""
    made, replays_of, fatal = [], loaded_models.replays_of, [6]

    def counted(pair, trace, *rest):
        made.append(trace.id)
        if len(made) in fatal:
            fatal.clear()
            raise MemoryError("killed")
        return replays_of(pair, trace, *rest)

    monkeypatch.setattr(loaded_models, "replays_of", counted)
    return made


@pytest.fixture
def lost(replay, replayed, tmp_path):
    """The folder of a scorecard one of whose two processes was killed."""
    with pytest.raises(MemoryError):
        by_processes(2, lambda share: replay(tmp_path / "eval", share))
    replayed.clear()
    assert len(list((tmp_path / "eval" / REPLAYS_NAME).rglob(f"*{SUFFIX}"))) == 5
    return tmp_path / "eval"


@pytest.mark.parametrize("count", [2, 3])
def test_a_lost_process_costs_the_replay_it_was_making(lost, replay, replayed, tmp_path, count):
    """Another number of processes goes on, to the same bits."""
    again, *_ = by_processes(count, lambda share: replay(lost, share))
    assert len(replayed) == NUM_REPLAYS - 5
    assert flat(again) == flat(replay(tmp_path / "alone"))


def test_the_scorecard_is_that_of_an_uninterrupted_command_and_keeps_no_replays(
    lost, replayed, target_folder, noisy_folder, tiny_draft, tmp_path
):
    drafts = {"undistilled": tiny_draft, "draft": noisy_folder}
    cards = []
    for out, passes in ((lost, NUM_REPLAYS - 5), (tmp_path / "alone", NUM_REPLAYS)):
        cards.append(score_drafts(target_folder, drafts, PROMPTS, SETTINGS, out, seed=17))
        assert len(replayed) == passes
        replayed.clear()
        assert not (out / REPLAYS_NAME).exists()
    for name in set(vars(cards[0])) - set(TIMED) - {"policies", "stopping"}:  # which depend on step times
        assert getattr(cards[0], name) == getattr(cards[1], name), name


@pytest.mark.parametrize("changed", ["sampling", "answers", "draft"])
def test_replays_of_other_answers_settings_or_models_are_not_read(lost, replay, replayed, tiny_draft, changed):
    if changed == "sampling":
        replay(lost, settings=SETTINGS.model_copy(update={"sampling": SamplingConfig(top_p=0.9)}))
    elif changed == "answers":
        for name in ("answers", "tuning"):
            shutil.rmtree(lost / name)
        replay(lost, settings=SETTINGS.model_copy(update={"max_new_tokens": 9}))
    else:
        replay(lost, draft=tiny_draft)
    assert len(replayed) == NUM_REPLAYS


def flat(replayed):
    """Every array of some replays, as bytes."""
    drafts = [draft for group in replayed.along.values() for draft in group] + list(replayed.along_tuning.values())
    return [(draft.draft, draft.temperature, arrays_of(answer.replay)) for draft in drafts for answer in draft.answers]


def arrays_of(replay):
    fields = dataclasses.asdict(replay)
    rules = {(rule, name): values for rule, accepts in fields.pop("rules").items() for name, values in accepts.items()}
    return {name: values.tobytes() for name, values in [*fields.items(), *rules.items()]}
