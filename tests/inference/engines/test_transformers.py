"""The contract of the pipeline engine, for every task: batched answers equal those of the bare pipeline, one by one."""

import importlib.util
import json
import math
import re
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from unittest import TestCase
from unittest.mock import patch

from inference.catalog import reader, tasks
from inference.catalog.request_validation import validate_request
from inference.catalog.specs import ModelSpec
from inference.engines import loading
from inference.engines.inputs import media
from inference.engines.inputs.feeds import FEEDS
from inference.engines.runtime.engine_calls import RunReport, run_engine_with_isolation
from inference.engines.runtime.json_values import convert_to_json
from inference.engines.runtime.row_groups import BatchingMode
from inference.errors import UNREADABLE, EngineError, InvalidInput, ModelUnavailable
from tests import tiny_models

TEXTS = [
    "the cat runs in paris",
    "a dog",
    "it was a good house and the red cat sleeps on it, was it not? a big green house in france",
    "",
    "small",
]
PROMPTS = [text for text in TEXTS if text]
PICTURES = [tiny_models.png(), tiny_models.png((0, 255, 0), (60, 20))]
LABELS = {"candidate_labels": ["red", "a good house", "paris"]}
GREEDY = {"max_new_tokens": 6, "do_sample": False}
TONES = [tiny_models.wav(), tiny_models.wav(880), tiny_models.wav(300, 0.5), tiny_models.wav(500, 0.4)]

_engines: dict[str, Any] = {}
SPEECH = "automatic-speech-recognition"
TASKS = {"whisper": SPEECH, "whisper-with-times": SPEECH, "gpt2-features": "feature-extraction"}


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """Of this process, of those of a parallel run."""
    return tempfile.TemporaryDirectory()


def tearDownModule() -> None:
    _engines.clear()
    _folder().cleanup()
    _folder.cache_clear()


def engine(name: str) -> Any:
    """One engine a task, loaded when the first test asks for it."""
    if name not in _engines:
        folder = Path(_folder().name) / name
        if not folder.exists():
            tiny_models.build(name, folder)
        spec = ModelSpec(name=name, task=TASKS.get(name, name), model=str(folder))
        _engines[name] = loading.load_engine(spec, "cpu")
    return _engines[name]


def bare(name: str) -> Any:
    """The library's own pipeline over the same folder, without anything of ours."""
    from transformers import pipeline

    engine(name)
    return pipeline(TASKS.get(name, name), model=str(Path(_folder().name) / name), device="cpu")


class EqualTestCase(TestCase):
    def answers(self, name: str, inputs: list[Any], parameters: dict[str, Any] | None = None) -> list[Any]:
        report = run_engine_with_isolation(engine(name), inputs, parameters or {})
        self.assertEqual(report.calls, 1)
        json.dumps(report.outcomes, allow_nan=False)
        return report.outcomes

    def assert_equal(self, first: Any, second: Any, where: str = "answer") -> None:
        """Equal, numbers within 1e-4."""
        if isinstance(first, float):
            self.assertTrue(math.isclose(first, second, abs_tol=1e-4), f"{where}: {first} is not {second}")
        elif isinstance(first, dict):
            self.assertEqual(first.keys(), second.keys(), where)
            for key in first:
                self.assert_equal(first[key], second[key], f"{where}.{key}")
        elif isinstance(first, list):
            self.assertEqual(len(first), len(second), where)
            for index, (left, right) in enumerate(zip(first, second, strict=True)):
                self.assert_equal(left, right, f"{where}[{index}]")
        else:
            self.assertEqual(first, second, where)

    def assert_batching_changes_nothing(self, name: str, inputs: list[Any], parameters: Any = None) -> None:
        together = self.answers(name, inputs, parameters)
        alone = [self.answers(name, [value], parameters)[0] for value in inputs]
        self.assert_equal(together, alone)


