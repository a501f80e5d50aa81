"""Targets of families without an entry generate, teach and are scored; drafts are pruned in depth, or have a source.

Of those with experts, Qwen3 MoE has an entry: its drafts are pruned in width too.
"""

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from architectures.hub import read_config
from architectures.shapes import OtherShape, model_shape
from distill.check import check_recipe
from distill.chunked_loss import head_of
from distill.pipeline import cache_stage, eval_stage, generate_stage, prune_stage
from distill.run import Run
from distill.teacher_cache import load_head
from distill.train import train
from eval.decoding.sampling import Limits, Speculation
from eval.decoding.speculative import plain_decode, speculative_decode
from eval.models import load_model
from eval.scorecard_schema import CARD_NAME, read_scorecard
from tests.distill.recipe_files import tiny_recipe, write_prompts

MOE = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
OTHERS = {  # model_type -> entries that it needs beyond those of tests/conftest.py
    "qwen3_moe": MOE | {"decoder_sparse_step": 1, "norm_topk_prob": True},
    "olmoe": MOE,
    "mixtral": MOE,
    "granitemoe": MOE,
    "phimoe": MOE,
    "gpt_oss": MOE | {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"] * 2},
    "cohere": {},
    "cohere2": {"sliding_window": 8},
    "stablelm": {},
}
RECURRENT = {
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "qwen3_next": MOE | {"layer_types": ["linear_attention", "full_attention"] * 2},
    "qwen3_5_text": {"layer_types": ["linear_attention", "full_attention"] * 2},
    "granitemoehybrid": MOE | {"layer_types": ["mamba", "attention"] * 2, "mamba_n_heads": 8, "mamba_d_head": 16},
    "falcon_h1": {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_ssm": 128},
}
OTHERS |= RECURRENT


@pytest.fixture
def target_of(make_checkpoint):
    return lambda model_type: make_checkpoint(seed=3, model_type=model_type, **OTHERS[model_type])


@pytest.mark.parametrize("model_type", OTHERS)
def test_speculative_decoding_of_other_targets_is_lossless(target_of, tiny_draft, model_type):
    target: Any = load_model(target_of(model_type), dtype="float32", device="cpu")
    draft = load_model(tiny_draft, dtype="float32", device="cpu")
    prompts = [[1, 70, 80, 90], [1, 75], [1, *range(60, 80)]]
    limits = Limits(24)
    plain = plain_decode(target, prompts, limits=limits)
    drafted = speculative_decode(target, draft, prompts, limits=limits, speculation=Speculation(3))
    assert [text.token_ids for text in drafted] == [text.token_ids for text in plain]
    for prompt, text in zip(prompts, plain, strict=True):
        ids = torch.tensor([prompt])
        theirs = target.generate(ids, max_new_tokens=24, do_sample=False, eos_token_id=-1)[0, len(prompt) :]
        assert list(text.token_ids) == theirs.tolist()

    stop = plain[1].token_ids[5]  # rows leave the batch where they generate it
    ends = [[*text.token_ids, stop].index(stop) + 1 for text in plain]
    stopped = plain_decode(target, prompts, limits=Limits(24, frozenset({stop})))
    assert min(ends) < 24
    assert [text.token_ids for text in stopped] == [text.token_ids[:end] for text, end in zip(plain, ends, strict=True)]


@pytest.mark.parametrize("model_type", OTHERS)
def test_a_teacher_gives_the_logits_of_the_target(target_of, model_type):
    """Live and from the head in the checkpoint, whatever factor the family applies to its logits."""
    folder, ids = target_of(model_type), torch.tensor([[1, 70, 80, 90]])
    model: Any = load_model(folder, dtype="float32", device="cpu")
    with torch.inference_mode():
        expected = model(input_ids=ids, use_cache=False).logits[0]
        hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state[0]
        for head in (head_of(model), load_head(folder, dtype="float32", device="cpu")):
            torch.testing.assert_close(head.logits(hidden)[:, : expected.shape[1]], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("model_type", ["olmoe", "mixtral", "granitemoe", "cohere2", "stablelm"])
def test_parameters_are_those_of_the_model_up_to_norms_and_routers(model_type):
    config = AutoConfig.for_model(model_type)
    shape = model_shape(config.to_dict())
    assert isinstance(shape, OtherShape)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    counted = sum(each.numel() for each in {id(each): each for each in model.parameters()}.values())
    assert shape.parameters() == pytest.approx(counted, rel=0.02)


@pytest.mark.parametrize(
    ("model_type", "teacher", "source_type"),
    [
        ("qwen3_moe", "live", "qwen3"),
        ("qwen3_5_text", "cache", "qwen3"),
        ("gpt_oss", "live", None),
        ("lfm2", "live", None),
        *(("qwen3_moe", teacher, None) for teacher in ("live", "cache")),
    ],
)
def test_a_run(target_of, make_checkpoint, tmp_path, model_type, teacher, source_type):
    """With a dense draft of another family, and with a draft of the target's first, last or least removable layers."""
    target, architecture = target_of(model_type), {"layers": 2, "method": "greedy", "calibration": {"tokens": 64}}
    if model_type == "qwen3_moe":
        architecture |= {"heads": 2, "experts": 3, "vocabulary": {"size": 259}}
    if source_type is not None:
        source = make_checkpoint(seed=2, model_type=source_type, num_hidden_layers=3)
        architecture = {"layers": 2, "method": "first_last", "source": str(source)}
    data = {"prompts": [{"path": str(write_prompts(tmp_path, 10))}], "num_eval_prompts": 3}
    distill = {"max_duration": "2ba", "global_train_batch_size": 4, "precision": "fp32"}
    recipe = tiny_recipe(
        tmp_path / "run",
        target,
        architecture,
        {**data, "max_seq_len": 64, "max_new_tokens": 8},
        distill={**distill, "scheduler": {"t_warmup": "0ba"}, "teacher": {"source": teacher}},
        eval={"num_prompts": 3, "max_new_tokens": 8, "wall_clock_prompts": 2, "dtype": "float32"},
    )
    run = Run.of(recipe)
    assert any(row.name == "target" for row in check_recipe(recipe))
    generate_stage(run)  # first: a reduced vocabulary is counted in the responses
    prune_stage(run)
    if teacher == "cache":
        cache_stage(run)
    train(recipe)
    eval_stage(run)
    card = read_scorecard(run.eval.path / CARD_NAME)
    assert card.live.agreement.exact
    draft = read_config(run.draft.path)
    assert (draft["model_type"], draft["num_hidden_layers"]) == (source_type or model_type, 2)
    if "experts" in architecture:
        sizes = [draft[f"num_{name}"] for name in ("experts", "attention_heads", "key_value_heads")]
        assert (*sizes, draft["head_vocab_size"]) == (3, 2, 1, 259)
    trained, initial = (
        load_model(each, dtype="float32", device="cpu").state_dict() for each in (run.draft.path, run.init.path)
    )
    assert any(not torch.equal(tensor, initial[name]) for name, tensor in trained.items())
