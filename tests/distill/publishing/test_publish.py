"""What a push sends: every file, the card, the evidence; and what it refuses before anything is sent."""

import json
import shutil

import pytest
import torch
from huggingface_hub import ModelCard
from transformers import AutoModelForCausalLM

import widedraft
from architectures.checkpoints.fingerprint import fingerprint_checkpoint
from architectures.checkpoints.generation_settings import read_generation_settings
from architectures.errors import UserError
from architectures.files.atomic import write_json
from architectures.targets.target import read_config
from distill.hub.licences import terms_of
from distill.hub.publish import fit_context, lay_out_small_head, write_terms
from distill.hub.serving import servings_of
from eval.report import read_run
from tests.distill.publishing.conftest import BASE, write_dry


@pytest.fixture(scope="session")
def laid_out(finished, tmp_path_factory):
    """laid_out[name] -> what a dry run writes of a run."""
    place = tmp_path_factory.mktemp("laid-out")
    for name, run in finished.items():
        write_dry(run, place / name)
    return {name: place / name for name in finished}


def words(run, *more):
    return ["push", str(run), "--repo-id", "org/draft", "--base-model", BASE, *map(str, more)]


def test_a_draft_with_a_whole_head_lies_at_the_root(laid_out, finished, published_target):
    out = laid_out["whole"]
    names = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    assert names == {
        "README.md",
        "acceptance.json",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "plan.json",
        "provenance.json",
        "recipe.yaml",
        "report.html",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
    }
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (out / name).read_bytes() == (published_target / name).read_bytes()
    assert fingerprint_checkpoint(out) == fingerprint_checkpoint(finished["whole"] / "draft")


def test_the_config_names_what_engines_would_guess(laid_out, published_target):
    config = read_config(laid_out["whole"])
    assert config["head_dim"] == 16
    assert config["num_key_value_heads"] == 2
    assert config["vocab_size"] == read_config(published_target)["vocab_size"]
    assert config["max_position_embeddings"] >= 2048
    settings = read_generation_settings(laid_out["whole"])
    assert settings["num_assistant_tokens_schedule"] == "constant"
    assert settings["assistant_confidence_threshold"] == 0.0
    assert settings["num_assistant_tokens"] in (1, 2, 3)


def test_transformers_opens_the_root_of_both_and_it_says_what_the_draft_says(laid_out, finished):
    ids_BT = torch.tensor([[1, 70, 80, 90]])
    published = AutoModelForCausalLM.from_pretrained(laid_out["whole"])
    source = AutoModelForCausalLM.from_pretrained(finished["whole"] / "draft")
    assert torch.equal(published(ids_BT).logits, source(ids_BT).logits)
    text = published.generate(ids_BT, max_new_tokens=8, do_sample=False)
    assert torch.equal(text, source.generate(ids_BT, max_new_tokens=8, do_sample=False))
    assert AutoModelForCausalLM.from_pretrained(laid_out["small"]).config.vocab_size == 264


def test_a_small_head_is_published_in_every_form(laid_out, finished):
    out = laid_out["small"]
    assert fingerprint_checkpoint(out / "small-head") == fingerprint_checkpoint(finished["small"] / "draft")
    assert (out / "own-tokenizer" / "tokenizer.json").is_file()
    assert read_config(out / "own-tokenizer")["vocab_size"] < 264
    card = (out / "README.md").read_text()
    assert '"use_heterogeneous_vocab": true' in card
    assert "hf download org/draft --include 'own-tokenizer/*'" in card
    assert "widedraft benchmark --target" in card


def test_the_front_matter_is_read_by_the_hubs_own_classes(laid_out):
    data = ModelCard.load(laid_out["whole"] / "README.md").data
    assert data.license == "apache-2.0"
    assert data.base_model == BASE
    assert data.to_dict()["base_model_relation"] == "finetune"
    assert (data.library_name, data.pipeline_tag, data.datasets) == (
        "transformers",
        "text-generation",
        ["openai/gsm8k"],
    )
    assert {"speculative-decoding", "draft-model"} <= set(data.tags)
    metrics = {(one.metric_type, one.dataset_config) for one in data.eval_results}
    assert metrics == {
        (name, t) for name in ("acceptance_length", "acceptance_rate") for t in ("temperature 0", "temperature 1")
    }