class TextTests(EqualTestCase):
    def test_text_classification(self) -> None:
        self.assert_batching_changes_nothing("text-classification", TEXTS)
        pipe = bare("text-classification")
        self.assert_equal(self.answers("text-classification", TEXTS), [pipe([text])[0] for text in TEXTS])

    def test_text_classification_with_top_k_and_with_pairs(self) -> None:
        inputs = [*TEXTS, {"text": "a cat", "text_pair": "a dog runs"}]
        self.assert_batching_changes_nothing("text-classification", inputs, {"top_k": 2})
        pipe = bare("text-classification")
        self.assert_equal(
            self.answers("text-classification", inputs, {"top_k": 2}), [pipe([value], top_k=2)[0] for value in inputs]
        )

    def test_token_classification(self) -> None:
        for parameters in ({}, {"aggregation_strategy": "simple"}, {"aggregation_strategy": "max"}):
            with self.subTest(parameters):
                self.assert_batching_changes_nothing("token-classification", TEXTS, parameters)
        pipe = bare("token-classification")
        expected = [[{**entity, "score": float(entity["score"])} for entity in pipe(text)] for text in TEXTS]
        self.assert_equal(self.answers("token-classification", TEXTS), expected)

    def test_token_classification_of_long_texts_in_strides(self) -> None:
        parameters = {"aggregation_strategy": "first", "stride": 8}
        self.assert_batching_changes_nothing("token-classification", [TEXTS[2] * 5, *TEXTS], parameters)

    def test_feature_extraction_has_one_row_a_token_and_none_for_the_padding(self) -> None:
        self.assert_batching_changes_nothing("feature-extraction", TEXTS)
        pipe = bare("feature-extraction")
        self.assert_equal(self.answers("feature-extraction", TEXTS), [pipe(text) for text in TEXTS])

    def test_how_much_feature_extraction_will_answer_is_known_before_it_runs(self) -> None:
        for name in ("feature-extraction", "gpt2-features"):
            with self.subTest(name):
                made = engine(name)
                counted = [tokens * made.numbers_a_token for tokens in made.count_tokens(PROMPTS, {})]
                answered = [len(states) * len(states[0]) for [states] in self.answers(name, PROMPTS)]
                self.assertEqual(counted, answered)
        self.assertEqual(engine("text-classification").numbers_a_token, 0)

    def test_feature_extraction_by_a_model_with_a_tokenizer_that_pads_on_the_left(self) -> None:
        self.assert_batching_changes_nothing("gpt2-features", PROMPTS)

    def test_fill_mask(self) -> None:
        inputs = [f"{text} [MASK] and a" for text in TEXTS] + ["two [MASK] in [MASK] text"]
        for parameters in ({}, {"top_k": 2}, {"targets": ["cat", "dog"]}):
            with self.subTest(parameters):
                self.assert_batching_changes_nothing("fill-mask", inputs, parameters)
        pipe = bare("fill-mask")
        self.assert_equal(self.answers("fill-mask", inputs), [pipe(text) for text in inputs])

    def test_zero_shot_classification(self) -> None:
        for parameters in (LABELS, {**LABELS, "multi_label": True, "hypothesis_template": "it is {}."}):
            with self.subTest(parameters):
                self.assert_batching_changes_nothing("zero-shot-classification", PROMPTS, parameters)
        pipe = bare("zero-shot-classification")
        self.assert_equal(
            self.answers("zero-shot-classification", PROMPTS, LABELS), [pipe(text, **LABELS) for text in PROMPTS]
        )

    def test_zero_shot_by_labels_that_do_not_say_entailment_has_a_note(self) -> None:
        self.assertNotIn("entail", engine("zero-shot-classification").note)
        model = Path(_folder().name) / "zero-shot-classification"
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(model, folder, dirs_exist_ok=True)
            config = json.loads((model / "config.json").read_text())
            names = {f"LABEL_{number}": number for number in range(3)}
            config |= {"label2id": names, "id2label": {number: name for name, number in names.items()}}
            Path(folder, "config.json").write_text(json.dumps(config))
            made = loading.load_engine(ModelSpec(name="m", task="zero-shot-classification", model=folder), "cpu")
        self.assertIn('None of its labels (LABEL_0, LABEL_1, LABEL_2) begins with "entail"', made.note)

    def test_zero_shot_inputs_may_bring_labels_of_their_own(self) -> None:
        own = {"sequences": "the cat runs", "candidate_labels": ["cat", "dog"]}
        first, second = self.answers("zero-shot-classification", ["a dog", own], LABELS)
        self.assertEqual(len(first["labels"]), 3)
        self.assertEqual(set(second["labels"]), {"cat", "dog"})


