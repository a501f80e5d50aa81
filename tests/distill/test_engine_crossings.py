"""Every engine with everything that asks for answers: the answers of our own decoding, or a refusal.

vLLM's worker is stood in for by a server in this process; what a worker is told is tested by test_offline.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from architectures.errors import UserError
from architectures.sharing import ALONE
from distill.data.generate import generate_answers
from distill.data.given import collect_given
from distill.recipe.families import refuse_unfit
from distill.recipe.recipe import Recipe, load_recipe
from distill.stages.table import answering_by
from eval.answer_engines import answerer
from eval.answer_engines.clients import endpoint
from eval.answer_engines.clients.exchange import Reply, Served
from eval.answers.parts import Part
from eval.prompts.loading import load_prompts
from eval.scorecard.answers import record_answers
from tests.conftest import hide_gpus
from tests.eval.answer_engines.fake_server import FakeServer, served
from tests.sharing import by_processes

RECIPE = """
run_name: a
target: {{path: {target}, dtype: float32}}
architecture: {{layers: 1, method: first_last}}
data: {{prompts: [{{path: {prompts}}}], num_eval_prompts: 2, max_new_tokens: 6, max_seq_len: 200, shard_size: 2}}
distill: {{teacher: {{source: cache}}, precision: fp32}}
eval: {{num_prompts: 1, policy_prompts: 1, max_new_tokens: 6, dtype: float32, max_prompt_len: 150}}
"""
ENGINES: Mapping[str, tuple[str, ...]] = {
    "local": (),
    "vllm": ("generate.engine=vllm", "generate.python=python"),
    "endpoint-vllm": ("generate.engine=endpoint", "generate.urls=[URL]"),
    "endpoint-sglang": ("generate.engine=endpoint", "generate.urls=[URL]"),
}
PLAIN = [{"prompt": f"say {number}"} for number in range(5)]
SYSTEM = {"role": "system", "content": "Be short."}
TOOLS = [
    {"role": "user", "content": "What is the weather?"},
    {"role": "assistant", "content": '<tool_call>{"name": "weather"}</tool_call>'},
    {"role": "user", "content": '<tool_response>{"celsius": 9}</tool_response>'},
]
TALKS = [
    {"messages": [{"role": "user", "content": f"ask {number}"}, {"role": "assistant", "content": f"it is {number}"}]}
    for number in range(5)
]


@dataclass(frozen=True)
class Asker:
    """What asks for answers, and what every engine but our own decoding says to it.

    Attributes:
        words: Of the recipe.
        rows: Of its file of prompts.
        refusal: Of engines; None where they answer.
        how: "data", "scoring", "parts" or "processes".
        is_sampled: Whether an engine's draws are its own, so that its texts are others.
        target: "llama" or "t5".
    """

    words: tuple[str, ...] = ()
    rows: list[dict[str, Any]] = field(default_factory=lambda: PLAIN)
    refusal: str | None = None
    how: str = "data"
    is_sampled: bool = False
    target: str = "llama"


ASKERS: Mapping[str, Asker] = {
    "training prompts and held-out ones": Asker(),
    "several turns": Asker(rows=[*PLAIN, {"turns": ["first", "second", "third"]}]),
    "system prompts": Asker(rows=[*PLAIN, {"messages": [SYSTEM, {"role": "user", "content": "Why?"}]}]),
    "tool calls": Asker(rows=[*PLAIN, {"messages": TOOLS}]),
    "held-out questions of given answers": Asker(("data.answers=given",), TALKS),
    "earlier answers": Asker(("data.answers_from=[EARLIER]",)),
    "sampled answers": Asker(("data.temperature=0.8", "data.top_p=0.9"), is_sampled=True),
    "answers of the scorecard": Asker(("eval.temperatures=[0.0]",), how="scoring"),
    "sampled answers of the scorecard": Asker(("eval.temperatures=[1.0]",), how="scoring", is_sampled=True),
    "files in two jobs": Asker(how="parts"),
    "two processes": Asker(how="processes"),
    "a target in layers": Asker(("target.placement=layers",)),
    "a target that is spread": Asker(("target.placement=spread", "target.device_memory_gib=0.00045")),
    "a target in fewer bits": Asker(("target.bits=8",), refusal="generate must be local when target.bits is 8, got "),
    "hidden states": Asker(
        ("distill.teacher.captured_while=answering",), refusal="must have teacher.captured_while: reading when generat"
    ),
    "steps of the answers": Asker(("data.answer_steps=eager",), refusal="must be local when data.answer_steps is eag"),
    "steps of the scorecard's": Asker(
        ("eval.answer_steps=eager",), refusal="eval must leave out answer_steps when gen"
    ),
    "an encoder-decoder": Asker(target="t5", refusal="generate.engine"),
}


@dataclass
class InThisProcess:
    """A worker of vLLM that decodes here."""

    server: FakeServer
    served = Served("vllm", "0.0.fake", 2048)
    where = "vLLM"

    def ask(self, asked: Any) -> Reply:
        how = {"temperature": asked.sampling.temperature, "top_p": asked.sampling.top_p}
        how["stop_token_ids"] = list(asked.stop_ids)
        ids, stopped, text = self.server.decode(list(asked.prompt_ids), asked.max_new_tokens, how, asked.seed)
        return Reply(tuple(ids), stopped, text)

    def rendered(self, _messages: Any) -> None:
        """It renders nothing."""


@pytest.fixture(autouse=True)
def _here(monkeypatch):
    hide_gpus(monkeypatch)
    monkeypatch.setattr(endpoint, "FIRST_WAIT_S", 0.0)


@pytest.fixture(scope="module")
def targets(make_checkpoint, make_translator):
    return {"llama": make_checkpoint(seed=3), "t5": make_translator(seed=3)}


@pytest.fixture
def engine_words(targets, monkeypatch):
    """engine_words(name) makes an engine be there, for as long as the block lasts; gives the words that name it."""

    @contextmanager
    def there(name: str) -> Iterator[tuple[str, ...]]:
        if name == "local":
            yield ()
            return
        kind = name.removeprefix("endpoint-")
        server = FakeServer(targets["llama"], kind, is_deterministic=True)

        @contextmanager
        def worker(*_: Any, **__: Any) -> Iterator[InThisProcess]:
            yield InThisProcess(server)

        monkeypatch.setattr(answerer, "offline_vllm", worker)
        with served(server):
            yield tuple(word.replace("URL", server.url) for word in ENGINES[name])

    return there


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    """The file of prompts, which answers name."""
    return tmp_path_factory.mktemp("asked") / "prompts.jsonl"


@pytest.fixture
def recipe_of(targets, prompts, tmp_path):
    """recipe_of(asker, words) is its recipe."""

    def made(asker: Asker, words: tuple[str, ...]) -> Recipe:
        file = tmp_path / "a.yaml"
        prompts.write_text("".join(json.dumps(row) + "\n" for row in asker.rows))
        file.write_text(RECIPE.format(target=targets[asker.target], prompts=prompts))
        own = [word.replace("EARLIER", str(tmp_path / "earlier")) for word in asker.words]
        recipe = load_recipe(file, [*own, *words])
        refuse_unfit(recipe, asker.target)
        return recipe

    return made


def answer(recipe: Recipe, how: str, out: Path) -> None:
    """What `widedraft generate` and `widedraft eval` ask for."""
    target = Path(recipe.target.path)
    collect = collect_given if recipe.data.answers == "given" else generate_answers

    def work(share: Any = ALONE, part: Part | None = None) -> None:
        with answering_by(recipe) as kind:
            held = {"answered_by": kind, "holding": recipe.target.holding, "share": share, "seed": recipe.seed}
            if how == "scoring":
                prompts = load_prompts(recipe.data.prompts)
                for temperature in recipe.eval.temperatures:
                    record_answers(target, prompts, recipe.eval, out, temperature=temperature, **held)
                return
            more = {} if part is None else {"part": part}
            collect(target, recipe.data, out, dtype=recipe.target.dtype, **held, **more)

    if how == "processes":
        by_processes(2, work)
    elif how == "parts":
        for number in (1, 2):
            work(part=Part(number, 2))
    else:
        work()


def answers(out: Path) -> dict[str, str]:
    """Every file of answers, by its name."""
    return {str(path.relative_to(out)): path.read_text() for path in sorted(out.rglob("*-0*.jsonl"))}


@pytest.fixture(scope="module")
def ours():
    """Answers of our own decoding, by who asks; each asks once."""
    return dict[str, dict[str, str]]()


@pytest.mark.parametrize("name", ASKERS)
@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_answers_as_we_do_or_says_why_not(recipe_of, engine_words, ours, tmp_path, name, engine):
    asker = ASKERS[name]
    if name == "earlier answers":
        answer(recipe_of(Asker(rows=PLAIN[:3]), ()), "data", tmp_path / "earlier")
    if name not in ours and (engine == "local" or asker.refusal is None):
        answer(recipe_of(asker, ()), asker.how, tmp_path / "ours")
        ours[name] = answers(tmp_path / "ours")
        assert ours[name]
    if engine == "local":
        return
    with engine_words(engine) as words:
        if asker.refusal is not None:
            with pytest.raises(UserError) as raised:
                recipe_of(asker, words)
            assert asker.refusal in str(raised.value)
            return
        answer(recipe_of(asker, words), asker.how, tmp_path / "theirs")
    theirs = answers(tmp_path / "theirs")
    assert theirs.keys() == ours[name].keys()
    assert theirs == ours[name] or asker.is_sampled
    assert written_by_engine(tmp_path / "theirs")


def written_by_engine(out: Path) -> bool:
    """Whether what an engine wrote was read here."""
    return any(out.rglob("*.engine.json"))
