"""What a push sends: files, card, evidence, certificates; and what it refuses before anything is sent."""

import json
import random
import re
import shutil
from contextlib import suppress

import pytest
from huggingface_hub import ModelCard
from transformers import AutoModelForCausalLM

import widedraft
from architectures.errors import UserError
from architectures.files import write_json
from architectures.hub import read_config
from architectures.manifest import fingerprint_checkpoint
from distill.hub.publish import fit_context, lay_out_small_head
from distill.recipe.recipe import load_recipe, save_recipe
from eval.engines.certificate import (
    Certificate,
    Counted,
    EngineRun,
    Finding,
    ServedCertificate,
    Speed,
    TextRun,
    read_certificates,
    write_certificate,
)
from eval.report import read_run
from eval.scorecard_schema import write_record
from tests.architectures.conversion.test_forms import ROBERTA, edit
from tests.distill.publishing.conftest import BASE, write_dry
from tests.eval.records import engine_benchmark
from tests.rejections import rejects


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
    carried = {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}
    assert {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()} == carried | {
        "README.md",
        "acceptance.json",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "plan.json",
        "provenance.json",
        "recipe.yaml",
        "report.html",
    }
    for name in carried:
        assert (out / name).read_bytes() == (published_target / name).read_bytes()
    assert fingerprint_checkpoint(out) == fingerprint_checkpoint(finished["whole"] / "draft")


def test_a_small_head_is_published_in_every_form(laid_out, finished):
    out = laid_out["small"]
    assert fingerprint_checkpoint(out / "small-head") == fingerprint_checkpoint(finished["small"] / "draft")
    assert AutoModelForCausalLM.from_pretrained(out).config.vocab_size == 264
    assert (out / "own-tokenizer" / "tokenizer.json").is_file()
    assert read_config(out / "own-tokenizer")["vocab_size"] < 264
    card = (out / "README.md").read_text()
    assert '"use_heterogeneous_vocab": true' in card
    assert "--include 'own-tokenizer/*'" in card
    assert "widedraft benchmark --target" in card


def test_the_front_matter_is_read_by_the_hubs_own_classes(laid_out):
    data = ModelCard.load(laid_out["whole"] / "README.md").data
    assert data.license == "apache-2.0"
    assert data.base_model == BASE
    assert data.to_dict()["base_model_relation"] == "finetune"
    assert (data.library_name, data.pipeline_tag) == ("transformers", "text-generation")
    assert data.datasets == ["openai/gsm8k"]
    assert {"speculative-decoding", "draft-model"} <= set(data.tags)
    metrics = {(one.metric_type, one.dataset_config) for one in data.eval_results}
    assert metrics == {
        (name, t) for name in ("acceptance_length", "acceptance_rate") for t in ("temperature 0", "temperature 1")
    }


def test_the_card_holds_the_figures_of_the_scorecard(laid_out, finished):
    card = (laid_out["whole"] / "README.md").read_text()
    record = read_run(finished["whole"] / "eval" / "scorecard.json").card
    tau = record.acceptance[0].by_k[0].tau.value
    assert f"{tau:.3f} [" in card
    assert "1,234 tokens" in card
    assert f"99 tokens trained, {record.prompts.responses[0].longest} tokens scored" in card
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


def refusal(capsys, *given):
    assert widedraft.main([*map(str, given)]) == 2
    return capsys.readouterr().err


def with_another_target(run):
    path = run / "eval" / "scorecard.json"
    record = json.loads(path.read_text())
    record["target"]["fingerprint"] = record["drafts"][0]["fingerprint"]
    path.write_text(json.dumps(record))
    path.with_name("examples.json").unlink(missing_ok=True)


def test_a_run_without_a_scorecard_goes_only_when_told_to(run, tmp_path, capsys):
    shutil.rmtree(run / "eval")
    assert "--unscored" in refusal(capsys, *words(run, "--dry-run", tmp_path / "out"))
    assert not (tmp_path / "out").exists()
    assert widedraft.main(words(run, "--dry-run", tmp_path / "out", "--unscored")) == 0