class GenerationTests(EqualTestCase):
    def test_greedy_text_is_the_same_in_a_batch(self) -> None:
        self.assert_batching_changes_nothing("text-generation", PROMPTS, GREEDY)
        pipe = bare("text-generation")
        self.assert_equal(self.answers("text-generation", PROMPTS, GREEDY), [pipe(text, **GREEDY) for text in PROMPTS])

    def test_total_lengths_and_penalties_do_not_see_the_padding(self) -> None:
        for parameters in (
            {"max_length": 100, "do_sample": False},
            {**GREEDY, "repetition_penalty": 3.0},
            {**GREEDY, "no_repeat_ngram_size": 2, "return_full_text": False},
        ):
            with self.subTest(parameters):
                self.assert_batching_changes_nothing("text-generation", PROMPTS, parameters)

    def test_a_penalty_counts_padding_only_where_it_is_the_end_token(self) -> None:
        pipe, find_mode = engine("text-generation").pipe, FEEDS["text-generation"].find_batching_mode
        self.assertIs(find_mode(pipe, GREEDY), BatchingMode.PADDED)
        for active in ({"repetition_penalty": 1.2}, {"no_repeat_ngram_size": 2}):
            self.assertIs(find_mode(pipe, {**GREEDY, **active}), BatchingMode.EQUAL)
            with patch.object(pipe.model.generation_config, "eos_token_id", pipe.tokenizer.pad_token_id + 1):
                self.assertIs(find_mode(pipe, {**GREEDY, **active}), BatchingMode.PADDED)

    def test_chats_and_texts_share_a_batch(self) -> None:
        chat = [{"role": "user", "content": "hello"}]
        parts = [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]
        inputs = [chat, "a text", parts]
        self.assert_batching_changes_nothing("text-generation", inputs, GREEDY)
        answer = self.answers("text-generation", inputs, GREEDY)[0]
        self.assertEqual([message["role"] for message in answer[0]["generated_text"]], ["user", "assistant"])

    def test_a_prompt_without_room_for_an_answer_fails_alone(self) -> None:
        for length, parameters in ((128, GREEDY), (20, {"max_length": 20, "do_sample": False})):
            answers = run_engine_with_isolation(
                engine("text-generation"), ["a", "b" * length, "c"], parameters
            ).outcomes
            self.assertIsInstance(answers[1], InvalidInput)
            self.assertIn(f"limit of {length - 1} tokens", answers[1].message)
            self.assertEqual(answers[1].code, "context_length_exceeded")
            self.assertEqual([isinstance(answer, list) for answer in answers], [True, False, True])

    def test_an_answer_has_what_its_prompt_leaves_of_the_context(self) -> None:
        """Beside others that have more."""
        prompts = ["a", "b" * 125, "c", "d" * 125, "e" * 70]
        for limits in ({"max_new_tokens": 100}, {"max_new_tokens": 4096}, {"max_length": 4096}, {}):
            given = {"do_sample": False, "details": True, **limits}
            for prompt, answer in zip(prompts, self.answers("text-generation", prompts, given), strict=True):
                with self.subTest(prompt=prompt[0], limits=limits):
                    left = min(128 - len(prompt), limits.get("max_new_tokens", 128))
                    alone = {"do_sample": False, "details": True, "max_new_tokens": left}
                    [expected] = self.answers("text-generation", [prompt], alone)
                    self.assertEqual(answer, expected)

    def test_the_default_number_of_new_tokens_fits_the_model(self) -> None:
        self.answers("text-generation", ["a"], {"do_sample": False})


