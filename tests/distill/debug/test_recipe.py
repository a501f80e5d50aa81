"""`--debug` shrinks any recipe, says all it replaces, and leaves the rest alone."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import widedraft
from distill.check import planned_shapes
from distill.data.conversations import load_conversations
from distill.debug import begin_debug, byte_tokenizer, debug_recipe, prompts, tiny_run
from distill.recipe.recipe import Recipe, load_recipe, save_recipe
from eval.chat import render_prompt
from eval.prompts import load_prompts
from tests.distill.recipe_files import tiny_recipe
from tests.rejections import rejects

TARGET = "meta-llama/Llama-2-7b-hf"
TEXT = {"domains": [{"name": "wiki", "dataset": "owner/wiki", "config": "en", "split": "test", "weight": 2.0}]}


def make(architecture: dict, **sections) -> Recipe:
    return Recipe.model_validate(
        {
            "run_name": "real",
            "target": {"path": TARGET},
            "architecture": architecture,
            "data": {"prompts": [{"name": "owner/prompts"}]},
            **sections,
        }
    )


def shrink(recipe: Recipe) -> Recipe:
    cut = planned_shapes(recipe)
    return debug_recipe(recipe, tiny_run(recipe, cut.target, cut.source))


def test_what_a_recipe_says_about_the_method_stays():
    training = {
        "temperature": 2.0,
        "precision": "fp32",
        "parallelism": "fsdp2",
        "device_train_microbatch_size": 8,
        "optimizer": {"lr": 5e-4},
        "scheduler": {"name": "linear_decay_with_warmup", "alpha_f": 0.3, "t_warmup": "10ba"},
        "gradient_clipping": None,
    }
    small = shrink(
        make(
            {"shape": "wide-1.3b", "method": "evenly_spaced", "width_method": "magnitude"},
            data={"prompts": [{"name": "owner/prompts"}], "temperature": 0.7, "top_p": 0.9},
            distill=training,
            export={"dtype": "float16"},
            seed=5,
        )
    )
    for key in ("temperature", "precision", "parallelism", "gradient_clipping"):
        assert getattr(small.distill, key) == training[key], key
    assert small.distill.optimizer.lr == 5e-4
    assert (small.distill.scheduler.name, small.distill.scheduler.alpha_f) == ("linear_decay_with_warmup", 0.3)
    assert (small.architecture.method, small.architecture.width_method) == ("evenly_spaced", "magnitude")
    assert (small.data.temperature, small.data.top_p, small.export.dtype, small.seed) == (0.7, 0.9, "float16", 5)


def test_nothing_of_the_real_run_is_read_or_written():
    small = shrink(
        make(
            {"shape": "wide-1.3b", "calibration": {"text": "wiki.txt"}, "scores": "shared/scores"},
            distill={
                "loggers": {"wandb": {"project": "drafts"}, "file": {"filename": "shared.jsonl"}},
            },
            eval={"tasks": [{"path": "private.jsonl"}, {"name": "owner/bench"}]},
        )
    )
    text = json.dumps(small.model_dump(mode="json"))
    for place in ("owner/", "wiki.txt", "shared", "wandb", "private", TARGET, "runs/real/"):
        assert place not in text, place
    assert (small.run_name, small.run_dir) == ("real-debug", "runs/real-debug")
    assert small.architecture.calibration.text == "runs/real-debug/prompts.jsonl"


def test_shares_names_and_plans_become_numbers():
    for architecture in ({"layers": "0.5x", "hidden": "0.5x", "heads": 16}, {"shape": "deep-1.3b"}):
        small = shrink(make(architecture)).architecture
        assert small.shape is None
        assert all(isinstance(getattr(small, size), int) for size in ("layers", "hidden", "intermediate", "heads"))


def test_a_plan_becomes_the_sizes_it_cuts_to(tmp_path):
    from architectures.pruning.plan import plan_pruning

    real = make({"layers": 16, "method": "first_last"})
    plan = plan_pruning(planned_shapes(real).source, real.architecture, seed=0)
    (tmp_path / "plan.json").write_text(plan.to_json(), encoding="utf-8")
    small = shrink(make({"plan": str(tmp_path / "plan.json")})).architecture
    assert (small.plan, small.layers) == (None, 2)


def test_experts_stay_fewer_than_the_targets(tmp_path):
    sizes = {"num_hidden_layers": 48, "hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 4}
    experts = {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "intermediate_size": 6144}
    config = {"model_type": "qwen3_moe", "head_dim": 128, "vocab_size": 151936, **sizes, **experts}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    real = make({"layers": 6, "heads": 16, "experts": "0.25x"}, target={"path": str(tmp_path)})
    cut = planned_shapes(real)
    tiny = tiny_run(real, cut.target, cut.source)
    assert (tiny.target.experts, tiny.target.active_experts, tiny.draft.experts) == (8, 2, 2)
    assert (debug_recipe(real, tiny).architecture.experts, debug_recipe(real, tiny).architecture.heads) == (2, 8)


def test_stages_stay_stages():
    small = shrink(make({"stages": [16, 8, 5], "heads": 16})).architecture
    assert small.stages == [4, 3, 2]
    assert small.layers is None
    assert small.heads == 2


def test_a_source_becomes_a_tiny_source():
    real = make({"shape": "wide-829m", "source": "meta-llama/Llama-3.2-1B"}, target={"path": "meta-llama/Llama-3.1-8B"})
    cut = planned_shapes(real)
    tiny = tiny_run(real, cut.target, cut.source)
    assert (tiny.target.tied, tiny.source.tied) == (False, True)
    assert tiny.target.vocab == tiny.source.vocab
    assert (tiny.target.intermediate, tiny.source.intermediate) == (224, 256)
    assert debug_recipe(real, tiny).architecture.source == "runs/real-debug/tiny-source"


def test_learned_masks_stay_learned_on_built_in_text():
    small = shrink(make({"shape": "wide-1.3b", "method": "learned_masks", "masks": {"mask_lr": 0.5}}, text=TEXT))
    masks = small.architecture.masks
    assert (masks.max_duration, masks.global_train_batch_size, masks.mask_lr) == ("6ba", 8, 0.5)
    assert small.text is not None
    (domain,) = small.text.domains
    assert (domain.name, domain.path, domain.dataset, domain.weight) == (
        "wiki",
        "runs/real-debug/text.txt",
        None,
        2.0,
    )
    assert small.text.max_seq_len == 32


def test_a_student_on_text_stays_on_text():
    distill = {"train_on": "text", "max_duration": "2000ba"}
    small = shrink(make({"shape": "wide-1.3b"}, text=TEXT, distill=distill)).distill
    assert (small.train_on, small.max_duration) == ("text", "6ba")


def test_self_written_prompts_alone_stay_so_and_no_responses_are_taken_from_the_real_target():
    small = shrink(make({"layers": 5}, data={"self_written_prompts": 500}))
    assert (small.data.self_written_prompts, small.data.prompts) == (12, ())


def test_given_responses_stay_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = {"prompts": [{"name": "owner/chats"}], "responses": "given", "max_seq_len": 4096}
    Path("r.yaml").write_text(json.dumps(make({"layers": 4}, data=data).model_dump(mode="json")))
    small = load_recipe(begin_debug(Path("r.yaml"), [], weights=False))
    assert (small.data.responses, small.data.max_seq_len, small.data.batch_size) == ("given", 128, 8)
    assert (small.data.max_new_tokens, small.data.self_written_prompts) == (16, 0)
    conversations = load_conversations(small.data.prompts)
    assert [each.messages[0]["content"] for each in conversations] == prompts()
    tokenizer = byte_tokenizer()
    assert all(len(render_prompt(tokenizer, each.until(1))) < 128 for each in conversations)
    cached = make({"layers": 4}, data={**data, "batch_size": 500}, distill={"teacher": {"source": "cache"}})
    assert shrink(cached).data.responses == "given"


def test_texts_to_continue_stay_texts(tmp_path, monkeypatch):
    """A base model's recipe goes its own way: no user, no template; other sources are read as before."""
    monkeypatch.chdir(tmp_path)
    data = {"prompts": [{"task": "c4", "num_prompts": 9}, {"name": "owner/chats"}, {"task": "c4", "num_prompts": 7}]}
    tasks = [{"task": "hellaswag"}, {"task": "mt_bench"}, {"task": "starcoder", "num_prompts": 3}]
    recipe = make({"layers": 4}, data=data, eval={"tasks": tasks})
    Path("r.yaml").write_text(json.dumps(recipe.model_dump(mode="json")))
    small = load_recipe(begin_debug(Path("r.yaml"), [], weights=False))
    assert [source.task for source in small.data.prompts] == ["c4", None]
    assert [source.task for source in small.eval.tasks] == ["hellaswag", None, "starcoder"]
    for source in (*small.data.prompts, *small.eval.tasks):
        found = load_prompts([source])
        assert [prompt.messages[0]["content"] for prompt in found] == prompts()
        role = "user" if source.task is None else "text"
        assert {prompt.messages[0]["role"] for prompt in found} == {role}


