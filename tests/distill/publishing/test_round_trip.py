"""Folders and drafts pushed to a stand-in of the hub and pulled back; and a recipe whose target is on the hub."""

import json
import traceback
from pathlib import Path

import pytest
import torch
from huggingface_hub import snapshot_download
from transformers import AutoModelForCausalLM

import widedraft
from architectures.manifest import fingerprint_checkpoint
from distill.check import check_recipe
from distill.hub.publish import push_folder
from distill.pipeline import run_all
from distill.recipe.recipe import load_recipe
from distill.run import Run
from tests.distill.publishing.conftest import BASE, write_dry
from tests.hub.clients import HUBS_OWN_WARNING, READER, WRITER, log_in
from tests.rejections import rejects

pytestmark = pytest.mark.filterwarnings(HUBS_OWN_WARNING)


def push(run, *more):
    return widedraft.main(
        ["push", str(run), "--repo-id", "org/draft", "--base-model", BASE, "--license", "apache-2.0", *more]
    )


def test_what_is_pulled_back_is_what_a_dry_run_writes_and_generates_as_the_source(hub, run, tmp_path, capsys):
    assert push(run) == 0
    printed = capsys.readouterr().out
    assert "commit" in printed
    assert "private" in printed
    back = Path(snapshot_download("org/draft", local_dir=tmp_path / "back"))
    write_dry(run, tmp_path / "dry")
    names = sorted(path.relative_to(tmp_path / "dry") for path in (tmp_path / "dry").rglob("*") if path.is_file())
    for name in names:
        assert (back / name).read_bytes() == (tmp_path / "dry" / name).read_bytes(), name
    ids_BT = torch.tensor([[1, 70, 80, 90]])
    texts = [
        AutoModelForCausalLM.from_pretrained(folder).generate(ids_BT, max_new_tokens=8, do_sample=False)
        for folder in (back, run / "draft")
    ]
    assert torch.equal(*texts)
    assert fingerprint_checkpoint(back) == fingerprint_checkpoint(run / "draft")


def test_a_second_push_commits_nothing(hub, run, capsys):
    assert push(run) == 0
    assert push(run) == 0
    assert len(hub.store.repositories["org/draft"].commits) == 2  # its making, and the push
    first, second = capsys.readouterr().out.splitlines()
    assert first == second


def test_no_token_is_in_what_is_pushed_or_printed(hub, run, capsys):
    assert push(run) == 0
    printed = capsys.readouterr()
    assert WRITER not in printed.out + printed.err
    files = hub.store.repositories["org/draft"].files_at("main")
    assert not [path for path, file in files.items() if WRITER.encode() in file.content]


@pytest.mark.parametrize(("repo_id", "named"), [("org/draft", "base-model"), ("org/my-eagle3", "eagle3")])
def test_what_would_be_refused_at_the_end_is_refused_at_the_beginning(run, repo_id, named):
    recipe = load_recipe(run / "recipe.yaml", [f"run_dir={run}", f"distill.push_to_hub={repo_id}"])
    with rejects(named):
        check_recipe(recipe)
    with rejects(named):
        run_all(Run.of(recipe))


@pytest.mark.usefixtures("training_here")
def test_a_target_on_the_hub_at_a_pinned_revision_goes_the_whole_way(hub, published_target, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = hub.store.create("org/target")
    files = {path.name.replace(".", "__"): path.read_bytes() for path in published_target.iterdir() if path.is_file()}
    model.move(**files, LICENSE=b"Apache License 2.0", README__md=b"---\nlicense: apache-2.0\n---\n")
    pinned = model.branches["main"]
    model.move(config__json=b'{"model_type": "gpt2"}')  # what is pinned stays what it was
    recipe = {
        "run_name": "pinned",
        "target": {"path": "org/target", "revision": pinned, "dtype": "float32"},
        "architecture": {"layers": 2, "method": "first_last"},
        "data": {"prompts": [{"path": "p.jsonl"}], "num_eval_prompts": 2, "max_new_tokens": 8, "max_seq_len": 128},
        "distill": {
            "max_duration": "2ba",
            "scheduler": {"t_warmup": "1ba"},
            "precision": "fp32",
            "global_train_batch_size": 2,
            "push_to_hub": "org/draft",
        },
        "eval": {
            "max_new_tokens": 8,
            "num_speculative_tokens": [1, 2],
            "latency_repeats": 2,
            "latency_batch_sizes": [],
        },
    }
    Path("p.jsonl").write_text("".join(json.dumps({"prompt": f"say {place}"}) + "\n" for place in range(8)))
    Path("recipe.yaml").write_text(json.dumps(recipe))
    run_all(Run.of(load_recipe("recipe.yaml"), words=("recipe.yaml",)))
    files = hub.store.repositories["org/draft"].files_at("main")
    assert files["LICENSE"].content == b"Apache License 2.0"
    card = files["README.md"].content.decode()
    assert "base_model: org/target" in card
    assert "license: apache-2.0" in card
    assert hub.store.repositories["org/draft"].private


LARGE = "model-00001-of-00002.safetensors"
DRAFT = {
    "config.json": b'{"model_type": "llama"}\n',
    "README.md": b"---\nlicense: apache-2.0\n---\n# A draft\n",
    LARGE: bytes(range(256)) * 1000,
    "model-00002-of-00002.safetensors": b"a little",
    "plots/acceptance.png": b"\x89PNG",
    "empty.txt": b"",
}


@pytest.fixture
def draft(tmp_path) -> Path:
    """A draft's folder as it is pushed."""
    for path, content in DRAFT.items():
        file = tmp_path / "draft" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    return tmp_path / "draft"


def push_files(folder: Path, **options) -> str:
    return push_folder(folder, "org/name", **{"message": "a draft", **options})


def contents(hub) -> dict[str, bytes]:
    files = hub.store.repositories["org/name"].files_at("main")
    return {path: file.content for path, file in files.items() if path != ".gitattributes"}


def num_commits(hub) -> int:
    return len(hub.store.repositories["org/name"].commits) - 1  # the first came with the repository


def test_files_of_an_earlier_push_are_deleted_in_the_same_commit(hub, draft):
    assert push_files(draft).startswith(f"{hub.endpoint}/org/name")
    assert contents(hub) == DRAFT
    assert num_commits(hub) == 1
    (draft / LARGE).unlink()
    (draft / "config.json").write_bytes(b"{}")
    push_files(draft)
    wanted = {path.relative_to(draft).as_posix(): path.read_bytes() for path in draft.rglob("*") if path.is_file()}
    assert contents(hub) == wanted
    assert num_commits(hub) == 2
    assert ".gitattributes" in hub.store.repositories["org/name"].files_at("main")


def test_a_public_repository_is_made_only_if_asked_for(hub, draft):
    assert push_files(draft, public=True).endswith("public")
    with rejects("org/name"):
        push_files(draft)


@pytest.mark.parametrize("token", [READER, "hf_strangerstrangerstranger"])
def test_no_message_holds_the_token(hub, draft, monkeypatch, token):
    push_files(draft)
    log_in(monkeypatch, token)
    (draft / "config.json").write_bytes(b"{}")
    with rejects("org/name") as refused:
        push_files(draft)
    assert token not in "".join(traceback.format_exception(refused.value))
    log_in(monkeypatch, WRITER)
    push_files(draft)
