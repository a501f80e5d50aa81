"""A certificate goes beside the form that it is of, and the card says what it says; one of other models is refused."""

import pytest

from architectures.manifest import fingerprint_checkpoint
from eval.engines.certificate import (
    Certificate,
    Counted,
    EngineRun,
    Finding,
    Speed,
    TextRun,
    read_certificates,
    write_certificate,
)
from tests.distill.publishing.conftest import write_dry
from tests.rejections import rejects

COUNTED = Counted(steps=2, proposed=6, accepted=4)
TEXT = TextRun(prompt_ids=(1,), plain_ids=(2,), drafted_ids=(2,), plain_s=2.0, drafted_s=1.0, counted=COUNTED)


def certificate(*, holds: bool) -> Certificate:
    run = EngineRun(
        engine="vllm",
        version="0.32.0",
        command="serve",
        dtype="float32",
        num_speculative_tokens=3,
        max_new_tokens=64,
        own=COUNTED,
        texts=(TEXT,),
    )
    return Certificate(
        run=run,
        replay=COUNTED,
        findings=(Finding(law="counts", holds=holds, detail=""),),
        speed=Speed(plain_tokens_per_s=1.0, drafted_tokens_per_s=2.0, value=2.0, interval=(1.5, 2.5)),
        hardware="a card",
        created="2026-11-25T00:00:00+00:00",
    )


@pytest.fixture
def prints(run, published_target):
    return {"target": fingerprint_checkpoint(published_target), "draft": fingerprint_checkpoint(run / "draft")}


@pytest.mark.parametrize(
    ("holds", "told"),
    [
        (True, "2.00x [1.50, 2.50]"),
        (False, "NOT CERTIFIED"),
    ],
)
def test_a_certificate_beside_the_draft_goes_with_it_and_the_card_says_whether_it_holds(
    run, prints, tmp_path, holds, told
):
    write_certificate(run / "draft", certificate(holds=holds), **prints)
    write_dry(run, tmp_path / "out")
    assert read_certificates(tmp_path / "out").engines["vllm"].holds is holds
    card = (tmp_path / "out" / "README.md").read_text()
    assert told in card
    assert ("Certified in" in card) is holds


@pytest.mark.parametrize("role", ["target", "draft"])
def test_a_certificate_of_other_models_is_refused(run, prints, tmp_path, role):
    (tmp_path / "given").mkdir()
    write_certificate(tmp_path / "given", certificate(holds=True), **{**prints, role: "another"})
    with rejects(role):
        write_dry(run, tmp_path / "out", certificates=(tmp_path / "given",))
