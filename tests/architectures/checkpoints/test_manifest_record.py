"""manifest.json as a type: what each stage writes is read as it was written, and each damaged field is named."""

import json
from dataclasses import fields

import jsonschema
import pytest
from pydantic import TypeAdapter

from architectures.checkpoints.fingerprint_parts import with_parts
from architectures.checkpoints.manifest import provenance, read_manifest, write_manifest
from architectures.checkpoints.manifest_record import Hardware, Manifest, Provenance
from architectures.errors import UserError
from eval.records import origin

MODEL = {"path": "org/model", "revision": "main"}
TRAIN = {"prompts": 8, "answers": 20, "answer_tokens": 90, "sequences": 9, "split": 1}
COUNTS = {"prompts": 10, "self_written": 1, "duplicates": 0, "too_long": 2, "asked_in_eval": 0, "train": TRAIN}
CACHE = {"captured_while": "answering", "max_seq_len": 64, "format": "widedraft.teacher_cache/2"}
ENGINE = {
    "engine": "vllm",
    "of": "train",
    "answers": 20,
    "checked": 8,
    "differing": 1,
    "largest_gap": 0.25,
    "sigmas": 0.0,
}
ANSWERED = {"answers": "written", "answered_by": [ENGINE]}
PARTS = {"a.jsonl": "0" * 64, "data.max_seq_len": 64}
WRITTEN = {  # every entry that a stage adds
    "masks": {"metrics": {"masks/layers/gap": 0.5}, "target": MODEL, "recipe": "hash", "seed": 17},
    "scores": {"target": MODEL, "source": MODEL},
    "prune": {"target": MODEL, "source": MODEL, "recipe": "hash"},
    "generate": {**ANSWERED, "counts": {**COUNTS, "eval": TRAIN}, "target": MODEL, "recipe": "hash"},
    "cache": {"splits": {"train": {"shards": []}}, "files": {"a": {"num_bytes": 1}}, "dtype": "float32", **CACHE},
    "distill": {"recipe": "hash", "seed": 17},
    "export": {"finished": True, "checkpoint": None, "init": "run/init", "dtype": "float32"},
    "eval": {"recipe": "hash"},
    "convert": {"form": "whole", "draft": "run/draft"},
    "import-gguf": {"file": "model.gguf", "dtype": "float32"},
    "export-recorded": {"target": None},
}
WRONG = {  # one value for each field that its type does not have
    "stage": "other",
    "inputs": [],
    "parts": {"target": "a"},
    "fingerprint": 2,
    "adopted": {"target": None},
    "provenance": {},
    "recipe": 3,
    "seed": "17",
    "target": 3,
    "source": {"path": "org/model"},
    "answers": 9,
    "answered_by": [{**ENGINE, "differing": "one"}],
    "counts": {"prompts": "ten", "train": TRAIN},
    "metrics": {"gap": "wide"},
    "finished": "yes",
    "checkpoint": 4,
    "init": None,
    "dtype": 32,
    "form": True,
    "draft": ["run/draft"],
    "file": {},
    "format": 2,
    "splits": ["train"],
    "files": "all",
    "captured_while": 0,
    "max_seq_len": 64.5,
}
FIELDS = [*Manifest.__annotations__]


@pytest.fixture(scope="module")
def schema(request):
    path = request.config.rootpath / "recipes" / "manifest.schema.json"
    return jsonschema.Draft202012Validator(json.loads(path.read_text(encoding="utf-8")))


def written_by(stage, folder):
    inputs = {"target": "a", "data": with_parts("fingerprint of a test's data", PARTS)}
    write_manifest(folder, stage=stage, inputs=inputs, **WRITTEN[stage])
    return json.loads((folder / "manifest.json").read_text(encoding="utf-8"))


def damaged(folder, **entries):
    (folder / "manifest.json").write_text(json.dumps({"stage": "prune", "inputs": {}, **entries}))


@pytest.mark.parametrize("stage", WRITTEN)
def test_what_a_stage_writes_is_read_value_for_value(stage, tmp_path, schema):
    held = written_by(stage, tmp_path)
    assert list(held) == ["stage", "inputs", "parts", "fingerprint", *WRITTEN[stage], "provenance"]
    assert held["parts"] == {"data": PARTS}  # nobody told those of the target
    assert {name: held[name] for name in WRITTEN[stage]} == WRITTEN[stage]
    assert json.dumps(read_manifest(tmp_path)) == json.dumps(held)  # it is fingerprinted
    schema.validate(held)


def test_every_field_is_written_by_a_stage_and_damaged_below():
    of_all = {"stage", "inputs", "parts", "fingerprint", "adopted", "provenance"}
    assert {*FIELDS} == of_all | {name for details in WRITTEN.values() for name in details} == {*WRONG}


@pytest.mark.parametrize("field", FIELDS)
def test_a_field_of_another_type_is_named(field, tmp_path, schema):
    damaged(tmp_path, **{field: WRONG[field]})
    with pytest.raises(UserError, match=rf"manifest\.json: {field}\b.*: .* Delete .* and run its stage again\."):
        read_manifest(tmp_path)
    assert not schema.is_valid({"stage": "prune", "inputs": {}, field: WRONG[field]})


@pytest.mark.parametrize("field", ["stage", "inputs"])
def test_a_manifest_without_stage_or_inputs_is_refused(field, tmp_path):
    entries = {"stage": "prune", "inputs": {}}
    (tmp_path / "manifest.json").write_text(json.dumps({name: entries[name] for name in entries if name != field}))
    with pytest.raises(UserError, match=rf"manifest\.json: {field}: Field required\. Delete "):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    ("entries", "named"),
    [
        ({"counts": {"prompts": 1, "train": {"answers": 1}}}, r"counts\.train\.answer_tokens: Field required"),
        ({"inputs": {"target": None}}, r"inputs\.target: Input should be a valid string, got None"),
        ({"provenance": {**provenance(), "versions": {"torch": 2.5}}}, r"provenance\.versions\.torch: .*, got 2\.5"),
    ],
)
def test_a_field_of_a_part_is_named_with_its_path(entries, named, tmp_path):
    damaged(tmp_path, **entries)
    with pytest.raises(UserError, match=rf"manifest\.json: {named}"):
        read_manifest(tmp_path)


def test_scorecards_carry_the_same_provenance():
    assert [field.name for field in fields(origin.Provenance)] == [*Provenance.__annotations__]
    assert [field.name for field in fields(origin.Hardware)] == [*Hardware.__annotations__]
    TypeAdapter(Provenance).validate_python(provenance(), strict=True)