class ImageAndSoundTests(EqualTestCase):
    def test_images_of_several_sizes_and_formats(self) -> None:
        inputs = [
            tiny_models.png(),
            tiny_models.png((0, 255, 0), (7, 90)),
            "data:image/png;base64," + tiny_models.png(),
        ]
        self.assert_batching_changes_nothing("image-classification", inputs, {"top_k": 2})

    def test_tasks_that_run_one_by_one_are_served_too(self) -> None:
        inputs = [tiny_models.png(), tiny_models.png((0, 255, 0), (60, 20))]
        self.assert_batching_changes_nothing("object-detection", inputs, {"threshold": 0.0})
        self.assert_batching_changes_nothing("image-segmentation", inputs)

    def test_masks_are_pictures_in_base64(self) -> None:
        masks = [part["mask"] for part in self.answers("image-segmentation", [tiny_models.png()])[0]]
        self.assertEqual({media.decode_image(mask).size for mask in masks}, {(40, 30)})

    def test_sounds_of_several_lengths(self) -> None:
        for name in ("audio-classification", "automatic-speech-recognition", "whisper"):
            with self.subTest(name):
                self.assert_batching_changes_nothing(name, TONES)

    def test_sound_longer_than_a_window_is_the_same_text_with_and_without_timestamps(self) -> None:
        sounds = [tiny_models.wav(300, 31), *TONES[:1], tiny_models.wav(440, 31)]
        texts = [answer["text"] for answer in self.answers("whisper-with-times", sounds, {"return_timestamps": True})]
        found = self.answers("whisper-with-times", sounds)
        for place in (0, 2):
            self.assertEqual(found[place], {"text": texts[place]})
        self.assertEqual(found[1:2], self.answers("whisper-with-times", sounds[1:2]))

    def test_times_and_languages_are_refused_by_models_that_know_none(self) -> None:
        for name in (SPEECH, "whisper"):
            for parameter, value in (("return_timestamps", True), ("language", "en")):
                with self.subTest(name, parameter=parameter):
                    [refused] = run_engine_with_isolation(engine(name), TONES[:1], {parameter: value}).outcomes
                    self.assertIsInstance(refused, InvalidInput)
                    self.assertEqual(refused.field, f"parameters.{parameter}")
                    self.assertRegex(refused.message, f"^parameters.{parameter}: .*leave it out")

    def test_a_model_that_writes_on_in_silence_is_tried_out_on_a_few_tokens_at_its_load(self) -> None:
        from transformers import WhisperForConditionalGeneration as Whisper

        generate, lengths = Whisper.generate, list[int]()

        def note(self: Any, *inputs: Any, **options: Any) -> Any:
            tokens = generate(self, *inputs, **options)
            lengths.append(tokens.shape[-1])
            return tokens

        _engines.pop("whisper", None)
        with patch.object(Whisper, "generate", note):
            engine("whisper")
        self.assertGreater(len(lengths), 1)
        self.assertLessEqual(max(lengths), 8)

    def test_sound_at_another_rate_is_converted(self) -> None:
        slow, fast = tiny_models.wav(rate=16_000), tiny_models.wav(rate=48_000)
        first, second = self.answers("audio-classification", [slow, fast])
        for left, right in zip(first, second, strict=True):
            self.assertAlmostEqual(left["score"], right["score"], places=2)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A task that answers its inputs one by one."""

    good: list[Any]
    wrong: list[tuple[Any, str]]  # an input that fails alone, and words of its message
    call: Callable[[Any, Any], Any]  # the library's own pipeline, with an input; its answer
    parameters: dict[str, Any] = field(default_factory=dict)


def _detect(pipe: Any, value: Any) -> Any:
    return pipe(media.decode_image(value["image"]), candidate_labels=value["candidate_labels"])


def _estimate_depth(pipe: Any, value: Any) -> Any:
    answer = pipe(media.decode_image(value))
    return {**answer, "depth": media.encode_png(answer["depth"])}


def _read_document(pipe: Any, value: Any) -> Any:
    return pipe(image=media.decode_image(value["image"]), question=value["question"], word_boxes=value["word_boxes"])


def _hear(pipe: Any, value: Any) -> Any:
    return pipe(media.decode_audio(value, pipe.feature_extractor.sampling_rate), **LABELS)


def _continue_text(pipe: Any, value: Any) -> Any:
    return pipe(images=[media.decode_image(image) for image in value["images"]], text=value["text"])


def _answer_of_table(pipe: Any, value: Any) -> Any:
    return pipe(table=dict(value["table"]), query=value["query"])


NO_IMAGE = ("aGVsbG8=", "image cannot be read")
LONG = "cat " * 200
DETECTION = {"image": PICTURES[0], "candidate_labels": ["cat", "red"]}
WORDS = [["the", [0, 0, 100, 100]], ["cat", [100, 0, 200, 100]], ["is", [0, 100, 100, 200]], ["red", [9, 9, 9, 9]]]
DOCUMENT = {"image": PICTURES[0], "question": "is it red", "word_boxes": WORDS}
IMAGE_AND_TEXT = {"images": PICTURES[:1], "text": "<image>a cat"}
TABLE = {"table": {"city": ["paris", "a house"], "good": ["1", "2"]}, "query": "is paris good"}
CASES = {
    "image-feature-extraction": Case(
        good=PICTURES, wrong=[NO_IMAGE], call=lambda pipe, value: pipe(media.decode_image(value))
    ),
    "depth-estimation": Case(good=PICTURES, wrong=[NO_IMAGE], call=_estimate_depth),
    "zero-shot-image-classification": Case(
        good=PICTURES,
        wrong=[NO_IMAGE],
        call=lambda pipe, value: pipe(media.decode_image(value), **LABELS),
        parameters=LABELS,
    ),
    "zero-shot-audio-classification": Case(
        good=TONES, wrong=[("aGVsbG8=", "audio cannot be read")], call=_hear, parameters=LABELS
    ),
    "zero-shot-object-detection": Case(
        good=[DETECTION, {"image": PICTURES[1], "candidate_labels": ["paris"]}],
        wrong=[
            (PICTURES[0], "candidate_labels"),
            ({"image": PICTURES[0]}, "candidate_labels"),
            ({**DETECTION, "question": "a"}, "must be"),
            ({**DETECTION, "candidate_labels": []}, "candidate_labels"),
            ({**DETECTION, "candidate_labels": [LONG]}, "at most 16 tokens"),
            ({**DETECTION, "image": "/etc/passwd"}, "addresses are not fetched"),
        ],
        call=_detect,
    ),
    "document-question-answering": Case(
        good=[DOCUMENT, {**DOCUMENT, "image": PICTURES[1], "word_boxes": WORDS * 20}],
        wrong=[
            (PICTURES[0], "question"),
            ({"image": PICTURES[0]}, "question"),
            ({"image": PICTURES[0], "question": "is it"}, "word_boxes"),
            ({**DOCUMENT, "question": 3}, "must be a text"),
            ({**DOCUMENT, "question": LONG}, "cannot read"),
            ({**DOCUMENT, "question": 2 * LONG}, "at most 1000 characters"),
            ({**DOCUMENT, "word_boxes": [["cat", [0, 0, 1001, 5]]]}, "from 0 to 1000"),
            ({**DOCUMENT, "word_boxes": [["cat", [9, 0, 8, 5]]]}, "left, top"),
            ({**DOCUMENT, "word_boxes": [["cat", [0.5, 0, 8, 5]]]}, "whole numbers"),
            ({**DOCUMENT, "word_boxes": [["cat", [0, 0, 8]]]}, "left, top"),
            ({**DOCUMENT, "word_boxes": "cat"}, "must be a list"),
        ],
        call=_read_document,
    ),
    "image-text-to-text": Case(
        good=[IMAGE_AND_TEXT, {"images": PICTURES, "text": "<image><image>the"}],
        wrong=[
            ("a cat", "must be"),
            ({"images": [], "text": "a cat"}, "images is empty"),
            ({"images": PICTURES, "text": "<image>"}, "cannot read"),
            ({"images": PICTURES[:1]}, "must be a text"),
            ({"images": PICTURES[:1], "text": "<image>" + LONG}, "limit of 256 tokens"),
            ([{"role": "user", "content": LONG}], "limit of 256 tokens"),
            ([{"role": "user", "content": [{"type": "image", "image": "http://localhost/a.png"}]}], "not fetched"),
        ],
        call=_continue_text,
    ),
    "table-question-answering": Case(
        good=[TABLE, {"table": {"a": ["the cat"]}, "query": "a cat"}],
        wrong=[
            ("a text", "must be"),
            ({"table": {"a": [1, None]}, "query": "a"}, "list of texts"),
            ({"table": {"a": ["x"], "b": ["y", "z"]}, "query": "a"}, "one length"),
            ({"table": {}, "query": "a"}, "one length"),
            ({**TABLE, "query": ""}, "query"),
        ],
        call=_answer_of_table,
    ),
    "text-to-audio": Case(
        good=["the cat", "a"],
        wrong=[("!", "cannot read"), ("cat " * 2000, "limit of 8192 tokens")],
        call=lambda pipe, value: pipe(value),
    ),
}
# Tasks that no test runs here, with the reason.
ELSEWHERE = {
    "table-question-answering": "it needs pandas, which is in no requirements file: it runs where that is installed",
    "text-ranking": "tests/api/test_encoder_clients.py runs it",
}


class OneByOneTests(EqualTestCase):
    def test_answers_are_those_of_the_library_and_a_wrong_input_fails_alone(self) -> None:
        for name, case in CASES.items():
            package = tasks.find_task(name).package
            if package and not importlib.util.find_spec(package):
                continue
            with self.subTest(name), patch.object(shutil, "which", return_value=None):
                entry = reader.parse_catalog(f'[m]\ntask = "{name}"\nmodel = "m"\n')["m"]
                inputs = [case.good[0], *(value for value, _ in case.wrong), *case.good[1:]]
                given = validate_request(entry, inputs, case.parameters)
                report = run_engine_with_isolation(engine(name), inputs, given)
                self.assertEqual(report.calls, 1)
                answers = report.outcomes
                found = [answers[0], *answers[1 + len(case.wrong) :]]
                self.assert_equal(found, [self.answers(name, [value], given)[0] for value in case.good])
                pipe = bare(name)
                self.assert_equal(found, [convert_to_json(case.call(pipe, value)) for value in case.good])
                for (_, words), failed in zip(case.wrong, answers[1:], strict=False):
                    self.assertTrue(isinstance(failed, InvalidInput), words)
                    self.assertIn(words, failed.message)

    def test_each_task_of_a_pipeline_is_run_by_a_test(self) -> None:
        own = Path(__file__).read_text(encoding="utf-8").partition("\nELSEWHERE = ")
        quoted = set(re.findall(r'"([\w-]+)"', own[0] + own[2].partition("\n}\n")[2]))
        served = {task.name for task in tasks.TASKS.values() if task.is_pipeline}
        packaged = {name for name in served if tasks.find_task(name).package}
        self.assertEqual(served - (quoted & tiny_models.BUILDERS.keys() - packaged), ELSEWHERE.keys())

    def test_a_chat_with_images_is_answered_without_them(self) -> None:
        """Which an answer of the library repeats twice."""
        text = {"type": "text", "text": "what is it?"}
        chat = [{"role": "user", "content": [{"type": "image", "image": PICTURES[0]}, text]}]
        address = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + PICTURES[1]}}
        found = self.answers("image-text-to-text", [chat, [{"role": "user", "content": [address, text]}]])
        shown = [{"role": "user", "content": [{"type": "image"}, text]}]
        opened = [{"role": "user", "content": [{"type": "image", "image": media.decode_image(PICTURES[0])}, text]}]
        [expected] = bare("image-text-to-text")(text=opened)
        self.assertEqual(found[0], [{"input_text": shown, "generated_text": [*shown, expected["generated_text"][-1]]}])
        self.assertEqual(found[1][0]["input_text"], shown)

    def test_settings_that_a_pipeline_changes_are_the_same_for_the_next_input(self) -> None:
        given = {"max_new_tokens": 2, "generate_kwargs": {"do_sample": False}}
        first, second = self.answers("image-text-to-text", [IMAGE_AND_TEXT, IMAGE_AND_TEXT], given)
        self.assertEqual(first, second)

    def test_a_label_that_the_model_cannot_read_as_a_whole_is_refused(self) -> None:
        for name in ("zero-shot-image-classification", "zero-shot-audio-classification"):
            [outcome] = run_engine_with_isolation(
                engine(name), CASES[name].good[:1], {"candidate_labels": [LONG]}
            ).outcomes
            self.assertIn("at most 6", outcome.message)
            self.assertEqual(outcome.field, "parameters.candidate_labels")

    def test_a_model_that_makes_no_sound_of_its_spectrogram_is_refused(self) -> None:
        engine("text-to-audio")
        model = str(Path(_folder().name) / "text-to-audio")
        names = "inference.engines.artifacts.pipeline_loader.MODEL_FOR_TEXT_TO_SPECTROGRAM_MAPPING_NAMES"
        with patch.dict(names, {"vits": "VitsModel"}), self.assertRaises(ModelUnavailable) as caught:
            loading.load_engine(ModelSpec(name="m", task="text-to-audio", model=model), "cpu")
        self.assertTrue(caught.exception.message.startswith("VitsModel makes spectrograms"), caught.exception.message)


class WrongInputTests(EqualTestCase):
    def assert_fails_alone(self, name: str, good: Any, bad: Any, *words: str, **parameters: Any) -> None:
        report: RunReport = run_engine_with_isolation(engine(name), [good, bad, good], parameters)
        self.assertEqual(report.calls, 1)
        self.assertIsInstance(report.outcomes[1], InvalidInput)
        for word in words:
            self.assertIn(word, report.outcomes[1].message)
        self.assert_equal([report.outcomes[0]], [report.outcomes[2]])
        self.assertNotIsInstance(report.outcomes[0], Exception)

    def test_an_input_that_the_model_cannot_compute_is_at_fault_where_the_model_answers_its_example(self) -> None:
        for name in (SPEECH, "audio-classification"):
            for samples in (0, 1, 10):
                with self.subTest(name=name, samples=samples):
                    short = tiny_models.wav(seconds=samples / 16_000)
                    first, bad, last = run_engine_with_isolation(engine(name), [TONES[0], short, TONES[1]], {}).outcomes
                    self.assertIsInstance(bad, InvalidInput)
                    self.assertFalse(isinstance(first, Exception) or isinstance(last, Exception))
        # a sound of several windows, for a model that cannot tell times
        [long] = run_engine_with_isolation(engine("whisper"), [tiny_models.wav(seconds=31)], {}).outcomes
        self.assertIsInstance(long, InvalidInput)

    def test_a_text_without_a_place_to_fill_fails_alone(self) -> None:
        self.assert_fails_alone("fill-mask", "a [MASK]", "no mask", "[MASK]")

    def test_a_place_to_fill_that_is_cut_off_fails_alone(self) -> None:
        self.assert_fails_alone("fill-mask", "a [MASK]", "a " * 90 + "[MASK]", "mask")

    def test_a_wrong_type_fails_alone(self) -> None:
        for bad in (3, None, ["a"], {"a": "b"}, True):
            self.assert_fails_alone("text-classification", "a cat", bad, "text")

    def test_a_text_that_is_no_unicode_fails_alone(self) -> None:
        self.assert_fails_alone("text-classification", "a cat", "\ud800")

    def test_a_label_that_is_no_text_fails_alone(self) -> None:
        bad = {"sequences": "a", "candidate_labels": [1]}
        self.assert_fails_alone("zero-shot-classification", "a cat", bad, "candidate_labels", **LABELS)

    def test_missing_labels_are_named(self) -> None:
        report = run_engine_with_isolation(engine("zero-shot-classification"), ["a cat"], {})
        self.assertIn("candidate_labels", report.outcomes[0].message)

    def test_a_template_that_formats_more_than_the_label_is_refused(self) -> None:
        inputs = {
            "zero-shot-classification": "a",
            "zero-shot-image-classification": PICTURES[0],
            "zero-shot-audio-classification": TONES[0],
        }
        for name, value in inputs.items():
            for template in ("{0.__class__}", "{:>1000000000}", "no place", "{} {}"):
                given = {**LABELS, "hypothesis_template": template}
                [outcome] = run_engine_with_isolation(engine(name), [value], given).outcomes
                self.assertIsInstance(outcome, InvalidInput)
                self.assertIn("hypothesis_template", outcome.message)

    def test_an_image_that_is_none_fails_alone(self) -> None:
        for bad in ("not base64!", "aGVsbG8=", "/etc/passwd", "http://localhost/a.png", 3):
            for name in ("image-classification", "object-detection"):
                self.assert_fails_alone(name, tiny_models.png(), bad)

    def test_sound_that_is_none_fails_alone(self) -> None:
        for bad in ("not base64!", "aGVsbG8=", "/etc/passwd", {"raw": [0.1], "sampling_rate": 16_000}):
            self.assert_fails_alone("automatic-speech-recognition", TONES[0], bad)

    def test_a_chat_that_is_none_fails_alone(self) -> None:
        for bad in ([], [{"role": "user"}], [{"content": "a"}], [{"role": "user", "content": [{"type": "image"}]}], ""):
            self.assert_fails_alone("text-generation", "a", bad, **GREEDY)

    def test_an_unknown_parameter_is_the_input_s_fault_and_not_the_model_s(self) -> None:
        report = run_engine_with_isolation(engine("fill-mask"), ["a [MASK]", "b [MASK]"], {"colour": "red"})
        self.assertEqual([type(outcome) for outcome in report.outcomes], [InvalidInput, InvalidInput])
        self.assertEqual(report.calls, 1)

    def test_long_texts_are_cut_at_the_model_s_limit(self) -> None:
        long = "the cat " * 500
        for name in ("text-classification", "feature-extraction", "token-classification"):
            with self.subTest(name):
                self.assert_batching_changes_nothing(name, [long, "a dog"])
        self.assertEqual(len(self.answers("feature-extraction", [long])[0][0]), 64)


class ModelFaultTests(TestCase):
    """What the model's own code raises of its example too is no fault of the input, whatever its type."""

    def test_what_the_steps_behind_preprocess_raise_is_the_model_s(self) -> None:
        picture, detects, tokens = (
            tiny_models.png(),
            engine("object-detection").pipe,
            engine("token-classification").pipe,
        )
        cases = (
            ("object-detection", type(detects), "_forward", picture),
            ("object-detection", type(detects.image_processor), "post_process_object_detection", picture),
            ("token-classification", type(tokens), "postprocess", "a cat"),
        )
        for name, owner, step, value in cases:
            for error in (KeyError("secret"), ValueError("secret"), AttributeError("secret"), TypeError("secret")):
                with self.subTest(name=name, step=step, error=error):
                    with patch.object(owner, step, side_effect=error):
                        [outcome] = run_engine_with_isolation(engine(name), [value], {}).outcomes
                    self.assertIsInstance(outcome, EngineError)
                    self.assertIn("secret", outcome.raised)
                    self.assertNotIn("secret", outcome.message)

    def test_clients_get_what_preprocess_raises_in_our_words_only(self) -> None:
        for name, value in (("object-detection", tiny_models.png()), ("token-classification", "a cat")):
            with patch.object(type(engine(name).pipe), "preprocess", side_effect=KeyError("secret")):
                [outcome] = run_engine_with_isolation(engine(name), [value], {}).outcomes
            self.assertIsInstance(outcome, InvalidInput)
            self.assertEqual((outcome.message, outcome.raised), (UNREADABLE, "KeyError: 'secret'"))