with_another_draft = edit("draft/config.json", lambda values: values.update(initializer_range=0.3))


@pytest.mark.parametrize(("change", "name"), [(with_another_draft, "draft"), (with_another_target, "target")])
def test_a_scorecard_of_another_model_is_refused(run, tmp_path, capsys, change, name):
    change(run)
    assert f"a different {name}" in refusal(capsys, *words(run, "--dry-run", tmp_path / "out"))


def test_a_name_that_misleads_vllm_is_refused(run, tmp_path, capsys):
    given = ["push", run, "--repo-id", "org/my-eagle3x", "--base-model", BASE, "--dry-run", tmp_path / "out"]
    assert "eagle3" in refusal(capsys, *given)


def test_an_unknown_licence_is_private_alone(run, tmp_path, capsys):
    given = ["push", run, "--repo-id", "org/draft", "--base-model", "none", "--dry-run", tmp_path / "out"]
    assert "--license" in refusal(capsys, *given, "--public")
    assert widedraft.main([*map(str, given)]) == 0
    assert "Do not redistribute" in (tmp_path / "out" / "README.md").read_text()
    assert widedraft.main([*map(str, given), "--public", "--license", "mit"]) == 0


def test_the_licence_of_llama_asks_for_a_name_a_notice_and_words(run, tmp_path, capsys):
    llama = ["--base-model", "none", "--license", "llama3.2", "--dry-run", tmp_path / "out", "--public"]
    assert "begins with 'Llama'" in refusal(capsys, "push", run, "--repo-id", "org/draft", *llama)
    assert widedraft.main(["push", str(run), "--repo-id", "org/Llama-draft", *map(str, llama)]) == 0
    assert "Llama 3.2" in (tmp_path / "out" / "NOTICE").read_text()
    assert "**Built with Llama**" in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.parametrize(
    ("name", "change", "named"),
    [
        ("tokenizer.json", lambda text: text + " ", "tokenizer.json"),
        ("chat_template.jinja", lambda text: text + " ", "chat_template.jinja"),
        ("config.json", lambda text: json.dumps({**json.loads(text), "auto_map": {"AutoConfig": "x.Y"}}), "auto_map"),
    ],
)
def test_another_tokenizer_than_the_targets_and_remote_code_are_never_published(
    run, tmp_path, capsys, name, change, named
):
    (run / "draft" / name).write_text(change((run / "draft" / name).read_text()))
    shutil.rmtree(run / "eval")
    assert named in refusal(capsys, *words(run, "--dry-run", tmp_path / "out", "--unscored"))


def test_a_folder_with_other_files_is_left_alone(run, tmp_path, capsys):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    assert str(tmp_path / "mine") in refusal(capsys, *words(run, "--dry-run", tmp_path / "mine"))
    assert (tmp_path / "mine" / "thesis.txt").is_file()


def test_a_run_is_not_written_into(run, capsys):
    assert str(run) in refusal(capsys, *words(run, "--dry-run", run / "draft" / "sub"))
    assert not (run / "draft" / "sub").exists()


@pytest.mark.parametrize(
    "more", [("--repo-id", ""), ("--repo-id", "a b/c"), ("--repo-id", "a/b--c"), ("--license", "mit\nbase_model: x")]
)
def test_ids_that_the_hub_does_not_take_are_refused(run, tmp_path, capsys, more):
    assert more[0] in refusal(capsys, *words(run, "--dry-run", tmp_path / "out", *more))
    assert not (tmp_path / "out").exists()


