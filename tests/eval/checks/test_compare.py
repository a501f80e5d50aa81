"""`widedraft compare` and `verify` from the command line; who wrote which token; two clocks."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from eval.checks.compare import Comparison, compare
from eval.checks.loaded_pair import LoadedPair, load_pair, prompts_of
from eval.decoding.batch import Emitted
from eval.decoding.sampling import Sampling
from eval.decoding.speculative import plain_decode
from eval.decoding.texts import Decoded, Limits, Seeds, Speculation
from eval.prompts import Prompt, user_turn
from eval.rounds.race import Runner, race, spans, writers_of

ROOT = Path(__file__).parents[3]
WANTED = Comparison(Limits(30), Speculation(3), Sampling(), Seeds())
DONE = Decoded((), (), prefill_s=0.0, decode_s=0.0)
PROMPT = Prompt("here", (user_turn("Add 2 and 3, please."),))


@pytest.fixture
def pair(target_folder, noisy_folder):
    return load_pair(str(target_folder), str(noisy_folder), dtype="float32")


def shown(pair, **console):
    out = io.StringIO()
    compare(pair, [PROMPT], WANTED, Console(file=out, width=100, **console))
    return out.getvalue()


def test_without_a_terminal_marks_tell_the_writers(pair):
    text = shown(pair)
    [plain] = plain_decode(pair.target, [pair.rendered(PROMPT)], limits=WANTED.limits)
    own = pair.tokenizer.decode(list(plain.token_ids))
    assert "> Add 2 and 3, please." in text
    assert "-- target alone: 30 tokens, " in text
    assert "-- with the draft: 30 tokens, " in text
    assert "tokens a round, " in text
    assert "\x1b" not in text
    assert "[the target's correction]" in text
    assert "x the speed of the target alone" in text
    assert own.split("\n")[0][:20] in text


def test_a_terminal_shows_both_side_by_side_in_colour(pair):
    text = shown(pair, force_terminal=True, color_system="standard", force_interactive=True)
    assert "\x1b[36m" in text  # what the draft wrote
    assert "target alone: 30 tokens" in text
    assert "with the draft: 30 tokens" in text
    assert "[the target's correction]" not in text


def test_a_terminal_without_colour_has_the_marks(pair):
    text = shown(pair, force_terminal=True, color_system=None, force_interactive=True)
    assert "[the target's correction]" in text
    assert "\x1b[36m" not in text


def test_every_token_has_its_writer():
    assert writers_of(Emitted(0, (5,)), drafts=False) == ["target"]
    corrected = Emitted(0, (5, 6, 7), accepted=2, rejected=9)
    assert writers_of(corrected, drafts=True) == ["accepted", "accepted", "corrected"]
    assert writers_of(Emitted(0, (5, 6, 7), accepted=2), drafts=True) == ["accepted", "accepted", "bonus"]


def test_pieces_make_up_the_text_and_no_character_is_torn(target_tokenizer):
    ids = target_tokenizer.encode("a é 漢", add_special_tokens=False)  # a byte a token
    writers = ["accepted", "corrected"] * 4
    pieces = spans(target_tokenizer, ids, writers[: len(ids)])
    assert "".join(text for text, _ in pieces) == "a é 漢"
    assert pieces[2] == ("é", "corrected")  # of two tokens, the last one's writer


def test_the_runner_that_is_behind_goes_on():
    def slow(name, count, log):
        for step in range(count):
            log.append(name)
            yield Emitted(0, (step,))
        yield 0, DONE

    log = []
    runners = [Runner(slow("a", 3, log), drafts=False), Runner(slow("b", 3, log), drafts=False)]
    runners[0].spent_s = 1000.0
    for _ in race(*runners):
        pass
    assert log == ["b", "b", "b", "a", "a", "a"]
    assert all(runner.is_done and len(runner.token_ids) == 3 for runner in runners)


def test_a_runner_counts_rounds_and_rates():
    runner = Runner(iter([Emitted(0, (1, 2, 3), 2), Emitted(0, (4,)), (0, DONE)]), drafts=True)
    assert (runner.rate, runner.tau) == (0.0, 0.0)
    for _ in race(runner):
        pass
    assert (runner.rounds, runner.tau) == (2, 2.0)
    assert runner.rate == 4 / runner.spent_s
    assert runner.decoded is DONE


def test_prompts_are_read_from_a_file_or_built_in(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"say {i}"}) + "\n" for i in range(3)), encoding="utf-8")
    assert [prompt.messages[0]["content"] for prompt in prompts_of([str(path)], 2)] == ["say 0", "say 1"]
    assert len(prompts_of([str(path)], None)) == 3
    assert [prompt.source for prompt in prompts_of(None, 2)] == ["built-in:1", "built-in:2"]


def run(*words, stdin=""):
    return subprocess.run(
        [sys.executable, ROOT / "widedraft.py", *words], input=stdin, capture_output=True, text=True, check=False
    )


@pytest.mark.usefixtures("warm")
def test_verify_from_the_command_line(target_folder, noisy_folder):
    words = ("--target", target_folder, "--draft", noisy_folder, "--max-new-tokens", "8", "--num-prompts", "2")
    done = run("verify", *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("holds ") == 5
    assert done.stdout.endswith("drafts losslessly for " + str(target_folder) + ": yes\n")


def test_verify_exits_with_1_where_a_law_does_not_hold(monkeypatch, capsys, target_folder, noisy_folder):
    from tests.eval.decoding import test_mutants
    from widedraft import main

    test_mutants.cache_one_long(monkeypatch.setattr)
    pair = ["--target", str(target_folder), "--draft", str(noisy_folder)]
    with pytest.raises(SystemExit) as ended:
        main(["verify", *pair, "--max-new-tokens", "8", "--num-prompts", "2"])
    assert ended.value.code == 1
    assert "FAILS" in capsys.readouterr().out


@pytest.mark.usefixtures("warm")
def test_compare_reads_prompts_from_standard_input(target_folder, noisy_folder):
    words = ("--target", target_folder, "--draft", noisy_folder, "--max-new-tokens", "6", "--num-threads", "1")
    done = run("compare", *words, stdin="first\nsecond\n\nnever\n")
    assert done.returncode == 0, done.stderr
    assert "> first" in done.stdout
    assert "> second" in done.stdout
    assert "never" not in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["verify", "--lookahead", "0"], "--lookahead must be a whole number >= 1 and <= 1000000, got 0."),
        (["verify", "--samples", "-1"], "--samples must be a whole number >= 1 and <= 1000000, got -1."),
        (["verify", "--temperature", "0"], "--temperature must be a number > 0 and <= 1000000, got 0."),
        (["compare", "--temperature", "-1"], "--temperature must be a number >= 0 and <= 1000000, got -1."),
        (["compare", "--max-new-tokens", "0"], "--max-new-tokens must be a whole number >= 1 and <= 1000000, got 0."),
        (["compare", "--prompts", "nowhere.jsonl"], "nowhere.jsonl"),
        (["verify", "--max-new-tokens", "5000"], "max_position_embeddings is 2048"),
    ],
)
def test_mistakes_are_told(capsys, target_folder, noisy_folder, words, said):
    from widedraft import main

    assert main([words[0], "--target", str(target_folder), "--draft", str(noisy_folder), *words[1:]]) == 2
    assert said in capsys.readouterr().err


def test_a_draft_of_another_tokenizer_is_refused(capsys, target_folder, make_checkpoint, tmp_path):
    from widedraft import main

    other = make_checkpoint(seed=8, eos_token_id=2)
    config = json.loads((other / "tokenizer_config.json").read_text(encoding="utf-8")) | {"eos_token": "<|pad|>"}
    (other / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    assert main(["compare", "--target", str(target_folder), "--draft", str(other)]) == 2
    assert "eos_token_id is 0" in capsys.readouterr().err


def test_an_open_pair_knows_where_texts_end(pair):
    assert isinstance(pair, LoadedPair)
    assert pair.stop_ids == {2}
