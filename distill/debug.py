"""`--debug`: run any recipe within minutes on two cores, through the same stages.

Sizes, steps, batches and lengths are divided or bounded; external inputs (target, prompts, text, scores, plans) are
replaced by small files in the run directory, and external loggers and uploads are removed. Method, loss, precision,
parallelism and dtypes stay those of the recipe.

Nothing here imports torch until weights are created, so `widedraft check RECIPE --debug` stays fast; only a family
without an entry needs transformers' model for its layers.

Ratios of query to key/value heads and of widths to the width of all heads are preserved, and sizes that are smaller in
the draft than in the target stay smaller.
"""

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from json import dumps
from math import gcd, lcm
from pathlib import Path
from typing import Any

from architectures.errors import UserError
from architectures.families import FAMILIES
from architectures.files import write_text
from architectures.hub import config_at_hand, read_config
from architectures.pruning.plan import draft_and_origin
from architectures.requested_shape import OF_SOME, SIZES
from architectures.shapes import ACTIVE_EXPERTS, CONFIG_KEY, EXPERTS, OTHER_KEYS, OtherShape, Shape, model_shape
from architectures.vocabulary import COUNTED, DraftVocabulary, write_draft_vocabulary
from distill.process import print_once
from distill.recipe.recipe import Recipe, load_recipe, save_recipe
from distill.run import Run, owned_run
from eval.tasks import TASKS

LAYERS, LEAST_LAYERS = 4, 2  # of the target, and minimum of a draft: a first and a last layer
HEAD_DIM, MIN_HEADS, POSITIONS = 16, 2, 512
VOCAB, HEAD_VOCAB = 264, 259  # 256 bytes, 3 special tokens, and padding, which a reduced output head omits
BOS_ID, EOS_ID, PAD_ID = 1, 2, 0
MAX_EXPERTS, MAX_ACTIVE_EXPERTS = 8, 2
MODEL_SIZES = (*SIZES, *OF_SOME, "active_experts", "head_dim", "vocab")
NOT_OF_A_TINY_MODEL = ("_name_or_path", "auto_map", "dtype", "torch_dtype", "transformers_version", CONFIG_KEY)
SMALL = {  # sizes of tiny models of families without an entry, where their config has them
    **dict.fromkeys(OTHER_KEYS["hidden"], 64),
    **dict.fromkeys((*OTHER_KEYS["intermediate"], "block_ff_dim"), 128),
    **dict.fromkeys(OTHER_KEYS["heads"], 4),
    **dict.fromkeys(("num_key_value_heads", "num_global_key_value_heads"), 2),
    **dict.fromkeys(("head_dim", "global_head_dim", "hidden_size_per_layer_input"), HEAD_DIM),
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"), HEAD_DIM),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim", "mamba_d_head"), HEAD_DIM),
    **dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads"), 2),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank"), 32),
    **dict.fromkeys(EXPERTS, 4),
    **dict.fromkeys((*ACTIVE_EXPERTS, "top_k_experts"), 2),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "shared_intermediate_size"), 32),
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), VOCAB),
    **dict.fromkeys(("n_group", "topk_group"), 1),
    "mamba_n_heads": 8,
    "mamba_d_ssm": 128,
}