@pytest.fixture
def recipe_file(tmp_path, monkeypatch, tiny_target):
    """A recipe of a local target in the working folder."""
    monkeypatch.chdir(tmp_path)
    text = "run_name: demo\ntarget: {path: TARGET}\narchitecture: {layers: 2}\ndata: {self_written_prompts: 9}\n"
    Path("demo.yaml").write_text(text.replace("TARGET", str(tiny_target)), encoding="utf-8")
    return Path("demo.yaml")


def test_files_are_the_same_each_time_and_weights_are_not_made_again(recipe_file):
    path = begin_debug(recipe_file, ["seed=4"])
    run = Path("runs/demo-debug")
    files = sorted(file for file in run.rglob("*") if file.is_file())
    before = {file: file.read_bytes() for file in files}
    made_ns = (run / "tiny-target/model.safetensors").stat().st_mtime_ns
    assert path == run / "recipe.yaml"
    assert load_recipe(path).seed == 4
    assert begin_debug(recipe_file, ["seed=4"]) == path
    assert {file: file.read_bytes() for file in files} == before
    assert (run / "tiny-target/model.safetensors").stat().st_mtime_ns == made_ns
    (run / "tiny-target/model.safetensors").unlink()
    begin_debug(recipe_file, ["seed=4"])
    assert {file: file.read_bytes() for file in files} == before
    assert sorted(file for file in run.rglob("*") if file.is_file()) == files


