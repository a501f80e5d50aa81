"""What `widedraft check` computes is what the stages then make; every mistake is collected."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest

import widedraft
from architectures import manifest
from architectures.compatibility import LABELS, check
from architectures.errors import UserError
from architectures.gguf_export import export_gguf
from architectures.manifest import write_manifest
from distill import stage_inputs
from distill.check import check_recipe, planned_pair, planned_shapes
from distill.debug import debug_recipe, tiny_run
from distill.recipe.recipe import load_recipe, save_recipe
from distill.run import Run, target_record
from distill.stage_inputs import draft_inputs, generate_inputs
from eval.prompts import load_prompts
from eval.tasks import PromptSource
from tests.conftest import edit_json
from tests.rejections import rejects

RECIPE = """\
run_name: demo
run_dir: run
target: {path: TARGET}
architecture: {layers: 2, method: first_last}
data: {prompts: [{path: prompts.jsonl}], num_eval_prompts: 2, max_seq_len: 100, max_new_tokens: 40}
distill: {global_train_batch_size: 4}
"""


@pytest.fixture
def checked(tmp_path, tiny_target, monkeypatch):
    """checked("key=value", ..., device=...) -> the rows, by name; several of a name are joined."""
    monkeypatch.chdir(tmp_path)
    Path("demo.yaml").write_text(RECIPE.replace("TARGET", str(tiny_target)), encoding="utf-8")
    write_prompts(12)

    def check(*overrides: str, **machine) -> dict[str, str]:
        rows = check_recipe(load_recipe("demo.yaml", overrides), **machine)
        return {
            row.name: "\n".join(each.value + each.details for each in rows if each.name == row.name) for row in rows
        }

    return check


def write_prompts(count: int) -> None:
    rows = [json.dumps({"prompt": f"Count to {number}."}) for number in range(count)]
    Path("prompts.jsonl").write_text("\n".join(rows), encoding="utf-8")


def finish_data(counts: dict) -> None:
    recipe = load_recipe("demo.yaml", ())
    save_recipe(recipe, Path("run/recipe.yaml"))
    record = {"inputs": generate_inputs(Run.of(recipe)), "counts": counts, "target": target_record(recipe.target)}
    write_manifest(Path("run/data"), stage="generate", **record)


def test_a_tokenizer_with_more_tokens_than_the_target_has_rows_is_rejected(checked, make_checkpoint):
    narrow = make_checkpoint(vocab_size=258)
    with rejects(narrow, 258):
        checked(f"target.path={narrow}")
    with rejects(narrow, 258):
        widedraft.run_command("generate", ["demo.yaml", f"target.path={narrow}"])


def test_shapes_and_parameters_are_the_models_own(checked, tiny_target):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_target)
    total = sum(parameter.numel() for parameter in model.parameters())
    layer = sum(parameter.numel() for parameter in model.model.layers[0].parameters())
    rows = checked()
    for name, layers, parameters in (("target", 4, total), ("draft", 2, total - 2 * layer)):
        assert f"{layers} layers, hidden 64, vocabulary 264, {parameters:,} parameters" in rows[name]
        assert "; intermediate 128, 4 heads of 16 (2 kv)" in rows[name]
    assert rows["pruned by"] == "first_last, layers 0, 3 of 0 to 3"
    assert "not checked" not in rows


def test_a_published_target_and_its_nominal_sizes_come_from_the_table(checked):
    rows = checked("target.path=meta-llama/Llama-2-7b-hf", "architecture={shape: wide-796m}")
    assert "6,738,415,616 parameters" in rows["target"]
    assert rows["target"].endswith("nominal 7B")
    assert "1,274,064,896 parameters" in rows["draft"]
    assert rows["not checked"].startswith("meta-llama/Llama-2-7b-hf: ")


@pytest.mark.parametrize(
    ("overrides", "steps"),
    [
        ((), (3, "(1ep), 1 epochs")),
        (("distill.max_duration=5ba",), (5, "(5ba), 1.8 epochs")),
        (("data.prompts=[{name: openai/gsm8k}]",), ("unknown", "(1ep)")),
        (
            ("data.prompts=[{name: openai/gsm8k, num_prompts: 90}, {path: prompts.jsonl}]",),
            ("at most 25", "(1ep), 1 epochs"),
        ),
        (
            (
                "distill.train_on=text",
                "distill.max_duration=30ba",
                "text={domains: [{name: wiki, path: wiki.txt}], max_seq_len: 64}",
            ),
            (30, "of 4 sequences of 63 tokens (30ba)"),
        ),
    ],
)
def test_steps(checked, overrides, steps):
    begin, end = steps
    found = checked(*overrides)["steps"]
    assert found.startswith(f"{begin} ")
    assert found.endswith(end)


def test_tokens_are_counted_by_the_tokenizer_and_by_finished_responses(checked, tiny_target):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_target)
    texts = [f"Count to {number}." for number in range(12)]
    prompt = round(sum(len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts) / 12)
    assert f"of {prompt + 40} tokens" in checked()["steps"]  # responses of 40 tokens, the most there may be
    finish_data({"prompts": 12, "train": {"responses": 9, "response_tokens": 180}})
    rows = checked()
    assert rows["steps"].startswith(f"3 of 4 sequences of {prompt + 20} ")
    assert f"of {prompt + 40} tokens" in checked("data.temperature=1")["steps"]


def test_a_batch_is_at_most_the_data(checked):
    rows, huge = checked("distill.global_train_batch_size=10"), checked("distill.global_train_batch_size=100000000")
    assert huge["memory"] == rows["memory"]
    assert huge["steps"] == rows["steps"]


DAMAGES = {
    "empty": ("model.safetensors", lambda path: path.write_bytes(b"")),
    "truncated": ("model.safetensors", lambda path: os.truncate(path, 50_000)),
    "no header": ("model.safetensors", lambda path: path.write_bytes(b"\xff" * 400_000)),
    "none": ("model.safetensors", lambda path: path.unlink()),
    "of other weights": ("config.json", lambda path: edit_json(path, hidden_size=128)),
    "a directory": ("tokenizer.json", lambda path: (path.unlink(), path.mkdir())),
    "no token": ("generation_config.json", lambda path: edit_json(path, eos_token_id=[2, 264])),
}


@pytest.mark.parametrize("what", DAMAGES)
@pytest.mark.parametrize("key", ["target.path", "architecture.source"])
def test_a_checkpoint_that_later_stages_reject_is_rejected(checked, tiny_target, what, key):
    name, damage = DAMAGES[what]
    if key == "architecture.source" and name == "tokenizer.json":
        pytest.skip("the draft gets the target's")
    shutil.copytree(tiny_target, "damaged")
    damage(Path("damaged", name))
    with rejects("damaged"):
        checked(f"{key}=damaged")


def test_a_truncated_gguf_is_rejected(checked, with_merges, make_checkpoint):
    export_gguf(with_merges(make_checkpoint(seed=1)), Path("target.gguf"), "f16", name="target")
    checked("target.path=target.gguf")
    os.truncate("target.gguf", Path("target.gguf").stat().st_size - 1000)
    with rejects("target.gguf"):
        checked("target.path=target.gguf")


def test_given_conversations_are_counted_whole(checked):
    turns = [{"role": role, "content": "x"} for role in ("user", "assistant") * 3]
    rows = [{"messages": turns}, *({"prompt": f"{number}", "answer": "y"} for number in range(9))]
    Path("prompts.jsonl").write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    assert checked("data.responses=given")["steps"].startswith("2 of 4")
    write_prompts(3)
    with rejects("prompts.jsonl:1:", "response"):
        checked("data.responses=given")


def test_no_weights_are_read_for_finished_responses(checked, monkeypatch):
    finish_data({"prompts": 12, "train": {"responses": 9, "response_tokens": 180}})
    read, hash_of = [], manifest.sha256_of_file
    monkeypatch.setattr(manifest, "sha256_of_files", lambda paths, **_: read.append(paths))
    for module in (manifest, stage_inputs):
        monkeypatch.setattr(module, "sha256_of_file", lambda path: read.append(path.name) or hash_of(path))
    assert checked()["prompts"].startswith("12, 2 ")
    assert read == ["prompts.jsonl"]


def test_everything_wrong_is_told_at_once(checked):
    Path("empty.jsonl").write_text("", encoding="utf-8")
    Path("odd.jsonl").write_text('{"prompt": "a"}\n{"text": "b"}\n', encoding="utf-8")
    with pytest.raises(UserError) as raised:
        checked(
            "target.path=./nowhere",
            "data.prompts=[{path: absent.jsonl}, {path: empty.jsonl}]",
            "eval.tasks=[{path: odd.jsonl}]",
            device="abacus",
        )
    lines = str(raised.value).splitlines()
    begins = ["--device abacus", "target.path", "absent.jsonl", "empty.jsonl", "odd.jsonl:2"]
    assert [line.split(": ")[0] for line in lines] == begins


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (("architecture.layers=5",), "layers 5"),
        (("architecture.layers=null", "architecture.stages=[99,1]"), "architecture.stages must begin"),
        (("data.num_eval_prompts=12",), "data.num_eval_prompts"),
        (("distill.freeze_input_embeddings=true",), "distill.freeze_input_embeddings"),
        (("distill.teacher={source: cache, contents: top_k, k: 265}",), "distill.teacher"),
        (("target.path=nowhere.gguf",), "target.path: nowhere.gguf"),
        (("architecture.vocabulary={from: ids.json}",), "ids.json"),
        (("architecture.vocabulary={size: 20}",), "architecture.vocabulary.size"),
        (("export.engines=[vllm]", "export.tensor_parallel=8"), "export.engines: vLLM"),
    ],
)
def test_what_would_fail_later_is_refused(checked, overrides, key):
    Path("ids.json").write_text(json.dumps([*range(200), 264]), encoding="utf-8")
    with pytest.raises(UserError) as raised:
        checked(*overrides)
    assert key in str(raised.value)


def test_template_arguments_alternate_over_the_rows_of_all_sources(checked, monkeypatch):
    found = []
    monkeypatch.setattr("distill.check.reject_unrendered", lambda _run, sources, _malformed: found.extend(sources))
    Path("one.jsonl").write_text('{"prompt": "Count."}')
    kwargs = [{"enable_thinking": False}, {}]
    checked(
        "data.prompts=[{path: one.jsonl}, {path: prompts.jsonl}]", f"data.chat_template_kwargs={json.dumps(kwargs)}"
    )
    sources = [PromptSource(path="one.jsonl"), PromptSource(path="prompts.jsonl")]
    assert [row for rows in found for row in rows] == load_prompts(sources, chat_template_kwargs=kwargs)


def test_a_logger_without_its_package_is_refused_until_the_draft_is_trained(checked, monkeypatch):
    monkeypatch.setattr("distill.check.missing_package", lambda name: f"distill.loggers: {name} is not installed")
    with rejects("distill.loggers"):
        checked("distill.loggers=[wandb]")


def test_what_a_device_cannot_hold_is_refused(checked):
    dtypes = ("target.dtype=bfloat16", "distill.precision=amp_bf16", "eval.dtype=bfloat16")
    lengths = ("data.max_seq_len=100", "eval.max_new_tokens=8")
    words = ("target.path=meta-llama/Llama-2-7b-hf", "architecture={shape: wide-796m}", *lengths, *dtypes)
    rows = checked(*words, device="nvidia-h100-80gb-hbm3")
    assert re.search(r"generate [\d.]+ of 79.1 GiB: target 12.55", rows["memory"])
    assert "one NVIDIA H100 80GB HBM3" in rows["hours"]
    with pytest.raises(UserError) as raised:
        checked(*words, device_gib=20)
    assert [line.split(":")[0] for line in str(raised.value).splitlines()] == ["distill"]
    with rejects("generate", 2):
        checked(*words, device_gib=4, processes=2)
    sharded = ("distill.parallelism=fsdp2", "distill.device_train_microbatch_size=1")
    assert checked(*words, *sharded, device_gib=20)


@pytest.mark.parametrize(
    "word",
    [
        "distill.max_duration=999_999_999_999_999ba",
        "distill.max_duration=999999999999999e15ep",
        "distill.global_train_batch_size=999999999999999999",
        "data.prompts[0].num_prompts=999999999999999999",
    ],
)
def test_the_largest_numbers_a_recipe_may_hold(checked, word):
    assert checked(word)


def test_a_run_refuses_what_check_refuses(checked, capsys):
    assert widedraft.main(["run", "demo.yaml", "data.num_eval_prompts=12"]) == 2
    assert "data.num_eval_prompts" in capsys.readouterr().err
    assert not Path("run/init").exists()


def test_rows_that_the_template_rejects_are_named_before_any_stage(checked, tmp_path):
    rows = [{"messages": [{"role": "user", "content": "a"}]}] * 12
    called = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
    rows[7] = {"messages": [{"role": "user", "content": "a"}, called, {"role": "tool", "content": "b"}]}
    rows[9] = {"messages": [{"role": "user", "content": None}]}
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    with rejects(f"{path}:8:", f"{path}:10:"):
        checked(f"data.prompts=[{{path: {path}}}]")
    assert checked(f"data.prompts=[{{path: {path}}}]", "data.malformed=skip", "data.num_eval_prompts=2")[
        "malformed rows"
    ]
    with rejects("data.max_seq_len"):
        checked(
            f"data.prompts=[{{path: {path}}}]", "data.malformed=skip", "data.max_seq_len=2", "data.num_eval_prompts=2"
        )


ENGINES = "export.engines=[vllm, llama.cpp]"


def test_a_reduced_vocabulary_that_can_be_exported_in_a_form_is_not_refused(checked):
    small = load_recipe("demo.yaml", ["architecture.vocabulary={size: 260, from: responses}"])
    pair = planned_pair(small, planned_shapes(small).draft)
    for engine in LABELS:
        assert next((each.what, each.is_fatal) for each in check(engine, pair)) == ("output head", False)


def test_check_refuses_a_shape_that_an_engine_does_not_serve(checked, capsys):
    words = ["check", "demo.yaml", ENGINES, "export.tensor_parallel=3", "run_dir=eagle-runs/demo"]
    assert widedraft.main(words) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("export.engines: vLLM")]
    assert [line.split(": ")[2] for line in lines] == ["tensor parallel", "tensor parallel", "name"]


def test_naming_engines_makes_no_draft_stale(checked):
    words = ((), (ENGINES, "export.tensor_parallel=2"), ("export.dtype=float32",))
    plain, named, rounded = (draft_inputs(Run.of(load_recipe("demo.yaml", each))) for each in words)
    assert plain == named != rounded


def test_a_debug_run_is_for_no_engine(checked):
    named = load_recipe("demo.yaml", [ENGINES, "export.tensor_parallel=4"])
    target = planned_shapes(named).target
    small = debug_recipe(named, tiny_run(named, target, target))
    assert (small.export.engines, small.export.tensor_parallel) == ([], 1)


@pytest.fixture
def recipes(checked):
    """The names of two recipes in the working folder."""
    for name in ("one", "two"):
        Path(f"{name}.yaml").write_text(Path("demo.yaml").read_text().replace("demo", name))
    return ["one.yaml", "two.yaml"]


def test_several_recipes_are_checked_each_under_its_heading(recipes, capsys):
    assert widedraft.main(["check", *recipes, "architecture.layers=3", "one.yaml"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("==")] == ["== one.yaml", "== two.yaml"]
    assert sum("3 layers" in line for line in lines) == 2


def test_verbose_prints_a_row_per_stage(recipes, capsys):
    lines = []
    for options in ([], ["--verbose"]):
        assert widedraft.main(["check", "one.yaml", *options]) == 0
        lines.append([line for line in capsys.readouterr().out.splitlines() if line.startswith("memory ")])
    assert [len(each) for each in lines] == [1, 3]


def test_a_wrong_recipe_among_several_does_not_hide_the_others(recipes, capsys):
    Path("one.yaml").write_text(Path("one.yaml").read_text().replace("layers: 2", "layers: 9"))
    assert widedraft.main(["check", *recipes]) == 2
    told = capsys.readouterr()
    assert "2 layers" in told.out
    assert told.err.splitlines()[0].startswith("architecture ")
    last = told.err.splitlines()[-1]
    assert last.startswith("1 of 2 ")
    assert "one.yaml" in last


def test_a_word_that_is_neither_recipe_nor_value_is_a_mistake_of_each(recipes, capsys):
    assert widedraft.main(["check", *recipes, "seed"]) == 2
    assert capsys.readouterr().err.count("command line: seed: ") == 2


@pytest.mark.parametrize("command", ["run", "prune", "export", "eval", "choose", "cache"])
def test_other_commands_take_one_recipe(command, recipes, capsys):
    assert widedraft.main([command, *recipes, "seed=1"]) == 2
    assert "two.yaml" in capsys.readouterr().err
    assert not Path("run").exists()