def test_the_card_holds_the_figures_of_the_scorecard(laid_out, finished):
    card, record = (
        (laid_out["whole"] / "README.md").read_text(),
        read_run(finished["whole"] / "eval" / "scorecard.json").card,
    )
    tau = record.acceptance[0].lookahead[0].tau.value
    assert f"{tau:.3f} [" in card
    assert "1,234 tokens of 5 responses" in card
    assert f"{record.drafts[0].parameters:,} (" in card
    assert "vllm serve HuggingFaceTB/SmolLM2-135M-Instruct" in card
    assert f"path: {BASE}" in (laid_out["whole"] / "recipe.yaml").read_text()


def test_acceptance_json_keeps_every_count_and_no_folder_of_this_machine(laid_out, finished):
    kept = json.loads((laid_out["whole"] / "acceptance.json").read_text())
    record = read_run(finished["whole"] / "eval" / "scorecard.json").card.model_dump(mode="json")
    for name in ("acceptance", "speedup", "latency", "lives"):
        assert kept[name] == record[name]
    assert (kept["target"]["path"], kept["drafts"][0]["path"]) == (BASE, "org/draft")


@pytest.mark.parametrize("name", ["whole", "small"])
def test_no_file_names_a_folder_of_this_machine(laid_out, finished, name):
    for path in laid_out[name].rglob("*"):
        if path.suffix in (".json", ".md", ".yaml", ".html"):
            assert str(finished[name].parent) not in path.read_text(), path


def test_the_command_prints_what_would_go(run, tmp_path, capsys):
    assert widedraft.main(words(run, "--dry-run", tmp_path / "out")) == 0
    printed = capsys.readouterr().out
    assert "model.safetensors" in printed
    assert "nothing was sent" in printed
    assert widedraft.main(words(run, "--dry-run", tmp_path / "out")) == 0  # replaced


def refusal(capsys, *given):
    assert widedraft.main([*map(str, given)]) == 2
    return capsys.readouterr().err


def test_a_run_without_a_scorecard_goes_only_when_told_to(run, tmp_path, capsys):
    shutil.rmtree(run / "eval")
    assert "has no scorecard" in refusal(capsys, *words(run, "--dry-run", tmp_path / "out"))
    assert not (tmp_path / "out").exists()
    assert widedraft.main(words(run, "--dry-run", tmp_path / "out", "--allow", "unscored")) == 0
    assert "Not scored" in (tmp_path / "out" / "README.md").read_text()


def test_a_stale_scorecard_goes_only_when_told_to(run, tmp_path, capsys):
    config = json.loads((run / "draft" / "config.json").read_text())
    (run / "draft" / "config.json").write_text(json.dumps({**config, "initializer_range": 0.3}))
    assert "is of another draft" in refusal(capsys, *words(run, "--dry-run", tmp_path / "out"))
    assert widedraft.main(words(run, "--dry-run", tmp_path / "out", "--allow", "stale")) == 0


@pytest.mark.parametrize("part", ["eagle-", "eagle3", "dflash", "dspark"])
def test_a_name_that_misleads_vllm_goes_only_when_told_to(run, tmp_path, capsys, part):
    given = ["push", run, "--repo-id", f"org/my-{part}x", "--base-model", BASE, "--dry-run", tmp_path / "out"]
    assert part in refusal(capsys, *given)
    assert widedraft.main([*map(str, given), "--allow", "misleading-name"]) == 0


def test_a_local_target_needs_its_hub_id(run, tmp_path, capsys):
    told = refusal(capsys, "push", run, "--repo-id", "org/draft", "--dry-run", tmp_path / "out")
    assert "--base-model" in told


def test_an_unknown_licence_is_private_alone(run, tmp_path, capsys):
    given = ["push", run, "--repo-id", "org/draft", "--base-model", "none", "--dry-run", tmp_path / "out"]
    assert "licence is not known" in refusal(capsys, *given, "--public")
    assert widedraft.main([*map(str, given)]) == 0
    assert "Do not pass this draft on" in (tmp_path / "out" / "README.md").read_text()
    assert widedraft.main([*map(str, given), "--public", "--license", "mit"]) == 0