def test_what_is_no_run_or_no_finished_one_is_refused(run, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    assert "no recipe.yaml" in refusal(capsys, *words(tmp_path / "empty", "--dry-run", tmp_path / "out"))
    edit("draft/manifest.json", lambda values: values.update(finished=False))(run)
    assert str(run) in refusal(capsys, *words(run, "--dry-run", tmp_path / "out"))


def test_stray_files_of_the_draft_folder_stay_at_home(run, tmp_path):
    (run / "draft" / "notes.txt").write_text("hf_secret")
    write_dry(run, tmp_path / "out")
    assert not (tmp_path / "out" / "notes.txt").exists()


def test_the_report_that_is_published_holds_no_prompt(laid_out, finished):
    examples = read_run(finished["whole"] / "eval" / "scorecard.json").examples
    assert "<b>why</b>" in {one.prompt for one in examples}
    assert "&lt;b&gt;why" not in (laid_out["whole"] / "report.html").read_text()


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
    with rejects(96, 128):
        fit_context(draft, target)


def test_the_targets_own_notice_is_not_written_over(run, published_target, tmp_path):
    target = shutil.copytree(published_target, tmp_path / "target")
    (target / "NOTICE").write_text("theirs")
    (target / "USE_POLICY.md").write_text("policy")
    recipe = load_recipe(run / "recipe.yaml", [f"target.path={target}"])
    save_recipe(recipe, run / "recipe.yaml")
    write_dry(run, tmp_path / "out", license="llama3.2")
    assert (tmp_path / "out" / "NOTICE").read_text() == "theirs"
    assert (tmp_path / "out" / "USE_POLICY.md").read_text() == "policy"


def test_a_small_head_whose_tokenizer_cannot_be_cut_goes_without_that_form(finished, tmp_path):
    draft = shutil.copytree(finished["small"] / "draft", tmp_path / "draft")
    edit("tokenizer.json", lambda values: values.update(post_processor=ROBERTA))(draft)
    assert "RobertaProcessing" in str(lay_out_small_head(draft, tmp_path / "out"))
    assert not (tmp_path / "out" / "own-tokenizer").exists()


COUNTED = Counted(steps=2, proposed=6, accepted=4)
TEXT = TextRun(prompt_ids=(1,), plain_ids=(2,), drafted_ids=(2,), plain_s=2.0, drafted_s=1.0, counted=COUNTED)


TOKENS = {"num_speculative_tokens": 3, "max_new_tokens": 64}
ENGINE = {"engine": "vllm", "version": "0.32.0", "command": "serve", "dtype": "float32", **TOKENS}
MADE = {"hardware": "a card", "created": "2026-11-25T00:00:00+00:00"}


def certificate(*, holds: bool) -> Certificate:
    return Certificate(
        run=EngineRun(**ENGINE, own=COUNTED, texts=(TEXT,)),
        replay=COUNTED,
        findings=(Finding(law="counts", holds=holds, detail=""),),
        speed=Speed(plain_tokens_per_s=1.0, drafted_tokens_per_s=2.0, value=2.0, interval=(1.5, 2.5)),
        **MADE,
    )


@pytest.fixture
def prints(run, published_target):
    return {"target": fingerprint_checkpoint(published_target), "draft": fingerprint_checkpoint(run / "draft")}


@pytest.mark.parametrize(("holds", "told"), [(True, "2.00x [1.50, 2.50]"), (False, "NOT CERTIFIED")])
def test_a_certificate_beside_the_draft_goes_with_it_and_the_card_says_whether_it_holds(
    run, prints, tmp_path, holds, told
):
    write_certificate(run / "draft", certificate(holds=holds), **prints)
    write_dry(run, tmp_path / "out")
    assert read_certificates(tmp_path / "out").engines["vllm"].holds is holds
    card = (tmp_path / "out" / "README.md").read_text()
    assert told in card
    assert ("Certified in" in card) is holds


@pytest.mark.parametrize(
    ("holds", "told"), [(True, "Certified as served in version 0.32.0, float32"), (False, "NOT CERTIFIED as served")]
)
def test_a_certificate_as_served_goes_with_the_draft_beside_one_of_single_requests(run, prints, tmp_path, holds, told):
    write_certificate(run / "draft", certificate(holds=True), **prints)
    what = {"exercised": ("prefix caching",), "not_exercised": ("CUDA graphs",), "parts": ()}
    findings = (Finding(law="counts, long", holds=holds, detail=""),)
    write_certificate(run / "draft", ServedCertificate(**ENGINE, **what, findings=findings, **MADE), **prints)
    write_dry(run, tmp_path / "out")
    file = read_certificates(tmp_path / "out")
    assert (file.engines["vllm"].holds, file.as_served["vllm"].holds) == (True, holds)
    card = (tmp_path / "out" / "README.md").read_text()
    assert told in card
    assert "Certified in version 0.32.0, float32" in card


@pytest.mark.parametrize("role", ["target", "draft"])
def test_a_certificate_of_other_models_is_refused(run, prints, tmp_path, role):
    (tmp_path / "given").mkdir()
    write_certificate(tmp_path / "given", certificate(holds=True), **{**prints, role: "another"})
    with rejects(role):
        write_dry(run, tmp_path / "out", certificates=(tmp_path / "given",))


@pytest.mark.parametrize("unscored", [True, False])
def test_a_benchmark_in_an_engine_leads_the_card_without_local_paths(run, prints, tmp_path, unscored):
    write_record(engine_benchmark(**prints), run / "benchmark-vllm.json")
    if unscored:
        shutil.rmtree(run / "eval")
    write_dry(run, tmp_path / "out", unscored=unscored)
    card = (tmp_path / "out" / "README.md").read_text()
    own = "1.53x [1.41, 1.66]"
    assert own in card
    assert unscored or card.index(own) < card.index("acceptance rate")
    assert unscored or own in (tmp_path / "out" / "report.html").read_text()
    assert not [path for path in (tmp_path / "out").rglob("*.*") if b"/home/me" in path.read_bytes()]


@pytest.mark.parametrize("role", ["target", "draft"])
def test_a_benchmark_of_other_models_is_rejected(run, prints, tmp_path, role):
    write_record(engine_benchmark(**{**prints, role: "another"}), run / "benchmark-vllm.json")
    with rejects(role):
        write_dry(run, tmp_path / "out")
    if role == "draft":  # a GGUF file is none of the published forms
        write_record(engine_benchmark(**{**prints, role: "another"}, engine="llama.cpp 1"), run / "benchmark-vllm.json")
        write_dry(run, tmp_path / "out")


HOSTILE = (
    "</td></table><script>x()</script>",
    "<img src=x onerror=x()>",
    "[here](http://bad.example)",
    "|\n\n# Title\n\n```\nrm\n```",
    "\n---\nlicense: mit\n---\n",
    '"><svg onload=x()>',
    "{{ 7 * 7 }}{% include '/etc/passwd' %}",
)


def texts(value, path=()):
    """The place of every text in a JSON value."""
    if isinstance(value, str):
        yield path
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from texts(inner, (*path, key))


@pytest.fixture(scope="module")
def scored(finished, tmp_path_factory):
    """A run of its own, and its scorecard as it was written."""
    run = tmp_path_factory.mktemp("hostile") / "run"
    shutil.copytree(finished["whole"], run)
    return run, (run / "eval" / "scorecard.json").read_text()


def require_words(card, page):
    """No markup of HOSTILE is any on the card, nor on the page; a template that is evaluated fails by itself."""
    assert "<script>x()" not in card + page
    assert "onerror=x()" not in re.sub(r"&lt;.*?&gt;", "", card + page)
    assert "<svg onload" not in card + page
    body = card.split("\n---\n", 2)[-1]
    assert "](http://bad" not in body
    assert not re.search(r"^# Title|^license: mit", card, re.MULTILINE)


@pytest.mark.parametrize("seed", range(16))
def test_markup_anywhere_in_a_scorecard_is_refused_or_stays_words(scored, tmp_path, seed):
    run, text = scored
    record, drawn = json.loads(text), random.Random(seed)
    *way, last = drawn.choice(sorted(texts(record), key=str))
    found = record
    for key in way:
        found = found[key]
    found[last] = drawn.choice(HOSTILE)
    (run / "eval" / "scorecard.json").write_text(json.dumps(record))
    with suppress(UserError):
        write_dry(run, tmp_path / "out")
        require_words((tmp_path / "out" / "README.md").read_text(), (tmp_path / "out" / "report.html").read_text())
