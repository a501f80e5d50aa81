"""Recorded answers: which a draft may be scored on, which are refused, and how they become text."""

import json
import shutil

import pytest

from architectures.checkpoints.fingerprint import fingerprint_checkpoint
from architectures.errors import UserError
from eval.answers.traces import Trace, read_traces
from eval.models.loading import load_tokenizer
from eval.recorded.answers import answer_lengths, number_prompts, read_recorded_text, read_recorded_traces
from eval.recorded.export import export_recorded


def test_the_export_leaves_a_manifest(greedy_traces, target_folder, tmp_path):
    export_recorded(greedy_traces, target_folder, tmp_path)
    assert json.loads((tmp_path / "manifest.json").read_text())["target"] == fingerprint_checkpoint(target_folder)


def test_special_tokens_the_tokenizer_adds_are_not_written_twice(record, target_folder, tmp_path):
    """A tokenizer that begins every text with BOS: the prompt's text leaves it out, and it comes back."""
    from tokenizers.processors import TemplateProcessing

    folder = tmp_path / "bos"
    shutil.copytree(target_folder, folder)
    tokenizer = load_tokenizer(folder)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)]
    )
    tokenizer.chat_template = None
    tokenizer.save_pretrained(folder)
    (folder / "chat_template.jinja").unlink()
    record(folder, tmp_path / "traces", num_prompts=2)
    export_recorded(tmp_path / "traces", folder, tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "prompts.jsonl").read_text().splitlines()]
    assert rows == [{"prompt": "why"}, {"prompt": "how many"}]
    recording = read_recorded_text(tmp_path / "ground_truth.txt", str(tmp_path / "prompts.jsonl"), folder)
    assert recording.answers[0].prompt_ids == read_traces(tmp_path / "traces", "eval")[0].prompt_ids
    assert recording.answers[0].prompt_ids[0] == 1


def test_a_prompt_that_is_no_text_is_not_exported(record, target_folder, tmp_path):
    record(target_folder, tmp_path, num_prompts=1)
    shard = tmp_path / "eval-00000.jsonl"
    row = json.loads(shard.read_text())
    shard.write_text(json.dumps({**row, "prompt_ids": [240, 5]}) + "\n")  # half a character
    with pytest.raises(UserError, match=r"p\.jsonl:1: the tokens of this prompt are those of no text"):
        export_recorded(tmp_path, target_folder, tmp_path / "text")
    assert not (tmp_path / "text").exists()


def test_sampled_answers_are_not_exported_as_greedy_ones(sampled_traces, target_folder, tmp_path):
    with pytest.raises(UserError, match=r"were written at temperature 0\.7, and the text form does not say so"):
        export_recorded(sampled_traces, target_folder, tmp_path)


def with_swapped_tokens(folder, out):
    """The model with a tokenizer in which two bytes have changed places."""
    shutil.copytree(folder, out)
    content = json.loads((out / "tokenizer.json").read_text())
    vocabulary = content["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (out / "tokenizer.json").write_text(json.dumps(content))
    return out


def test_a_draft_with_another_vocabulary_is_refused(greedy_traces, noisy_folder, tmp_path):
    draft = with_swapped_tokens(noisy_folder, tmp_path / "draft")
    with pytest.raises(
        UserError, match=r"draft: its tokenizer is not that of the answers in .*: vocabulary is \w{12}…"
    ):
        read_recorded_traces(greedy_traces, draft)


def test_a_draft_with_another_stop_token_is_refused(greedy_traces, noisy_folder, tmp_path):
    draft = tmp_path / "draft"
    shutil.copytree(noisy_folder, draft)
    settings = json.loads((draft / "tokenizer_config.json").read_text())
    (draft / "tokenizer_config.json").write_text(json.dumps({**settings, "eos_token": "<|pad|>"}))
    with pytest.raises(UserError, match="eos_token_id is 0, but 2 there"):
        read_recorded_traces(greedy_traces, draft)


def test_a_draft_may_have_another_chat_template(greedy_traces, noisy_folder, tmp_path):
    """The tokens of the prompts are recorded, so nothing is rendered again."""
    draft = tmp_path / "draft"
    shutil.copytree(noisy_folder, draft)
    (draft / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    assert (
        read_recorded_traces(greedy_traces, draft).answers == read_recorded_traces(greedy_traces, noisy_folder).answers
    )


def test_a_draft_without_rows_for_all_tokens_is_refused(greedy_traces, noisy_folder, tmp_path):
    draft = tmp_path / "draft"
    shutil.copytree(noisy_folder, draft)
    settings = json.loads((draft / "config.json").read_text())
    (draft / "config.json").write_text(json.dumps({**settings, "vocab_size": 258}))
    with pytest.raises(UserError, match="vocab_size is 258 but its tokenizer has tokens up to id 258"):
        read_recorded_traces(greedy_traces, draft)


def test_an_id_that_the_draft_has_no_row_for_is_refused_by_line(greedy_traces, noisy_folder, tmp_path):
    traces = tmp_path / "traces"
    shutil.copytree(greedy_traces, traces)
    shard = traces / "eval-00001.jsonl"
    first, second = (json.loads(line) for line in shard.read_text().splitlines())
    second["answer_ids"][1] = 264
    shard.write_text(f"{json.dumps(first)}\n{json.dumps(second)}\n")
    message = rf"eval-00001\.jsonl:2: token id 264 is beyond the vocabulary of {noisy_folder}, which has vocab_size 264"
    with pytest.raises(UserError, match=message):
        read_recorded_traces(traces, noisy_folder)


def changed_claim(traces, out, change):
    shutil.copytree(traces, out)
    claims = json.loads((out / "settings.json").read_text())
    change(claims)
    (out / "settings.json").write_text(json.dumps(claims))
    return out


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda claims: claims["eval"].pop("tokenizer"), "does not say which tokenizer its answers are of"),
        (lambda claims: claims.update(train=claims.pop("eval")), "holds train answers alone, and a draft is scored on"),
        (lambda claims: claims.clear(), "holds no answers, and a draft is scored on eval answers"),
        (lambda claims: claims["eval"].update(num_shards=0), "its eval answers are none"),
    ],
)
def test_answers_that_cannot_be_scored_are_refused(greedy_traces, noisy_folder, tmp_path, change, message):
    folder = changed_claim(greedy_traces, tmp_path / "traces", change)
    with pytest.raises(UserError, match=message) as caught:
        read_recorded_traces(folder, noisy_folder)
    assert str(caught.value).startswith(str(folder))