def test_check_makes_no_weights_and_loads_no_torch(recipe_file, capsys):
    import subprocess
    import sys

    root = Path(widedraft.__file__).parent
    program = (
        f"import sys; sys.path.insert(0, {str(root)!r}); import widedraft; widedraft.main(sys.argv[1:]);"
        "sys.exit('torch' if 'torch' in sys.modules else 0)"
    )
    command = [sys.executable, "-c", program, "check", "demo.yaml", "--debug"]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr
    assert "runs/demo-debug/tiny-target" in completed.stdout
    assert "4 layers" in completed.stdout
    assert completed.stderr.startswith("--debug: demo ")
    assert [file.name for file in Path("runs/demo-debug/tiny-target").iterdir()] == ["config.json"]


def test_an_unknown_target_is_refused_with_the_remedy(recipe_file, capsys):
    assert widedraft.main(["run", "demo.yaml", "target.path=owner/unknown", "--debug"]) == 2
    message = capsys.readouterr().err
    assert message.startswith("target.path: owner/unknown ")
    with rejects("architecture.source", "owner/unknown"):
        begin_debug(recipe_file, ["architecture.source=owner/unknown"])
    assert not Path("runs").exists()


def test_prompts_and_tokenizer_of_a_debug_run():
    tokenizer = byte_tokenizer()
    assert len(set(prompts())) == len(prompts()) == 24
    for text in (*prompts(), "naïve – ünïcode 🙂"):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    rendered = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], add_generation_prompt=True, tokenize=False
    )
    assert rendered == "user: Hi</s>\nassistant: "
    assert [tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id] == [0, 1, 2]
    longest = max(
        len(tokenizer.apply_chat_template([{"role": "user", "content": text}], return_dict=False)) for text in prompts()
    )
    assert longest < 112 - 16
    assert len(tokenizer) <= 264


# Targets whose family has no entry: tiny models with every kind of layer of the target

SHRINKS = (
    "gpt_oss",
    "granitemoehybrid",
    "deepseek_v3",
    "falcon_h1",
    "lfm2",
    "qwen3_next",
    "gemma3n",
    "gemma4",
    "qwen3_5",
)
GRANITE = {
    "num_hidden_layers": 40,
    "layer_types": (["mamba"] * 5 + ["attention"] + ["mamba"] * 4) * 4,
}  # as Granite 4.0 has them


def begin(folder, model_type: str, **architecture):
    """Begin the debug run of a recipe whose target is as large as transformers' default of a family."""
    (folder / "target").mkdir()
    config = CONFIG_MAPPING[model_type](**GRANITE if model_type == "granitemoehybrid" else {})
    (folder / "target" / "config.json").write_text(json.dumps(config.to_dict()))
    wanted = {"layers": 2, "method": "first_last"} | architecture
    recipe = tiny_recipe(folder / "run", folder / "target", wanted, {"self_written_prompts": 9})
    save_recipe(recipe, folder / "demo.yaml")
    return begin_debug(folder / "demo.yaml", []).parent, config.get_text_config(decoder=True)


@pytest.mark.parametrize("model_type", SHRINKS)
def test_a_tiny_target_has_all_kinds_of_layers(model_type, tmp_path):
    run, whole = begin(tmp_path, model_type)
    model = AutoModelForCausalLM.from_pretrained(run / "tiny-target")
    assert (model.config.model_type, model.config.num_hidden_layers) == (whole.model_type, 4)
    assert model.num_parameters() < 1_500_000
    assert {*getattr(model.config, "layer_types", ())} == {*getattr(whole, "layer_types", ())}
    logits = model(input_ids=torch.tensor([[1, 70, 80, 90]])).logits
    assert logits.isfinite().all()
    assert load_recipe(run / "recipe.yaml").architecture.layers == 2


def test_the_source_of_the_draft_may_be_of_another_family(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    (source / "config.json").write_text(json.dumps(CONFIG_MAPPING["qwen3"]().to_dict()))
    run, _ = begin(tmp_path, "qwen3_moe", source=str(source), hidden=1024)
    assert json.loads((run / "tiny-source/config.json").read_text())["model_type"] == "qwen3"
    assert json.loads((run / "tiny-target/config.json").read_text())["model_type"] == "qwen3_moe"
    small = load_recipe(run / "recipe.yaml").architecture
    assert (small.source, small.layers) == (str(run / "tiny-source"), 2)
    assert 0 < (small.hidden or 0) < 1024
