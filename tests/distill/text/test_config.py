"""Recipe section `text`: what it means when it is right, and the key of every mistake."""

import pytest

BASE = """\
run_name: demo
target: {path: somewhere}
architecture: {layers: 2, method: learned_masks}
data: {self_written_prompts: 100}
"""


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("text: {max_seq_len: 8}", "text.domains"),
        ("text: {domains: []}", "text.domains"),
        ("text: {domains: [{name: a, path: a.txt, dataset: b}]}", "text.domains[0].dataset"),
        ("text: {domains: [{name: a}]}", "text.domains[0].dataset"),
        ("text: {domains: [{name: a, path: a.jsonl, split: test}]}", "text.domains[0].split"),
        ("text: {domains: [{name: a, path: a.txt, field: body}]}", "text.domains[0].field"),
        ("text: {domains: [{name: a, path: a.txt}, {name: a, path: b.txt}]}", "text.domains"),
        ("text: {domains: [{name: a/b, path: a.txt}]}", "text.domains[0].name"),
        ("text: {domains: [{path: a.txt}]}", "text.domains[0].name"),
        ("text: {domains: [{name: a, path: a.txt, weight: 0}]}", "text.domains[0].weight"),
        ("text: {domains: [{name: a, path: a.txt, reference_loss_nats: -1}]}", "text.domains[0].reference_loss_nats"),
        ("text: {domains: [{name: a, path: a.txt}], mixture: bandit}", "text.mixture"),
        ("text: {domains: [{name: a, path: a.txt}], update_interval: 1ep}", "text.update_interval"),
        ("text: {domains: [{name: a, path: a.txt, reference_loss: 2}]}", "text.domains[0].reference_loss"),
    ],
)
def test_a_mistake_is_reported_at_its_key(mistakes, line, key):
    [found] = mistakes(f"{BASE}{line}\n")
    assert found.startswith(f"r.yaml:5: {key} ")
