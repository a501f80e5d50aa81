"""Recipe section `distill.teacher`: what is filled in, what is refused by exact message, and what a token takes."""

from pathlib import Path

import pytest

from distill.recipe.recipe import Recipe, RecipeError, load_recipe, save_recipe
from distill.recipe.teacher import TeacherConfig, bytes_per_token, contents_of, id_bytes

BASE = """\
run_name: demo
target: {path: somewhere}
architecture: {layers: 2, method: first_last}
data: {self_written_prompts: 100}
"""


@pytest.fixture
def load(tmp_path, monkeypatch):
    """load(line, data=...) -> the recipe of BASE and the line, its fifth."""
    monkeypatch.chdir(tmp_path)

    def read(line: str, data: str = "self_written_prompts: 100", *, dtype: str = "bfloat16") -> Recipe:
        base = BASE.replace("self_written_prompts: 100", data).replace("somewhere", f"somewhere, dtype: {dtype}")
        (tmp_path / "r.yaml").write_text(f"{base}{line}\n", encoding="utf-8")
        return load_recipe("r.yaml")

    return read


@pytest.mark.parametrize(
    ("section", "meaning"),
    [
        ("{}", ("live", None, None, None)),
        ("{source: live}", ("live", None, None, None)),
        ("{source: cache}", ("cache", "hidden", None, None)),
        ("{source: cache, contents: hidden}", ("cache", "hidden", None, None)),
        ("{source: cache, contents: top_k}", ("cache", "top_k", 64, None)),
        ("{source: cache, contents: top_k, k: 8}", ("cache", "top_k", 8, None)),
        ("{source: cache, contents: samples}", ("cache", "samples", None, 12)),
        ("{source: cache, contents: samples, num_samples: 50}", ("cache", "samples", None, 50)),
    ],
)
def test_what_is_left_out_is_filled_in_and_loads_back_equal(load, tmp_path, section, meaning):
    recipe = load(f"distill: {{teacher: {section}}}")
    teacher = recipe.distill.teacher
    assert (teacher.source, teacher.contents, teacher.k, teacher.num_samples) == meaning
    save_recipe(recipe, tmp_path / "saved.yaml")
    assert load_recipe(tmp_path / "saved.yaml") == recipe


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (
            "teacher: {contents: hidden}",
            (
                "distill.teacher.contents must be left out when distill.teacher.source is live, got hidden. "
                "Set source to cache, or leave it out (null on the command line)."
            ),
        ),
        (
            "teacher: {captured_while: answering}",
            (
                "distill.teacher.captured_while must be left out when distill.teacher.source is live, got answering. "
                "Set source to cache, or leave it out (null on the command line)."
            ),
        ),
        (
            "teacher: {source: none, captured_while: reading}",
            (
                "distill.teacher.captured_while must be left out when distill.teacher.source is none, got reading. "
                "Set source to cache, or leave it out (null on the command line)."
            ),
        ),
        (
            "teacher: {source: cache, captured_while: writing}",
            "distill.teacher.captured_while must be reading or answering or null, got 'writing'.",
        ),
        (
            "teacher: {source: cache, captured_while: answering}, precision: fp32",
            (
                "distill must have teacher.captured_while: reading when distill.precision is fp32 and target.dtype is "
                "bfloat16, got answering: answers are written in bfloat16, and the teacher teaches in float32. Set "
                "target.dtype to float32 or precision to amp_bf16, or leave captured_while out."
            ),
        ),
        (
            "teacher: {source: cache, captured_while: answering}, train_on: text, max_duration: 9ba",
            (
                "distill.teacher must have source live or none when distill.train_on is text, got cache: a cache is of "
                "answers. Leave source out, or train on answers."
            ),
        ),
        (
            "teacher: {k: 64}",
            "distill.teacher.k must be left out unless distill.teacher.contents is top_k, got 64 and no contents.",
        ),
        (
            "teacher: {source: cache, k: 64}",
            "distill.teacher.k must be left out unless distill.teacher.contents is top_k, got 64 and hidden.",
        ),
        (
            "teacher: {source: cache, contents: top_k, num_samples: 12}",
            (
                "distill.teacher.num_samples must be left out unless distill.teacher.contents is samples, "
                "got 12 and top_k."
            ),
        ),
        (
            "teacher: {source: cache, contents: samples, k: 3}",
            "distill.teacher.k must be left out unless distill.teacher.contents is top_k, got 3 and samples.",
        ),
        (
            "teacher: {source: cache, parallelism: fsdp2}",
            (
                "distill.teacher.parallelism must be left out when distill.teacher.source is cache, got fsdp2. "
                "Of a cached teacher only the output head is loaded."
            ),
        ),
        (
            "teacher: {parallelism: fsdp2}",
            (
                "distill.device_train_microbatch_size must be a number when distill.teacher.parallelism is fsdp2, "
                "got auto."
            ),
        ),
        (
            "teacher: {source: disk}",
            "distill.teacher.source must be live or cache or none, got 'disk'.",
        ),
        (
            "teacher: {source: cache, contents: logits, k: 3}",
            "distill.teacher.contents must be hidden or top_k or samples or null, got 'logits'.",
        ),
        (
            "teacher: {source: cache, contents: top_k, k: 0}",
            "distill.teacher.k must be a whole number >= 1 or null, got 0.",
        ),
        (
            "teacher: {source: cache, contents: samples}, temperature: 2",
            (
                "distill.temperature must be 1 when distill.teacher.contents is samples, got 2.0: that is what it was "
                "taken at. A live teacher, or a cache with contents hidden, serves all."
            ),
        ),
        (
            "teacher: {source: cache, contents: top_k}, loss: [{name: forward_kl}, {name: reverse_kl}]",
            (
                "distill.loss must be forward_kl or cross_entropy when distill.teacher.contents is top_k, got "
                "reverse_kl. A live teacher, or a cache with contents hidden, serves all."
            ),
        ),
    ],
)
def test_mistake(load, section, message):
    with pytest.raises(RecipeError) as raised:
        load(f"distill: {{{section}}}")
    assert str(raised.value) == f"r.yaml:5: {message}"


