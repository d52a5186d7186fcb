"""The settings in the folder of a sentence-transformers model, all of which are read: an unknown one is refused.

The rules are those of sentence-transformers 2 to 6, which writes these files. Each rule is stated beside its field.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inference.engines.artifacts import weights
from inference.engines.sentences import pooling
from inference.engines.sentences.dense import Dense, load_dense
from inference.errors import InvalidInput, ModelUnavailable
from inference.values.error_phrases import truncate_name

MODEL_FILE = "config_sentence_transformers.json"  # written by SentenceTransformer.save
MODULES_FILE = "modules.json"
# Transformer.load reads the first of these files that exists.
TRANSFORMER_FILES = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
ADAPTER_FILE = "adapter_config.json"  # of PEFT; if that is installed, transformers loads the adapter beside the weights
FIRST, THEN, LAST = ["Transformer", "Pooling"], "Dense", "Normalize"  # kinds of modules, in this order
# The names of prompts for each type of input. The first that a folder has is taken. They are the names that
# `encode_query` and `encode_document` look for, and those of Cohere's types.
INPUT_TYPES: Mapping[str, tuple[str, ...]] = {
    "query": ("query", "search_query"),
    "document": ("document", "passage", "corpus", "search_document"),
    "classification": ("classification",),
    "clustering": ("clustering",),
}
RETRIEVAL = ("query", "document")  # types that get no prompt, not the default one, if the folder has none for them
NO_ARGUMENTS: tuple[Any, ...] = (
    {},
    None,
    {"trust_remote_code": False},
    {"trust_remote_code": True},
)  # Transformer.load drops trust_remote_code
ARGUMENTS = ("model_args", "tokenizer_args", "config_args", "model_kwargs", "processor_kwargs", "config_kwargs")
# The fields of each file that change no vector here, and the values for which that holds; () means any value.
HARMLESS: dict[str, dict[str, tuple[Any, ...]]] = {
    MODEL_FILE: {
        "__version__": (),
        "similarity_fn_name": (),  # is used by `similarity`, not by `encode`
        "model_type": (None, "SentenceTransformer"),
        "truncate_dim": (None,),
    },
    TRANSFORMER_FILES[0]: {
        **dict.fromkeys(ARGUMENTS, NO_ARGUMENTS),
        "unpad_inputs": (),  # changes only the speed
        "transformer_task": ("feature-extraction",),
        "module_output_name": ("token_embeddings",),
        "modality_config": ({"text": {"method": "forward", "method_output_name": "last_hidden_state"}},),
    },
    MODULES_FILE: {"idx": (), "name": (), "kwargs": ([], None)},  # kwargs: arguments of `encode` that a module takes
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SentenceFolder:
    """The settings by which a text becomes a vector."""

    modes: tuple[str, ...] = pooling.MEAN
    pools_prompt: bool = True
    prompts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    default_prompt: str = ""  # put before each text for which the request asks for no other
    dense: tuple[Dense, ...] = ()  # modules that follow the pooling
    lowers_case: bool = False
    max_tokens: int | None = None

    def find_prompt(self, name: str | None = None, input_type: str | None = None) -> str:
        """Return the prompt of a name, or else of a type of input.

        Raises `InvalidInput` if no prompt has the name, or if both are given.
        """
        if name is not None and input_type is not None:
            field = "parameters.input_type"
            raise InvalidInput(f"{field}: chooses a prompt, as prompt_name does; send one of them.", field=field)
        if name is not None:
            if name not in self.prompts:
                known = ", ".join(map(truncate_name, self.prompts)) or "none; leave it out"
                message = f"parameters.prompt_name: is no prompt of this model, which has {known}."
                raise InvalidInput(message, field="parameters.prompt_name")
            return self.prompts[name]
        found = [self.prompts[each] for each in INPUT_TYPES.get(input_type or "", ()) if each in self.prompts]
        return found[0] if found else "" if input_type in RETRIEVAL else self.default_prompt

    def prepare_text(self, text: str, prompt: str) -> str:
        """Return the text that the tokenizer is given, with its prompt first, as `encode` has it since release 5.4."""
        whole = f"{prompt}{text}"
        return whole.lower() if self.lowers_case else whole


def read_folder(folder: Path) -> SentenceFolder:
    """Read all files of the folder. Without any of them a text's vector is the mean of its tokens.

    Raises `ModelUnavailable`, which names the file and the field, if one is not understood.
    """
    if (folder / ADAPTER_FILE).exists():
        raise ModelUnavailable(
            f"{ADAPTER_FILE} asks for weights of an adapter, which are not read. Merge them into the model's, with"
            " merge_and_unload() of peft, and save that."
        )
    place, others = _read_module_places(folder)
    modes, pools_prompt = _read_pooling(folder, place)
    settings = _read_object(folder, MODEL_FILE)
    prompts, default_prompt = _read_prompts(settings)
    _refuse_unknown_fields(MODEL_FILE, settings, {"prompts", "default_prompt_name"})
    if "cls" in modes and not pools_prompt and any(prompts.values()):
        raise ModelUnavailable(
            f"{place or '1_Pooling'}/config.json: include_prompt = false beside the pooling cls is not served:"
            " sentence-transformers takes the first token before release 5.5, and since then the first after the"
            " prompt."
        )
    file = next((name for name in TRANSFORMER_FILES if (folder / name).exists()), TRANSFORMER_FILES[0])
    transformer = _read_object(folder, file)
    _refuse_unknown_fields(file, transformer, {"max_seq_length", "do_lower_case"}, HARMLESS[TRANSFORMER_FILES[0]])
    return SentenceFolder(
        modes=modes,
        pools_prompt=pools_prompt,
        prompts=prompts,
        default_prompt=default_prompt,
        dense=tuple(load_dense(folder / other, _read_object(folder, f"{other}/config.json")) for other in others),
        lowers_case=bool(_read_field(file, transformer, "do_lower_case", bool)),
        max_tokens=_read_field(file, transformer, "max_seq_length", int),
    )


def require_no_default_prompt(folder: Path) -> None:
    """Raise `ModelUnavailable` for a cross-encoder that the library gives a prompt before each query."""
    _, prompt = _read_prompts(_read_object(folder, MODEL_FILE))
    if prompt:
        raise ModelUnavailable(
            f"{MODEL_FILE}: default_prompt_name puts a prompt before each query, which is not done here. Set it to null"
            " and send the prompt within the query, or write an engine class, see docs/guide/models.md."
        )


def _read_module_places(folder: Path) -> tuple[str, list[str]]:
    """Return the folder of the pooling module, and those of the Dense modules.

    The first is empty if no modules are listed.
    """
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
        _refuse_unknown_fields(MODULES_FILE, step, {"type", "path"})
    if steps[0].get("path", ""):
        raise _make_field_error(MODULES_FILE, "path", steps[0]["path"])
    places = [str(step.get("path", "")) for step in steps[1 : 2 + len(others)]]
    for place in places:
        if Path(place).name != place or place in ("", ".."):
            raise ModelUnavailable(f"{MODULES_FILE} names the folder {place!r}, which is not a folder beside it.")
    return places[0], places[1:]


def _read_pooling(folder: Path, place: str) -> tuple[tuple[str, ...], bool]:
    """Return the kinds of pooling, and True if the prompt's tokens are pooled too."""
    file = f"{place or '1_Pooling'}/config.json"
    saved = _read_object(folder, file)
    return pooling.read_modes(file, saved) if saved or place else (pooling.MEAN, True)