def test_the_mass_kept_does_not_matter_to_greedy_answers(greedy_traces, noisy_folder, tmp_path):
    folder = changed_claim(
        greedy_traces, tmp_path / "traces", lambda claims: claims["eval"]["settings"].update(top_p=0.9)
    )
    recording = read_recorded_traces(folder, noisy_folder)
    assert (recording.temperature, recording.words) == (0, "temperature 0")


@pytest.fixture
def text_files(tmp_path):
    def write(blocks, *rows):
        (tmp_path / "truth.txt").write_text(blocks)
        (tmp_path / "p.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
        return tmp_path / "truth.txt", str(tmp_path / "p.jsonl")

    return write


@pytest.mark.parametrize(
    ("blocks", "rows", "message"),
    [
        ("tensor([[1]])\ntensor([[2]])", [{"prompt": "a"}], r"truth\.txt: holds 2 blocks, but .*p\.jsonl 1 prompts"),
        ("tensor([[1]])\ntensor([[2, 3", [{"prompt": "a"}] * 3, r"truth\.txt:2: block 2 is cut short: the file ends"),
        ("tensor([[1]])", [{"question": "a"}], r"p\.jsonl:1: has none of the known fields prompt; it has question"),
        ("tensor([[1]])", [{"prompt": " "}], r"p\.jsonl:1: prompt must be a non-empty text"),
        (
            "tensor([[1,\n264]])",
            [{"prompt": "a"}],
            r"truth\.txt:2: block 1 holds 264, but the draft's vocab_size is 264",
        ),
    ],
)
def test_text_and_prompts_that_do_not_fit_are_refused(text_files, noisy_folder, blocks, rows, message):
    with pytest.raises(UserError, match=message):
        read_recorded_text(*text_files(blocks, *rows), noisy_folder)


def test_prompts_behind_the_last_answer_are_left_out(text_files, noisy_folder):
    """The published file holds 145 blocks, and lies beside 10,003 prompts."""
    blocks = "\n".join(f"tensor([[{5 + i}, 6]])" for i in range(145))
    rows = [{"prompt": f"row {i}"} for i in range(10_003)]
    recording = read_recorded_text(*text_files(blocks, *rows), noisy_folder)
    assert (recording.num_prompts, recording.unanswered) == (145, 9858)
    assert [answer.answer_ids for answer in recording.answers] == [(5 + i, 6) for i in range(145)]
    last = recording.answers[-1]
    assert last.source.endswith("p.jsonl:145")
    assert load_tokenizer(noisy_folder).decode(last.prompt_ids) == "row 144"


def test_prompts_of_text_are_read_without_a_chat_template(text_files, noisy_folder):
    recording = read_recorded_text(*text_files("tensor([[5, 6]])", {"prompt": "why"}), noisy_folder)
    tokenizer = load_tokenizer(noisy_folder)
    assert tokenizer.decode(recording.answers[0].prompt_ids) == "why"
    assert recording.answers[0].answer_ids == (5, 6)


def test_turns_of_one_conversation_are_one_prompt(greedy_traces):
    answers = number_prompts(read_traces(greedy_traces, "eval"))
    assert [answer.prompt for answer in answers] == [0, 1, 2, 3, 4, 5, 5, 5]


def test_rows_of_one_name_are_prompts_of_their_own():
    sources = ["a:1", "a:1", "a:1#2", "a:2#2", "b#3", "b#4", "c"]
    traces = [Trace(i, source, (), (1,), (2,), "", "length") for i, source in enumerate(sources)]
    assert [answer.prompt for answer in number_prompts(traces)] == [0, 1, 1, 2, 3, 3, 4]


def test_lengths_of_answers_in_either_form(greedy_traces, target_folder, tmp_path):
    export_recorded(greedy_traces, target_folder, tmp_path)
    expected = [len(trace.answer_ids) for trace in read_traces(greedy_traces, "eval")]
    assert answer_lengths(greedy_traces) == answer_lengths(tmp_path / "ground_truth.txt") == expected