def test_the_licence_of_llama_asks_for_a_name_a_notice_and_words(run, tmp_path, capsys):
    llama = ["--base-model", "meta-llama/Llama-3.2-1B", "--dry-run", tmp_path / "out", "--public"]
    assert "begins with 'Llama'" in refusal(capsys, "push", run, "--repo-id", "org/draft", *llama)
    assert widedraft.main(["push", str(run), "--repo-id", "org/Llama-draft", *map(str, llama)]) == 0
    assert "Llama 3.2 Community License" in (tmp_path / "out" / "NOTICE").read_text()
    assert "**Built with Llama**" in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.parametrize("name", ["tokenizer.json", "chat_template.jinja"])
def test_a_tokenizer_that_is_not_the_targets_is_refused(run, tmp_path, capsys, name):
    (run / "draft" / name).write_text((run / "draft" / name).read_text() + " ")
    told = refusal(capsys, *words(run, "--dry-run", tmp_path / "out", "--allow", "stale"))
    assert f"{name}: is not that of the target" in told


def test_remote_code_is_never_published(run, tmp_path, capsys):
    config = json.loads((run / "draft" / "config.json").read_text())
    (run / "draft" / "config.json").write_text(json.dumps({**config, "auto_map": {"AutoConfig": "x.Y"}}))
    told = refusal(capsys, *words(run, "--dry-run", tmp_path / "out", "--allow", "stale"))
    assert "auto_map" in told


def test_a_folder_with_other_files_is_left_alone(run, tmp_path, capsys):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    assert "holds files that no dry run wrote" in refusal(capsys, *words(run, "--dry-run", tmp_path / "mine"))
    assert (tmp_path / "mine" / "thesis.txt").is_file()


def test_what_is_no_run_or_no_finished_one_is_refused(run, tmp_path, capsys):
    assert "holds no recipe.yaml" in refusal(capsys, *words(tmp_path, "--dry-run", tmp_path / "out"))
    manifest = json.loads((run / "draft" / "manifest.json").read_text())
    (run / "draft" / "manifest.json").write_text(json.dumps({**manifest, "finished": False}))
    assert "before its training had finished" in refusal(capsys, *words(run, "--dry-run", tmp_path / "out"))


def test_stray_files_of_the_draft_folder_stay_at_home(run, tmp_path):
    (run / "draft" / "notes.txt").write_text("hf_secret")
    write_dry(run, tmp_path / "out")
    assert not (tmp_path / "out" / "notes.txt").exists()


def test_the_card_says_how_llama_cpp_converts_the_draft(laid_out):
    card = (laid_out["small"] / "README.md").read_text()
    assert "python convert_hf_to_gguf.py draft --outfile draft.gguf\nllama-server -m " in card
    assert "-md draft.gguf " in card


def test_a_scorecard_of_another_target_is_stale(run, tmp_path, capsys):
    path = run / "eval" / "scorecard.json"
    record = json.loads(path.read_text())
    record["target"]["fingerprint"] = record["drafts"][0]["fingerprint"]
    path.write_text(json.dumps(record))
    path.with_name("examples.json").unlink(missing_ok=True)
    assert "is of another target" in refusal(capsys, *words(run, "--dry-run", tmp_path / "out"))


def test_the_report_that_is_published_holds_no_prompt(laid_out, finished):
    examples = read_run(finished["whole"] / "eval" / "scorecard.json").examples
    assert "<b>why</b>" in {one.prompt for one in examples}
    assert "&lt;b&gt;why" not in (laid_out["whole"] / "report.html").read_text()


@pytest.mark.parametrize("form", [".", "small-head", "own-tokenizer"])
def test_every_form_says_how_many_tokens_it_proposes(laid_out, form):
    assert read_generation_settings(laid_out["small"] / form)["num_assistant_tokens"] in (1, 2, 3)


def test_an_engine_that_refuses_the_draft_has_no_serve_line(run, tmp_path):
    write_dry(run, tmp_path / "out", repo_id="org/my-eagle3", allow=("misleading-name",))
    card = (tmp_path / "out" / "README.md").read_text()
    assert "Not served: name: org/my-eagle3 contains 'eagle3'" in card
    assert "vllm serve" not in card


