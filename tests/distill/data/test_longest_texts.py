"""Texts longer than a model was made for are refused: by check, by every stage, and by whoever writes responses."""

import pytest

from architectures.shapes import ContextLength
from distill.recipe.recipe import Recipe
from distill.run import reject_long_texts
from distill.train import train
from eval.chat import user_turn
from eval.decoding.generate import within_context, write_traces
from eval.prompts import Prompt
from eval.responses import DecodingSettings, read_traces
from tests.distill.recipe_files import write_recipe
from tests.rejections import holds, rejects
from widedraft import main

SETTINGS = """
data: {{prompts: [{{path: {prompts}}}], num_eval_prompts: 2, max_seq_len: 65, max_new_tokens: 64}}
distill: {{global_train_batch_size: 4}}
eval: {{max_prompt_len: 64, max_new_tokens: 64, dtype: float32}}
"""
# Each made for 128 tokens; how every family says it is in tests/architectures/shapes/test_shapes.py.
FAMILIES = {"gpt2": {"n_layer": 4, "n_head": 4, "n_embd": 64}, "llama": {}}
TEMPLATE_TOKENS = 19  # what the tiny chat template adds to a prompt


@pytest.mark.parametrize("stage", ["check", "prune", "generate", "run"])
@pytest.mark.parametrize("family", FAMILIES)
def test_one_token_too_many_is_refused_everywhere(tmp_path, make_checkpoint, capfd, family, stage):
    target = make_checkpoint(model_type=family, **FAMILIES[family], max_position_embeddings=128)
    recipe = str(write_recipe(tmp_path, target, "{layers: 2, method: first_last}", SETTINGS, num_prompts=8))
    assert main(["check", recipe]) == 0
    assert main([stage, recipe, "data.max_seq_len=66"]) == 2
    assert holds(capfd.readouterr().err, "129")


LIMIT = {"here": ContextLength(128, "n_positions is 128")}
DOMAIN = {"domains": [{"name": "a", "path": "a.txt"}]}
ON_TEXT = {"train_on": "text", "max_duration": "2ba"}


def recipe_of(**sections) -> Recipe:
    settings = {
        "data": {"self_written_prompts": 1, "max_seq_len": 65, "max_new_tokens": 64},
        "eval": {"max_prompt_len": 64, "max_new_tokens": 64},
        "architecture": {"layers": 2, "method": "first_last"},
    }
    merged = {name: {**settings.get(name, {}), **sections.get(name, {})} for name in {**settings, **sections}}
    return Recipe.model_validate({"run_name": "r", "target": {"path": "here"}, **merged})


@pytest.mark.parametrize(
    ("sections", "named"),
    [
        ({"data": {"max_seq_len": 129}}, "data.max_seq_len data.max_new_tokens 192"),
        ({"data": {"max_seq_len": 300, "max_new_tokens": 200}}, "max_new_tokens 499"),
        ({"text": {**DOMAIN, "max_seq_len": 129}, "distill": ON_TEXT}, "text.max_seq_len 129"),
        ({"eval": {"max_new_tokens": 65}}, "eval.max_new_tokens 129"),
        ({"eval": {"max_new_tokens": 128}}, "eval.max_new_tokens 192"),
    ],
)
def test_every_key_that_makes_long_texts_is_named(sections, named):
    reject_long_texts(recipe_of(), LIMIT, {})
    with rejects(*named.split()):
        reject_long_texts(recipe_of(**sections), LIMIT, {})
    reject_long_texts(recipe_of(**sections), {"here": None}, {})


def test_prompts_to_score_are_no_longer_than_those_of_the_data_unless_tasks_bring_others():
    reject_long_texts(recipe_of(eval={"max_prompt_len": 1024}), LIMIT, {})
    tasks = {"max_prompt_len": 1024, "tasks": [{"path": "a.jsonl"}]}
    with rejects("eval.max_prompt_len"):
        reject_long_texts(recipe_of(eval=tasks), LIMIT, {})


def test_a_draft_reads_responses_and_need_not_write_them():
    long_target = {"here": ContextLength(9000, "")}
    reject_long_texts(recipe_of(data={"max_seq_len": 128}), long_target, {"there": LIMIT["here"]})
    with rejects("data.max_seq_len", 129, 128):
        reject_long_texts(recipe_of(data={"max_seq_len": 129}), long_target, {"there": LIMIT["here"]})


def test_training_refuses_an_init_made_for_shorter_texts(make_run, make_checkpoint):
    recipe = make_run(init=make_checkpoint(num_hidden_layers=2, max_position_embeddings=29))
    with rejects("data.max_seq_len", 30, "run/init", 29):
        train(recipe)


def settings(**changed) -> DecodingSettings:
    usual = {"max_new_tokens": 64, "temperature": 0.0, "top_p": 1.0, "batch_size": 4, "shard_size": 4}
    return DecodingSettings(**{**usual, "max_prompt_len": 1000, "seed": 1, "dtype": "float32", **changed})


@pytest.mark.parametrize("family", FAMILIES)
def test_prompts_without_room_for_an_response_are_left_out_by_their_places(make_checkpoint, tmp_path, capsys, family):
    target = make_checkpoint(model_type=family, **FAMILIES[family], max_position_embeddings=128)
    lengths = [64 - TEMPLATE_TOKENS, 65 - TEMPLATE_TOKENS, 100]
    prompts = [Prompt(f"a.jsonl:{n}", (user_turn("a" * length),)) for n, length in enumerate(lengths, start=1)]
    write_traces(target, prompts, tmp_path, settings())
    [trace] = read_traces(tmp_path, "train")
    assert len(trace.prompt_ids) + 64 == 128
    assert "a.jsonl:2, a.jsonl:3" in capsys.readouterr().err
    with rejects(2, 64, "a.jsonl:2", "a.jsonl:3"):
        write_traces(target, prompts[1:], tmp_path / "none", settings())


def test_responses_that_leave_no_room_for_prompts_are_refused(make_checkpoint):
    target = make_checkpoint(max_position_embeddings=64)
    assert within_context(target, settings(max_new_tokens=63)).max_prompt_len == 1
    with rejects("max_new_tokens=64"):
        within_context(target, settings())