def _read_prompts(settings: Mapping[str, Any]) -> tuple[dict[str, str], str]:
    """Return the prompts by name, and the default prompt, which is empty if there is none.

    The default prompt is that of a call that names none.
    """
    name, prompts = settings.get("default_prompt_name"), settings.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
        raise _make_field_error(MODEL_FILE, "prompts", prompts)
    if name is None:
        return prompts, ""
    if not isinstance(name, str) or name not in prompts:  # SentenceTransformer raises an exception for it
        raise ModelUnavailable(f"{MODEL_FILE}: default_prompt_name is {name!r}, which is none of its prompts.")
    return prompts, str(prompts[name])


def _read_object(folder: Path, file: str) -> dict[str, Any]:
    found = weights.read_json(folder / file, missing={})
    if not isinstance(found, dict):
        raise ModelUnavailable(f"{file} must be an object of JSON.")
    return found


def _read_field(file: str, saved: Mapping[str, Any], field: str, kind: type) -> Any:
    value = saved.get(field)
    if value is not None and type(value) is not kind:
        raise _make_field_error(file, field, value)
    return value


def _refuse_unknown_fields(
    file: str, saved: Mapping[str, Any], known: set[str], harmless: Mapping[str, tuple[Any, ...]] | None = None
) -> None:
    harmless = HARMLESS[file] if harmless is None else harmless
    for field, value in saved.items():
        allowed = harmless.get(field)
        if field in known or (allowed is not None and (not allowed or value in allowed)):
            continue
        raise _make_field_error(file, field, value)


def _make_field_error(file: str, field: str, value: object) -> ModelUnavailable:
    return ModelUnavailable(
        f"{file}: {field} = {str(value)[:100]!r} is not understood, and vectors might be others than the model's."
        " Write an engine class, see docs/guide/models.md."
    )