@pytest.mark.parametrize(
    "rope", [{"rope_theta": 1e4}, {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}], ids=["old", "new"]
)
def test_a_shorter_draft_takes_texts_as_long_as_its_target(make_checkpoint, rope):
    draft, target = (make_checkpoint(num_hidden_layers=1, max_position_embeddings=most) for most in (64, 128))
    config = read_config(draft)
    del config["rope_parameters"]
    write_json({**config, **rope}, draft / "config.json")
    fit_context(draft, target)
    assert read_config(draft)["max_position_embeddings"] == 128


def test_a_shorter_draft_of_scaled_positions_is_refused(make_checkpoint):
    rope = {"rope_type": "linear", "rope_theta": 1e4, "factor": 1.5}
    draft = make_checkpoint(num_hidden_layers=1, max_position_embeddings=64, rope_parameters=rope)
    target = make_checkpoint(num_hidden_layers=1, max_position_embeddings=128)
    with pytest.raises(UserError, match=r"takes texts of 96 tokens .* and its target of 128"):
        fit_context(draft, target)


def test_the_targets_own_notice_is_not_written_over(tmp_path):
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "NOTICE").write_text("theirs")
    (tmp_path / "target" / "USE_POLICY.md").write_text("policy")
    write_terms(terms_of(tmp_path / "target", "meta-llama/Llama-3.2-1B", None), tmp_path)
    assert (tmp_path / "NOTICE").read_text() == "theirs"
    assert (tmp_path / "USE_POLICY.md").read_text() == "policy"


def test_the_card_holds_every_row_of_the_scorecards_tables(laid_out, finished):
    card = (laid_out["whole"] / "README.md").read_text().replace("&#95;", "_")
    record = read_run(finished["whole"] / "eval" / "scorecard.json").card
    assert f"{record.live.speedup.value:.2f}x" in card
    assert f"{record.live.decoding_speedup.value:.2f}x" in card
    assert "| target, 4 tokens (verification) |" in card
    for row in record.acceptance:
        for method in (row, *row.other_rules):
            assert f"| draft | {row.temperature:g} | {method.rule} | {method.alpha.value:.3f}" in card


def test_the_front_matter_has_tau_and_alpha_under_their_names(laid_out, finished):
    record = read_run(finished["whole"] / "eval" / "scorecard.json").card
    found = ModelCard.load(laid_out["whole"] / "README.md").data.eval_results
    assert found is not None
    said = {one.metric_type: one.metric_value for one in found if one.dataset_config == "temperature 0"}
    assert said["acceptance_rate"] == round(record.acceptance[0].alpha.value, 4)
    taus = [round(each.tau.value, 4) for each in record.acceptance[0].lookahead]
    assert said["acceptance_length"] in taus


def test_what_an_engine_loses_with_a_form_is_beside_its_line(laid_out):
    card = (laid_out["small"] / "README.md").read_text()
    assert "use_heterogeneous_vocab maps ids by their texts, and drafts greedily." in card.replace("&#95;", "_")


def test_provenance_has_every_stage_there_is(laid_out):
    found = json.loads((laid_out["whole"] / "provenance.json").read_text())
    assert {"data", "draft"} <= found["stages"].keys()


@pytest.mark.parametrize("lookahead", [1, 5])
def test_serve_lines_propose_what_pays_most(laid_out, published_target, lookahead):
    told = servings_of(
        laid_out["whole"],
        published_target,
        repo_id="org/draft",
        base_model=BASE,
        lookahead=lookahead,
    )
    lines = {one.engine: one.line for one in told}
    assert f'"num_speculative_tokens": {lookahead}' in lines["vLLM"]
    assert f"num_assistant_tokens={lookahead}, " in lines["transformers"]


def test_a_small_head_whose_tokenizer_cannot_be_cut_goes_without_that_form(finished, tmp_path):
    draft = shutil.copytree(finished["small"] / "draft", tmp_path / "draft")
    file, ends = draft / "tokenizer.json", {"sep": ["<|im_end|>", 2], "cls": ["<|im_start|>", 1]}
    frame = {"type": "RobertaProcessing", **ends, "trim_offsets": True, "add_prefix_space": False}
    file.write_text(json.dumps(json.loads(file.read_text()) | {"post_processor": frame}))
    assert "RobertaProcessing" in str(lay_out_small_head(draft, tmp_path / "out"))
    assert not (tmp_path / "out" / "own-tokenizer").exists()
