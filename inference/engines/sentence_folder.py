"""What the folder of a sentence-transformers model asks for, read whole: what is not understood is refused.

The rules are those of sentence-transformers 2 to 5, whose files these are; each is stated beside the field.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inference.engines import pooling, weights
from inference.errors import ModelUnavailable

MODEL_FILE = "config_sentence_transformers.json"  # SentenceTransformer.save
MODULES_FILE = "modules.json"
# Transformer.load takes the first that is there.
TRANSFORMER_FILES = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
ADAPTER_FILE = "adapter_config.json"  # of PEFT, which transformers loads beside the weights where it is installed
SERVED = (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"])
NO_ARGUMENTS: tuple[Any, ...] = (
    {},
    None,
    {"trust_remote_code": False},
    {"trust_remote_code": True},
)  # Transformer.load drops that one
ARGUMENTS = ("model_args", "tokenizer_args", "config_args", "model_kwargs", "processor_kwargs", "config_kwargs")
# Of each file, the fields that change no vector here, with the values for which that holds; none: with any.
HARMLESS: dict[str, dict[str, tuple[Any, ...]]] = {
    MODEL_FILE: {
        "__version__": (),
        "similarity_fn_name": (),  # is for `similarity`, not for `encode`
        "model_type": (None, "SentenceTransformer"),
        "truncate_dim": (None,),
    },
    TRANSFORMER_FILES[0]: {
        **dict.fromkeys(ARGUMENTS, NO_ARGUMENTS),
        "unpad_inputs": (),  # is how fast it computes
        "transformer_task": ("feature-extraction",),
        "module_output_name": ("token_embeddings",),
        "modality_config": ({"text": {"method": "forward", "method_output_name": "last_hidden_state"}},),
    },
    MODULES_FILE: {"idx": (), "name": (), "kwargs": ([], None)},  # kwargs: arguments of `encode` that a module takes
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SentenceFolder:
    """What becomes of a text on its way to a vector."""

    modes: tuple[str, ...] = pooling.MEAN
    pools_prompt: bool = True
    prompt: str = ""  # stands before each text
    lowers_case: bool = False
    max_tokens: int | None = None

    def text(self, text: str) -> str:
        """Return the text that the tokenizer is given: `encode` puts the prompt first, then `tokenize` strips it."""
        whole = f"{self.prompt}{text}".strip()
        return whole.lower() if self.lowers_case else whole


def read(folder: Path) -> SentenceFolder:
    """Read all files of the folder; without any of them a text's vector is the mean of its tokens.

    Raises `ModelUnavailable`, with the file and the field that are not understood.
    """
    if (folder / ADAPTER_FILE).exists():
        raise ModelUnavailable(
            f"{ADAPTER_FILE} asks for weights of an adapter, which are not read. Merge them into the model's, with"
            " merge_and_unload() of peft, and save that."
        )
    modes, pools_prompt = _pooling(folder)
    asked = _object(folder, MODEL_FILE)
    prompt = _prompt(asked)
    _refuse_others(MODEL_FILE, asked, {"prompts", "default_prompt_name"})
    file = next((name for name in TRANSFORMER_FILES if (folder / name).exists()), TRANSFORMER_FILES[0])
    transformer = _object(folder, file)
    _refuse_others(file, transformer, {"max_seq_length", "do_lower_case"}, HARMLESS[TRANSFORMER_FILES[0]])
    return SentenceFolder(
        modes=modes,
        pools_prompt=pools_prompt,
        prompt=prompt,
        lowers_case=bool(_typed(file, transformer, "do_lower_case", bool)),
        max_tokens=_typed(file, transformer, "max_seq_length", int),
    )


def _pooling(folder: Path) -> tuple[tuple[str, ...], bool]:
    """Return the kinds of pooling, and whether the prompt's tokens count."""
    steps = weights.read_json(folder / MODULES_FILE, missing=[])
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise ModelUnavailable(f"{MODULES_FILE} must be a list of modules.")
    kinds = [str(step.get("type", "")).rpartition(".")[2] for step in steps]
    if kinds and kinds not in SERVED:
        raise ModelUnavailable(
            f"{MODULES_FILE} asks for {', '.join(kinds)}; served are Transformer, Pooling and Normalize, in this order."
            " For another step write an engine class, see docs/models.md."
        )
    for step in steps:
        _refuse_others(MODULES_FILE, step, {"type", "path"})
    if steps and steps[0].get("path", ""):
        raise _not_understood(MODULES_FILE, "path", steps[0]["path"])
    place = str(steps[1].get("path", "")) if steps else "1_Pooling"
    if Path(place).name != place or not place:
        raise ModelUnavailable(f"{MODULES_FILE} names the folder {place!r}, which is not a folder beside it.")
    file = f"{place}/config.json"
    saved = _object(folder, file)
    return pooling.modes_of(file, saved) if saved or steps else (pooling.MEAN, True)


def _prompt(asked: Mapping[str, Any]) -> str:
    """Return the prompt of `encode` where the call names none: the default one, if there is one."""
    name, prompts = asked.get("default_prompt_name"), asked.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
        raise _not_understood(MODEL_FILE, "prompts", prompts)
    if name is None:
        return ""
    if name not in prompts:  # SentenceTransformer raises for it
        raise ModelUnavailable(f"{MODEL_FILE}: default_prompt_name is {name!r}, which is none of its prompts.")
    return str(prompts[name])


def _object(folder: Path, file: str) -> dict[str, Any]:
    found = weights.read_json(folder / file, missing={})
    if not isinstance(found, dict):
        raise ModelUnavailable(f"{file} must be an object of JSON.")
    return found


def _typed(file: str, saved: Mapping[str, Any], field: str, kind: type) -> Any:
    value = saved.get(field)
    if value is not None and type(value) is not kind:
        raise _not_understood(file, field, value)
    return value


def _refuse_others(
    file: str, saved: Mapping[str, Any], known: set[str], harmless: Mapping[str, tuple[Any, ...]] | None = None
) -> None:
    harmless = HARMLESS[file] if harmless is None else harmless
    for field, value in saved.items():
        allowed = harmless.get(field)
        if field in known or (allowed is not None and (not allowed or value in allowed)):
            continue
        raise _not_understood(file, field, value)


def _not_understood(file: str, field: str, value: Any) -> ModelUnavailable:
    return ModelUnavailable(
        f"{file}: {field} = {str(value)[:100]!r} is not understood, and vectors might be others than the model's."
        " Write an engine class, see docs/models.md."
    )