def test_answers_that_are_given_have_no_states_to_keep(load):
    with pytest.raises(RecipeError) as raised:
        load("distill: {teacher: {source: cache, captured_while: answering}}", "answers: given, prompts: [{path: x}]")
    assert str(raised.value) == (
        "r.yaml:5: distill must have teacher.captured_while: reading when data.answers is given, got answering: the "
        "target does not write those answers. Leave captured_while out: it reads them."
    )


@pytest.mark.parametrize(
    ("teacher", "meaning"),
    [("{}", None), ("{source: none}", None), ("{source: cache}", "reading")],
)
def test_a_cache_is_captured_while_reading_where_nothing_is_said(load, teacher, meaning):
    assert load(f"distill: {{teacher: {teacher}}}").distill.teacher.captured_while == meaning


@pytest.mark.parametrize("contents", ["hidden", "top_k", "samples"])
@pytest.mark.parametrize("line", ["precision: amp_bf16", "precision: fp32"])
def test_states_kept_while_answering_serve_every_content(load, contents, line):
    dtype = "float32" if "fp32" in line else "bfloat16"
    teacher = f"{{source: cache, contents: {contents}, captured_while: answering}}"
    recipe = load(f"distill: {{teacher: {teacher}, {line}}}", dtype=dtype)
    assert recipe.distill.teacher.captured_while_answering


@pytest.mark.parametrize("teacher", ["{}", "{source: cache}"])
def test_a_teacher_with_every_entry_serves_any_loss_at_any_temperature(load, teacher):
    distill = load(f"distill: {{teacher: {teacher}, loss: total_variation, temperature: 0.5}}").distill
    assert (distill.loss, distill.temperature) == ("total_variation", 0.5)


@pytest.mark.parametrize("loss", ["forward_kl", "cross_entropy"])
@pytest.mark.parametrize("contents", ["top_k", "samples"])
def test_a_sparse_cache_serves_what_it_has_the_entries_for(load, contents, loss):
    assert load(f"distill: {{teacher: {{source: cache, contents: {contents}}}, loss: {loss}}}").distill.loss == loss


@pytest.mark.parametrize(
    ("teacher", "loss"),
    [
        ("{}", "negative_log_acceptance"),
        ("{source: cache}", "negative_log_acceptance"),
        ("{source: cache, contents: top_k}", "forward_kl"),
        ("{source: cache, contents: samples}", "forward_kl"),
    ],
)
def test_a_recipe_without_a_loss_gets_one_that_its_teacher_serves(load, tmp_path, teacher, loss):
    recipe = load(f"distill: {{teacher: {teacher}}}")
    assert (recipe.distill.loss, [term.name for term in recipe.distill.terms]) == (loss, [loss])
    save_recipe(recipe, tmp_path / "saved.yaml")
    assert load_recipe(tmp_path / "saved.yaml") == recipe


def test_held_out_answers_are_kept_as_hidden_states():
    teacher = TeacherConfig(source="cache", contents="top_k")
    assert (contents_of(teacher, "train"), contents_of(teacher, "eval")) == ("top_k", "hidden")


@pytest.mark.parametrize(
    ("settings", "vocab", "dtype", "expected"),
    [
        ({}, 32000, "bfloat16", 8192),  # method notes 6.4
        ({}, 32000, "float32", 16384),
        ({"contents": "top_k"}, 32000, "bfloat16", 256 + 4),
        ({"contents": "top_k", "k": 8}, 151936, "bfloat16", 8 * 6 + 4),
        ({"contents": "samples"}, 32000, "bfloat16", 24),
        ({"contents": "samples", "num_samples": 50}, 128256, "bfloat16", 200),
    ],
)
def test_bytes_of_a_token(settings, vocab, dtype, expected):
    teacher = TeacherConfig(source="cache", **settings)
    sizes = {"hidden": 4096, "rows": vocab, "dtype": dtype}
    assert bytes_per_token(teacher, "train", **sizes) == expected
    assert bytes_per_token(teacher, "eval", **sizes) == (16384 if dtype == "float32" else 8192)


def test_the_smallest_type_that_holds_every_id():
    assert [id_bytes(vocab) for vocab in (256, 257, 65536, 65537, 2**20)] == [1, 2, 2, 4, 4]


@pytest.mark.parametrize(("hidden", "vocab"), [(576, 49152), (4096, 32000), (4096, 128256), (3584, 152064)])
def test_the_page_names_the_bytes_of_a_token(hidden, vocab):
    page = (Path(__file__).parents[3] / "docs" / "teacher.md").read_text(encoding="utf-8")
    row = next(line for line in page.splitlines() if f"{vocab:,}" in line and line.startswith("|"))
    teachers = [TeacherConfig(source="cache", contents=contents) for contents in ("hidden", "top_k", "samples")]
    sizes = [bytes_per_token(one, "train", hidden=hidden, rows=vocab, dtype="bfloat16") for one in teachers]
    assert row.endswith(f"| {sizes[0]:,} | {sizes[1]:,} | {sizes[2]:,} |")