def tiny_shapes(target: Shape, drafts: Sequence[Shape] = ()) -> list[Shape]:
    """Return the shapes of a target and its drafts, divided by the same numbers; the target first."""
    shapes = [target, *drafts]
    layers = shrunk((shape.layers for shape in shapes), max(1, target.layers / LAYERS), least=LEAST_LAYERS)
    if isinstance(target, OtherShape):  # its other sizes are SMALL
        return [replace(shape, layers=layers[shape.layers]) for shape in shapes]
    group = head_divisor(shapes)
    head_dim = min(target.head_dim, HEAD_DIM)
    divisor = target.head_dim * group / head_dim
    step = lcm(*(shape.heads // group for shape in shapes))  # engines require that the heads divide the hidden width
    hidden = shrunk((shape.hidden for shape in shapes), divisor, step=step)
    encoder = shrunk((shape.encoder_layers for shape in shapes), max(1, target.encoder_layers / LAYERS), least=2)
    intermediate = shrunk((shape.intermediate for shape in shapes), divisor)
    active = min(target.active_experts, MAX_ACTIVE_EXPERTS)
    experts = shrunk((shape.experts for shape in shapes), max(1, target.experts / MAX_EXPERTS), least=active)
    return [
        replace(
            shape,
            layers=layers[shape.layers],
            hidden=hidden[shape.hidden],
            intermediate=intermediate[shape.intermediate],
            heads=shape.heads // group,
            kv_heads=shape.kv_heads // group,
            head_dim=head_dim,
            vocab=VOCAB,
            head_vocab=HEAD_VOCAB if shape.head_vocab else 0,
            encoder_layers=encoder[shape.encoder_layers] if shape.encoder_layers else 0,
            experts=experts[shape.experts] if shape.experts else 0,
            active_experts=active,
            positions=min(shape.positions, POSITIONS + FAMILIES[shape.family].extra_positions),
        )
        for shape in shapes
    ]


def head_divisor(shapes: Sequence[Shape]) -> int:
    """Return the largest common divisor of all head counts that leaves MIN_HEADS query heads; 1 if there is none."""
    counts = [count for shape in shapes for count in (shape.heads, shape.kv_heads)]
    fewest = min(shape.heads for shape in shapes)
    common = gcd(*counts)
    return max((n for n in range(1, common + 1) if common % n == 0 and fewest // n >= MIN_HEADS), default=1)


def shrunk(sizes: Iterable[int], divisor: float, *, step: int = 1, least: int = 1) -> dict[int, int]:
    """Divide sizes and round to multiples of step, at least `least`; different sizes stay different and ordered."""
    small: dict[int, int] = {}
    last = 0
    for size in sorted(set(sizes)):
        last = small[size] = max(last + step, round(size / divisor / step) * step, min(size, least))
    return small


def tiny_config(config: Mapping[str, Any], shape: Shape) -> dict[str, Any]:
    """Return the config.json of a tiny random model: the target's, with the sizes of shape."""
    small = {key: value for key, value in config.items() if key not in NOT_OF_A_TINY_MODEL and not long_rope(value)}
    small |= {"tie_word_embeddings": shape.tied, "bos_token_id": BOS_ID, "eos_token_id": EOS_ID, "pad_token_id": PAD_ID}
    small["initializer_range"] = 0.2  # wide enough that a random model's choices differ between positions
    if isinstance(shape, OtherShape):
        given = {key: (size, config[key]) for key, size in SMALL.items() if config.get(key)}
        small |= {key: [size] * len(own) if isinstance(own, list) else size for key, (size, own) in given.items()}
        if shape.kv_heads == shape.heads and config.get("num_key_value_heads"):
            small["num_key_value_heads"] = SMALL["num_attention_heads"]
        return small_layers(small, shape.layers)
    family = FAMILIES[shape.family]
    small.pop("num_local_experts", None)  # num_experts of transformers 5
    small |= {family.keys[size]: getattr(shape, size) for size in MODEL_SIZES if size in family.keys}
    if "positions" in family.keys:
        small[family.keys["positions"]] = shape.positions - family.extra_positions
    small |= {key: config[key][: shape.layers] for key in family.per_layer_lists if config.get(key) is not None}
    if shape.head_vocab:
        small[CONFIG_KEY] = shape.head_vocab
    if "decoder_start_token_id" in config:  # encoder-decoder models
        small["decoder_start_token_id"] = PAD_ID
    if "word_embed_proj_dim" in config:  # OPT
        small["word_embed_proj_dim"] = shape.hidden
    return small | {"architectures": [family.architecture]}


def small_layers(config: Mapping[str, Any], count: int) -> dict[str, Any]:
    """Return the config.json of a model with `count` of the layers, of as many kinds as possible."""
    from architectures.pruning.depth import POSITION, decoder_layers, empty_model, pruned_entries, settings_of

    model = empty_model(config, str(config["model_type"]))
    _, layers = decoder_layers(model)
    first: dict[str, int] = {}
    for number, layer in enumerate(layers):
        settings = {key: value for key, value in settings_of(layer).items() if not POSITION.search(key)}
        first.setdefault(str(settings), number)
    others = (number for number in range(len(layers)) if number not in first.values())
    return {**config, **pruned_entries(model.config, config, sorted([*first.values(), *others][:count]))}


def long_rope(value: Any) -> bool:
    """Return True if a config entry has a factor per rotary pair, as in Phi-3's long versions."""
    return isinstance(value, Mapping) and any(isinstance(item, list) for item in value.values())


SUFFIX = "-debug"
TARGET, SOURCE, PROMPTS, TEXT = "tiny-target", "tiny-source", "prompts.jsonl", "text.txt"  # in the run directory
IDS = "ids.json"
Values = dict[str, Any]


@dataclass(frozen=True)
class TinyRun:
    """Shapes of a debug run.

    Attributes:
        source: The target, unless architecture.source names another.
        stages: Layers after each stage of pruning, if the recipe has several.
    """

    target: Shape
    source: Shape
    draft: Shape
    stages: list[int] | None


def tiny_run(recipe: Recipe, target: Shape, source: Shape) -> TinyRun:
    """Compute the shapes of a recipe's debug run from those of target and architecture.source.

    Raises:
        UserError: If the draft cannot be pruned from its source.
    """
    draft, _ = draft_and_origin(recipe.architecture, source, recipe.seed)
    stages = recipe.architecture.stages
    earlier = [Shape(**{**vars(source), "layers": layers}) for layers in (stages or [])[:-1]]
    tiny_source, tiny_draft, *tiny_stages = tiny_shapes(source, [draft, *earlier])
    tiny_target = tiny_source if recipe.architecture.source is None else tiny_shapes(target)[0]
    layers = None if stages is None else [*(shape.layers for shape in tiny_stages), tiny_draft.layers]
    return TinyRun(tiny_target, tiny_source, tiny_draft, layers)


def debug_recipe(recipe: Recipe, tiny: TinyRun) -> Recipe:
    """Return the recipe of a debug run: the same keys, small values, and its own run directory."""
    run = Path(f"{recipe.run_dir}{SUFFIX}")
    values = recipe.model_dump(mode="json")
    values["run_name"], values["run_dir"] = f"{recipe.run_name}{SUFFIX}", str(run)
    values["target"] |= {"path": str(run / TARGET), "revision": "main"}

    shrink_architecture(values["architecture"], tiny, run)

    # Built-in prompts and responses in place of files and data sets, and short responses.
    data = values["data"]
    data["prompts"] = built_in(data["prompts"], run)
    data |= {"num_eval_prompts": 4, "max_seq_len": 128, "max_new_tokens": 16}
    for key, bound in (("self_written_prompts", 12), ("batch_size", 8)):
        data[key] = at_most(data[key], bound)

    # Built-in text in place of every domain's, in short sequences.
    if values["text"] is not None:
        source = {"path": str(run / TEXT), "dataset": None, "config": None, "split": "train", "field": "text"}
        values["text"]["domains"] = [{**domain, **source} for domain in values["text"]["domains"]]
        values["text"] |= {"max_seq_len": 32, "num_eval_sequences": 2}
        values["text"]["update_interval"] = "2ba"

    shrink_training(values["distill"], run)

    # A scorecard of few prompts, short responses and few repetitions.
    scoring = values["eval"]
    scoring["tasks"] = built_in(scoring["tasks"], run)
    scoring |= {"num_prompts": 4, "max_new_tokens": 8, "max_prompt_len": 112, "wall_clock_prompts": 2}
    scoring["latency_repeats"] = 2
    scoring["batch_size"] = at_most(scoring["batch_size"], 4)
    scoring["num_speculative_tokens"] = sorted({at_most(each, 3) for each in scoring["num_speculative_tokens"]})
    scoring["latency_batch_sizes"] = scoring["latency_batch_sizes"][:2]

    values["export"] |= {"engines": [], "tensor_parallel": 1}  # nothing serves it, and few heads are divisible by 8
    small = Recipe.model_validate(values)
    small.refer_as(recipe)
    return small


def shrink_architecture(wanted: Values, tiny: TinyRun, run: Path) -> None:
    """Use the tiny draft's sizes instead of a shape, shares or a plan; shorten calibration and mask training."""
    sizes = ("layers",) if isinstance(tiny.source, OtherShape) else (*SIZES, "experts")
    wanted |= {size: getattr(tiny.draft, size) or None for size in sizes}
    if tiny.stages is not None:
        wanted |= {"layers": None, "stages": tiny.stages}
    wanted |= {"shape": None, "plan": None, "scores": None}
    if wanted["source"] is not None:
        wanted["source"] = str(run / SOURCE)
    if wanted["method"] == "learned_masks":
        wanted["masks"] |= {"max_duration": "6ba", "global_train_batch_size": 8}
    else:
        text = None if wanted["calibration"]["text"] is None else str(run / PROMPTS)
        wanted["calibration"] = {"text": text, "tokens": 128}

    # All tokens of the tiny tokenizer are special or single bytes, so all are kept: fewer ids than the tiny target
    # has. Also if the recipe's plan reduces the head; a head that its source has reduced stays as it is.
    vocabulary = wanted["vocabulary"]
    if vocabulary is not None:
        origin = vocabulary["from"] if vocabulary["from"] in COUNTED else str(run / IDS)
        wanted["vocabulary"] = {"size": None if vocabulary["size"] is None else HEAD_VOCAB, "from": origin}
    elif tiny.draft.head_vocab and not tiny.source.head_vocab:
        wanted["vocabulary"] = {"from": str(run / IDS)}


def shrink_training(distill: Values, run: Path) -> None:
    """Set six steps of eight sequences, so 8 processes can share them, and two evaluations and checkpoints."""
    distill |= {"max_duration": "6ba", "global_train_batch_size": 8, "push_to_hub": None, "loggers": {"file": {}}}
    distill |= {"eval_interval": "0.5dur", "save_interval": "0.5dur"}
    distill["scheduler"]["t_warmup"] = "0.2dur"
    for key, bound in (("device_train_microbatch_size", 2), ("device_eval_batch_size", 4)):
        distill[key] = at_most(distill[key], bound)
    if distill["online"] is not None:  # about two updates
        online = distill["online"]
        distill["max_duration"] = "1ep"
        online["update_interval"] = 8
        sources = online["stream"]["sources"] if online["stream"] is not None else [{"task": None}]
        online["stream"] = {"sources": built_in(sources, run)}


def built_in(sources: list[Values], run: Path) -> list[Values]:
    """Return the file of built-in prompts once for each format of the sources: chat prompts, or a task's texts."""
    texts = (source["task"] if source["task"] and TASKS[source["task"]].form == "text" else None for source in sources)
    return [{"path": str(run / PROMPTS), "task": task} for task in dict.fromkeys(texts)]


def text_fields(recipe: Recipe) -> list[str]:
    tasks = [TASKS[source.task] for source in (*recipe.data.prompts, *recipe.eval.tasks) if source.task is not None]
    return [names[0] for task in tasks for names in task.fields.values()]


def at_most(value: Any, bound: int) -> Any:
    return min(value, bound) if isinstance(value, int) else value


SEED = 17
WEIGHTS_NAME = "model.safetensors"
SPECIAL_TOKENS = {PAD_ID: "<pad>", BOS_ID: "<s>", EOS_ID: "</s>"}
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
REQUESTS = ("What is a {}?", "Write one line about a {}.", "Why do people like a {}?", "Draw a {} in words.")
THINGS = ("river", "loaf of bread", "bicycle", "violin", "garden", "snowy day")


def begin_debug(recipe_path: Path, overrides: Sequence[str], *, weights: bool = True) -> Path:
    """Write a recipe's debug run with all its inputs, and return the path of its recipe.

    Args:
        overrides: key=value words, applied before shrinking.
        weights: Create tiny weights and tokenizers, which requires torch.

    Raises:
        UserError: If the recipe is invalid, or the target is neither local nor one with a built-in config.json.
    """
    recipe = load_recipe(recipe_path, overrides)
    config = config_for_debug("target.path", recipe.target.path, recipe.target.revision)
    named = recipe.architecture.source_at
    source_config = config if named is None else config_for_debug("architecture.source", *named)
    shapes = (model_shape(each, where=recipe.target.path) for each in (config, source_config))
    tiny = tiny_run(recipe, *shapes)
    small = debug_recipe(recipe, tiny)
    debug = Run.of(small)
    run = debug.folder
    print_once(
        f"--debug: {recipe.run_name} with a tiny random target of its family, in minutes, in {run}. Its results are "
        f"meaningless; {debug.recipe_file} has the reduced values."
    )
    rows = [
        {"prompt": prompt, "answer": f"{prompt} Think of it.", **dict.fromkeys(text_fields(small), prompt)}
        for prompt in prompts()
    ]
    with owned_run(debug):
        write_text("".join(f"{dumps(row)}\n" for row in rows), run / PROMPTS)
        write_text("\n\n".join(prompts()), run / TEXT)
        wanted = small.architecture.vocabulary
        if wanted is not None and wanted.origin not in COUNTED:
            write_text(dumps([*reversed(range(HEAD_VOCAB))]), run / IDS)
        write_tiny(run / TARGET, tiny_config(config, tiny.target), weights=weights)
        if named is not None:
            write_tiny(run / SOURCE, tiny_config(source_config, tiny.source), weights=weights)
        save_recipe(small, debug.recipe_file)
    return debug.recipe_file


def config_for_debug(key: str, path: str, revision: str) -> Mapping[str, Any]:
    try:
        return config_at_hand(path, revision)[0]
    except UserError as error:
        raise UserError(
            f"{key}: {error} A debug run needs a directory with its config.json, or a known hub id."
        ) from error


def prompts() -> list[str]:
    return [request.format(thing) for request, thing in product(REQUESTS, THINGS)]


def write_tiny(folder: Path, config: Mapping[str, Any], *, weights: bool) -> None:
    """Write a tiny checkpoint, unless the directory has one with the same config."""
    file = folder / "config.json"
    text = dumps(config, indent=2, sort_keys=True) + "\n"
    if not file.is_file() or file.read_text(encoding="utf-8") != text:
        (folder / WEIGHTS_NAME).unlink(missing_ok=True)
        write_text(text, file)
    if weights and not (folder / WEIGHTS_NAME).is_file():
        write_tiny_weights(folder)


def write_tiny_weights(folder: Path) -> None:
    """Write a byte-level tokenizer, then random weights of a fixed seed, for a directory's config.json."""
    import torch

    from architectures.vocabulary_head import cut_head
    from eval.models import load_config, model_class, show_progress_only_in_a_terminal

    show_progress_only_in_a_terminal()
    byte_tokenizer().save_pretrained(folder)
    config = load_config(folder)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        opens = model_class(folder, encoder_decoder=False)
        model = opens.from_config(config, dtype=torch.float32, trust_remote_code=False)
        is_tied = model_shape(read_config(folder), where=str(folder / "config.json")).tied
        if model.get_output_embeddings().weight is model.get_input_embeddings().weight and not is_tied:
            own_V = torch.randn_like(model.get_input_embeddings().weight)  # transformers ties them for any config
            model.get_output_embeddings().weight = torch.nn.Parameter(own_V)
    if (head_rows := getattr(config, CONFIG_KEY, 0)) > 0:
        cut_head(model, torch.arange(head_rows))
        write_draft_vocabulary(DraftVocabulary(ids=tuple(range(head_rows)), vocab_size=config.vocab_size), folder)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        model.save_pretrained(scratch)
        for name in ("generation_config.json", WEIGHTS_NAME):
            (Path(scratch) / name).replace(folder / name)


def byte_tokenizer() -> Any:
    """Build a tokenizer of three special tokens and the 256 bytes, with a chat template; any text round-trips."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    specials = [SPECIAL_TOKENS[number] for number in sorted(SPECIAL_TOKENS)]
    tokens = [*specials, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(specials)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=SPECIAL_TOKENS[PAD_ID],
        bos_token=SPECIAL_TOKENS[BOS_ID],
        eos_token=SPECIAL_TOKENS[EOS_ID],
        chat_template=CHAT_TEMPLATE,
    )
