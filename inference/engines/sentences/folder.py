"""What the folder of a sentence-transformers model asks for, read whole: what is not understood is refused.

The rules are those of sentence-transformers 2 to 6, whose files these are; each is stated beside the field.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inference.catalog import words
from inference.engines.artifacts import weights
from inference.engines.sentences import pooling
from inference.engines.sentences.dense import Dense, load_dense
from inference.errors import InvalidInput, ModelUnavailable

MODEL_FILE = "config_sentence_transformers.json"  # SentenceTransformer.save
MODULES_FILE = "modules.json"
# Transformer.load takes the first that is there.
TRANSFORMER_FILES = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
ADAPTER_FILE = "adapter_config.json"  # of PEFT, which transformers loads beside the weights where it is installed
FIRST, THEN, LAST = ["Transformer", "Pooling"], "Dense", "Normalize"  # modules, in this order
# The prompts of each type of input, the first of which that a folder has is taken: those of `encode_query` and
# `encode_document`, and the names of Cohere's types.
INPUT_TYPES: Mapping[str, tuple[str, ...]] = {
    "query": ("query", "search_query"),
    "document": ("document", "passage", "corpus", "search_document"),
    "classification": ("classification",),
    "clustering": ("clustering",),
}
RETRIEVAL = ("query", "document")  # types that mean no prompt, rather than the default one, in a folder without theirs
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
    prompts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    default_prompt: str = ""  # stands before each text for which no other is asked for
    dense: tuple[Dense, ...] = ()  # follow the pooling
    strips: bool = True  # blanks around a text and its prompt
    lowers_case: bool = False
    max_tokens: int | None = None

    def prompt(self, name: str | None = None, input_type: str | None = None) -> str:
        """Return the prompt of a name, or else of a type of input. Raises `InvalidInput` for a name without one."""
        if name is not None:
            if name not in self.prompts:
                known = ", ".join(map(words.name, self.prompts)) or "none; leave it out"
                told = f"parameters.prompt_name: is no prompt of this model, which has {known}."
                raise InvalidInput(told, field="parameters.prompt_name")
            return self.prompts[name]
        found = [self.prompts[each] for each in INPUT_TYPES.get(input_type or "", ()) if each in self.prompts]
        return found[0] if found else "" if input_type in RETRIEVAL else self.default_prompt

    def text(self, text: str, prompt: str) -> str:
        """Return the text that the tokenizer is given: `encode` puts the prompt first, then it may strip it."""
        whole = f"{prompt}{text}"
        whole = whole.strip() if self.strips else whole
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
    place, others = _places(folder)
    modes, pools_prompt = _pooling(folder, place)
    asked = _object(folder, MODEL_FILE)
    prompts, default_prompt = _prompts(asked)
    _refuse_others(MODEL_FILE, asked, {"prompts", "default_prompt_name"})
    if "cls" in modes and not pools_prompt and any(prompts.values()):
        told = "include_prompt = false beside the pooling cls is not served: sentence-transformers takes the first"
        place = f"{place or '1_Pooling'}/config.json"
        raise ModelUnavailable(f"{place}: {told} token before release 5.5, and since then the first after the prompt.")
    file = next((name for name in TRANSFORMER_FILES if (folder / name).exists()), TRANSFORMER_FILES[0])
    transformer = _object(folder, file)
    _refuse_others(file, transformer, {"max_seq_length", "do_lower_case"}, HARMLESS[TRANSFORMER_FILES[0]])
    return SentenceFolder(
        modes=modes,
        pools_prompt=pools_prompt,
        prompts=prompts,
        default_prompt=default_prompt,
        dense=tuple(load_dense(folder / other, _object(folder, f"{other}/config.json")) for other in others),
        strips="transformer_task" not in transformer,  # Releases since 5.4 write it, and strip no text.
        lowers_case=bool(_typed(file, transformer, "do_lower_case", bool)),
        max_tokens=_typed(file, transformer, "max_seq_length", int),
    )


def _places(folder: Path) -> tuple[str, list[str]]:
    """Return the folder of the pooling, which is empty where no modules are listed, and those of the Dense modules."""
    steps = weights.read_json(folder / MODULES_FILE, missing=[])
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise ModelUnavailable(f"{MODULES_FILE} must be a list of modules.")
    if not steps:
        return "", []
    kinds = [str(step.get("type", "")).rpartition(".")[2] for step in steps]
    others = kinds[2:-1] if kinds[-1] == LAST else kinds[2:]
    if kinds[:2] != FIRST or any(kind != THEN for kind in others):
        raise ModelUnavailable(
            f"{MODULES_FILE} asks for {', '.join(kinds)}; served are {', '.join(FIRST)}, any number of {THEN}, and"
            f" {LAST}, in this order. For another step write an engine class, see docs/guide/models.md."
        )
    for step in steps:
        _refuse_others(MODULES_FILE, step, {"type", "path"})
    if steps[0].get("path", ""):
        raise _not_understood(MODULES_FILE, "path", steps[0]["path"])
    places = [str(step.get("path", "")) for step in steps[1 : 2 + len(others)]]
    for place in places:
        if Path(place).name != place or place in ("", ".."):
            raise ModelUnavailable(f"{MODULES_FILE} names the folder {place!r}, which is not a folder beside it.")
    return places[0], places[1:]


def _pooling(folder: Path, place: str) -> tuple[tuple[str, ...], bool]:
    """Return the kinds of pooling, and whether the prompt's tokens count."""
    file = f"{place or '1_Pooling'}/config.json"
    saved = _object(folder, file)
    return pooling.modes_of(file, saved) if saved or place else (pooling.MEAN, True)


def _prompts(asked: Mapping[str, Any]) -> tuple[dict[str, str], str]:
    """Return the prompts by name, and the one of a call that names none: the default one, if there is one."""
    name, prompts = asked.get("default_prompt_name"), asked.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
        raise _not_understood(MODEL_FILE, "prompts", prompts)
    if name is None:
        return prompts, ""
    if not isinstance(name, str) or name not in prompts:  # SentenceTransformer raises for it
        raise ModelUnavailable(f"{MODEL_FILE}: default_prompt_name is {name!r}, which is none of its prompts.")
    return prompts, str(prompts[name])


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
        " Write an engine class, see docs/guide/models.md."
    )
