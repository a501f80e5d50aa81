"""What a debug run reads: a tiny random target with a byte-level tokenizer, prompts and text, in the run's own folder.

Nothing here imports torch until weights are made, so `widedraft check RECIPE --debug` stays quick.
"""

import tempfile
from collections.abc import Mapping, Sequence
from itertools import product
from json import dumps
from pathlib import Path
from typing import Any

from architectures.errors import UserError
from architectures.files.atomic import write_text
from architectures.shapes.shape import Shape
from architectures.shapes.tiny import BOS_ID, EOS_ID, HEAD_VOCAB, PAD_ID, tiny_config
from architectures.targets.target import config_at_hand, read_config
from architectures.vocabulary import CONFIG_KEY, COUNTED, DraftVocabulary, write_draft_vocabulary
from distill.debug.recipe import IDS, PROMPTS, SOURCE, TARGET, TEXT, debug_recipe, text_fields, tiny_run
from distill.process.exits import say_once
from distill.recipe.recipe import load_recipe, save_recipe
from distill.run.run import Run
from distill.run.run_folder import owned_run

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
    """Write a recipe's debug run with all it reads, say so on stderr, and return the recipe to go on with.

    Args:
        recipe_path: The real recipe.
        overrides: Words of the command line; they are part of the recipe that is shrunk.
        weights: Whether tiny weights and tokenizers are needed, which takes torch.

    Raises:
        UserError: If the recipe is wrong, or the target is neither here nor one whose config.json we know.
    """
    recipe = load_recipe(recipe_path, overrides)
    config = config_for_debug("target.path", recipe.target.path, recipe.target.revision)
    named = recipe.architecture.source_at
    source_config = config if named is None else config_for_debug("architecture.source", *named)
    shapes = (Shape.from_config(each, where=recipe.target.path) for each in (config, source_config))
    tiny = tiny_run(recipe, *shapes)
    small = debug_recipe(recipe, tiny)
    debug = Run.of(small)
    run = debug.folder
    say_once(
        f"--debug: {recipe.run_name} as a run of minutes in {run}, of a tiny random target of its family. Nothing it "
        f"makes is of use; {debug.recipe_file} has the small values."
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
    """The config.json that a tiny model takes its family and proportions from."""
    try:
        return config_at_hand(path, revision)[0]
    except UserError as error:
        raise UserError(
            f"{key}: {error} A debug run needs a folder with its config.json, or a known hub id."
        ) from error


def prompts() -> list[str]:
    return [request.format(thing) for request, thing in product(REQUESTS, THINGS)]


def write_tiny(folder: Path, config: Mapping[str, Any], *, weights: bool) -> None:
    """A tiny checkpoint with this config; what is there of the same config stays, down to the last bit."""
    file = folder / "config.json"
    text = dumps(config, indent=2, sort_keys=True) + "\n"
    if not file.is_file() or file.read_text(encoding="utf-8") != text:
        (folder / WEIGHTS_NAME).unlink(missing_ok=True)
        write_text(text, file)
    if weights and not (folder / WEIGHTS_NAME).is_file():
        write_tiny_weights(folder)


def write_tiny_weights(folder: Path) -> None:
    """Random weights for a folder's config.json, the same each time, with a byte-level tokenizer; weights last."""
    import torch

    from architectures.vocabulary_head import cut_head
    from eval.models.loading import load_config, model_class, show_progress_only_in_a_terminal

    show_progress_only_in_a_terminal()
    byte_tokenizer().save_pretrained(folder)
    config = load_config(folder)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        opens = model_class(folder, encoder_decoder=False)
        model = opens.from_config(config, dtype=torch.float32, trust_remote_code=False)
        is_tied = Shape.from_config(read_config(folder), where=str(folder / "config.json")).tied
        if model.get_output_embeddings().weight is model.get_input_embeddings().weight and not is_tied:
            own_V = torch.randn_like(model.get_input_embeddings().weight)  # transformers ties them whatever the config
            model.get_output_embeddings().weight = torch.nn.Parameter(own_V)
    if (head_rows := getattr(config, CONFIG_KEY, 0)) > 0:
        cut_head(model, torch.arange(head_rows))
        write_draft_vocabulary(DraftVocabulary(ids=tuple(range(head_rows)), vocab_size=config.vocab_size), folder)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        model.save_pretrained(scratch)
        for name in ("generation_config.json", WEIGHTS_NAME):
            (Path(scratch) / name).replace(folder / name)


def byte_tokenizer() -> Any:
    """A tokenizer of three special tokens and the 256 bytes, with a chat template; any text round-trips."""
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
