"""An evaluation that is killed between replays makes only those that are missing, and scores the same."""

import dataclasses
import shutil

import pytest

from architectures.kept import SUFFIX
from architectures.sharing import ALONE
from eval.acceptance import replay_drafts as module
from eval.acceptance.replay_drafts import REPLAYS_NAME, kept_replays, record_answers, replay_drafts
from eval.config import SamplingConfig
from eval.decoding.sampling import Sampling
from eval.models.loading import load_model
from eval.scorecard import score_drafts
from tests.eval.scorecard.test_score import PROMPTS, TIMED, config
from tests.sharing import by_processes

SETTINGS = config(num_prompts=3, live_prompts=1, latency_repeats=2, max_new_tokens=8, temperatures=(1.0,))
FATAL = 4  # the replay, of two drafts along three responses, at which the first command is killed


@pytest.fixture
def drafts(noisy_folder, tiny_draft):
    return {"undistilled": tiny_draft, "draft": noisy_folder}


@pytest.fixture
def replayed(monkeypatch) -> list[int]:
    """The replays made since this was cleared."""
    made, replay_answer, fatal = [], module.replay_answer, [FATAL]

    def counted(*logits, **how):
        made.append(1)
        if len(made) in fatal:
            fatal.clear()
            raise MemoryError("killed")
        return replay_answer(*logits, **how)

    monkeypatch.setattr(module, "replay_answer", counted)
    return made


@pytest.fixture
def replay(target_folder, drafts):
    """replay(out, share, settings, changed inputs) -> every draft along the responses."""
    models = {name: load_model(folder, dtype="float32") for name, folder in drafts.items()}
    target = load_model(target_folder, dtype="float32")

    def replay(out, share=ALONE, settings=SETTINGS, inputs=None):
        answers = record_answers(target_folder, PROMPTS[:3], settings, out, temperature=1.0, seed=17, share=share)
        kept = kept_replays(out / REPLAYS_NAME / "T1", inputs or {"of": "all"}, answers.traces)
        return replay_drafts(
            target, models, answers, sampling=Sampling.of(1.0, settings.sampling), share=share, kept=kept
        )

    return replay


@pytest.fixture
def lost(replay, replayed, tmp_path):
    """The directory of a scorecard one of whose two processes was killed."""
    with pytest.raises(MemoryError):
        by_processes(2, lambda share: replay(tmp_path / "eval", share))
    replayed.clear()
    return tmp_path / "eval"


def num_kept(folder):
    return len(list((folder / REPLAYS_NAME).rglob(f"*{SUFFIX}")))


@pytest.mark.parametrize("count", [2, 3])
def test_a_lost_process_costs_the_replay_it_was_making(lost, replay, replayed, tmp_path, count):
    """Another number of processes goes on, to the same bits."""
    missing = 3 - num_kept(lost)
    assert 0 < missing < 3
    again, *_ = by_processes(count, lambda share: replay(lost, share))
    assert len(replayed) == 2 * missing
    assert flat(again) == flat(replay(tmp_path / "whole"))


def test_the_scorecard_is_that_of_an_uninterrupted_command_and_keeps_no_replays(
    replayed, target_folder, drafts, tmp_path
):
    out = tmp_path / "eval"
    with pytest.raises(MemoryError):
        score_drafts(target_folder, drafts, PROMPTS, SETTINGS, out, seed=17)
    assert num_kept(out) == 1
    cards = [score_drafts(target_folder, drafts, PROMPTS, SETTINGS, each, seed=17) for each in (out, tmp_path / "b")]
    assert not (out / REPLAYS_NAME).exists()
    for name in set(vars(cards[0])) - set(TIMED):
        assert getattr(cards[0], name) == getattr(cards[1], name), name


@pytest.mark.parametrize("changed", ["sampling", "answers", "draft"])
def test_replays_of_other_answers_settings_or_models_are_not_read(lost, replay, replayed, changed):
    if changed == "sampling":
        shutil.rmtree(lost / "answers")
        replay(lost, settings=SETTINGS.model_copy(update={"sampling": SamplingConfig(top_p=0.9)}))
    elif changed == "answers":
        shutil.rmtree(lost / "answers")
        replay(lost, settings=SETTINGS.model_copy(update={"max_new_tokens": 9}))
    else:
        replay(lost, inputs={"of": "others"})
    assert len(replayed) == 2 * 3


def flat(drafts):
    """Every array of some replays, as bytes."""
    return [(draft.draft, draft.temperature, arrays_of(answer.replay)) for draft in drafts for answer in draft.answers]


def arrays_of(replay):
    fields = dataclasses.asdict(replay)
    rules = {(rule, name): values for rule, accepts in fields.pop("rules").items() for name, values in accepts.items()}
    return {name: values.tobytes() for name, values in [*fields.items(), *rules.items()]}