class LoadTests(TestCase):
    def assert_refused(self, spec: ModelSpec, *words: str) -> None:
        with self.assertRaises(ModelUnavailable) as caught:
            loading.load_engine(spec, "cpu")
        for word in words:
            self.assertIn(word, caught.exception.message)
        self.assertNotIn("Traceback", caught.exception.message)

    def test_a_task_that_is_gone_names_those_that_are_served(self) -> None:
        self.assert_refused(ModelSpec(name="m", task="summarization", model="x"), "summarization", "text-generation")

    def test_a_folder_without_a_tokenizer_says_so(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            tiny_models.build("fill-mask", Path(folder))
            for file in Path(folder).glob("tokenizer*"):
                file.unlink()
            self.assert_refused(ModelSpec(name="m", task="fill-mask", model=folder), "tokenizer")

    def test_truncated_weights_are_refused(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            weights = tiny_models.build("fill-mask", Path(folder)) / "model.safetensors"
            weights.write_bytes(weights.read_bytes()[:-1000])
            self.assert_refused(ModelSpec(name="m", task="fill-mask", model=folder), "could not be loaded")

    def test_the_dtype_of_the_catalog_is_used(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            tiny_models.build("text-classification", Path(folder))
            spec = ModelSpec(name="m", task="sentiment-analysis", model=folder, dtype="bfloat16")
            loaded: Any = loading.load_engine(spec, "cpu")
            self.assertEqual(str(loaded.pipe.model.dtype), "torch.bfloat16")
            self.assertEqual(run_engine_with_isolation(loaded, ["a cat"], {}).calls, 1)
