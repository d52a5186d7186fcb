"""Generation by the step: every answer is that of `generate` alone, whoever joins and leaves."""

import itertools
import random
import re
from collections import defaultdict
from typing import Any
from unittest import TestCase
from unittest.mock import patch

import torch
from tokenizers import normalizers, processors

from inference.batching.room import Room
from inference.catalog.input_checks import TOKENS
from inference.catalog.sizes import lengths
from inference.engines.generation import forwards, pipeline_stepper, prefix_cache
from inference.engines.generation.processors import logprobs
from inference.engines.runtime import json_values
from inference.engines.stepper import OPEN
from inference.errors import UNREADABLE, InvalidInput, TimedOut
from tests import decoders, tiny_models
from tests.decoders import ProgressCollector
from tests.inference.engines.generation.test_growing_text import with_bytes

GREEDY = {"do_sample": False, "return_full_text": False}
STEPPED = sorted(decoders.SETTINGS.keys() - {"Mamba"})
NEVER = 10_000  # is no token of these models
WITH_DETAILS = {"return_full_text": False, "details": True}
LETTERS = "abcdefghij klmnop, ZÄ€🙂"


def prompts(chosen: random.Random, count: int, longest: int = 40) -> list[str]:
    return ["".join(chosen.choices(LETTERS, k=chosen.randint(1, longest))) for _ in range(count)]


def alone(engine: Any, prompt: Any, **parameters: Any) -> Any:
    [answer] = engine.predict([prompt], {**GREEDY, **parameters})
    return answer


run_alone = forwards.Forwards._run_forward  # noqa: SLF001 - as it is, under a count of its calls


def text(answer: Any) -> str:
    return str(answer[0]["generated_text"])


class StepperTestCase(TestCase):
    def setUp(self) -> None:
        self.addCleanup(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)  # the models are smaller than the cost of sharing them

    def assert_texts_match_answers(self, collector: ProgressCollector) -> None:
        """What was told piece by piece is the text of the answer."""
        for key, answer in collector.answers.items():
            self.assertEqual(collector.texts[key], text(answer), key)


class AnswerTests(StepperTestCase):
    def test_answers_are_those_of_generate_alone_while_others_join_and_leave(self) -> None:
        for kind in STEPPED:
            with self.subTest(kind):
                self.play(decoders.engine(kind), random.Random(kind))

    def test_bloom_answers_as_generate_does_for_each_prompt_alone(self) -> None:
        engine = decoders.engine("Bloom")
        model, tokenizer = engine.pipe.model, engine.pipe.tokenizer
        limits = {prompt: 8 + 4 * place for place, prompt in enumerate(("a", "hello", "hello you", "b" * 50))}
        collector = ProgressCollector(engine.stepper)
        for prompt, count in limits.items():
            engine.stepper.join(prompt, prompt, {**GREEDY, "max_new_tokens": count}, seed=0)
            collector.step()
        collector.all()
        for prompt, count in limits.items():
            [tokens] = model.generate(**tokenizer(prompt, return_tensors="pt"), do_sample=False, max_new_tokens=count)
            expected = tokenizer.decode(tokens[len(prompt) :], skip_special_tokens=True)
            self.assertEqual(collector.answers[prompt], [{"generated_text": expected}])

    def play(self, engine: Any, chosen: random.Random) -> None:
        self.assertIsNotNone(engine.stepper, engine.note)
        requests = {
            key: (prompt, {**GREEDY, "max_new_tokens": chosen.randint(1, 30)})
            for key, prompt in enumerate(prompts(chosen, 14))
        }
        left, collector = list(requests), ProgressCollector(engine.stepper)
        gone: set[int] = set()
        with patch.object(pipeline_stepper, "PIECE", 32):
            while left or len(engine.stepper):
                while left and chosen.random() < 0.5:
                    key = left.pop()
                    engine.stepper.join(key, *requests[key], seed=key)
                if chosen.random() < 0.03:
                    gone.add(key := chosen.choice(list(requests)))
                    engine.stepper.leave(key)
                collector.step()
        self.assertLess(len(gone), 7)
        self.assertEqual(collector.answers.keys() | gone, requests.keys())
        for key, (prompt, parameters) in requests.items():
            if key not in gone:
                self.assertEqual(collector.answers[key], alone(engine, prompt, **parameters))
        self.assert_texts_match_answers(collector)

    def test_a_long_prompt_is_read_in_pieces_while_others_generate(self) -> None:
        engine = decoders.engine("Llama")
        collector = ProgressCollector(engine.stepper)
        with patch.object(pipeline_stepper, "PIECE", 16):
            engine.stepper.join("short", "ab", {**GREEDY, "max_new_tokens": 20}, seed=0)
            collector.step()
            engine.stepper.join("long", "abc" * 40, {**GREEDY, "max_new_tokens": 5}, seed=0)
            engine.stepper.join("late", "cd", {**GREEDY, "max_new_tokens": 20}, seed=0)
            for _ in range(3):
                self.assertEqual(sum(progress.tokens for progress in collector.step() if progress.key == "short"), 1)
            self.assertIn("late", collector.texts)
            self.assertNotIn("long", collector.texts)
            collector.all()
        self.assertEqual(collector.answers["long"], alone(engine, "abc" * 40, max_new_tokens=5))
        self.assertEqual(collector.answers["late"], alone(engine, "cd", max_new_tokens=20))

    def test_a_beginning_that_was_read_is_not_computed_again(self) -> None:
        system = "You answer in one word. " * 8
        texts = [f"{system}{question}" for question in ("a?", "bcd?", "efg hij?", "no? k!")]
        for kind in STEPPED:
            engine = decoders.over(decoders.model(kind))
            collector = ProgressCollector(engine.stepper)
            with self.subTest(kind), patch.object(forwards.Forwards, "_run_forward", autospec=True) as run:
                run.side_effect = run_alone
                for prompt in texts:
                    engine.stepper.join(prompt, prompt, {**GREEDY, "max_new_tokens": 3}, seed=0)
                collector.all()
                read = [tokens.shape[1] for _, tokens, *_ in (call.args for call in run.call_args_list)]
                self.assertEqual(
                    sum(read) - read.count(1), len(system) + sum(len(prompt) - len(system) for prompt in texts)
                )
            for prompt in texts:
                self.assertEqual(collector.answers[prompt], alone(engine, prompt, max_new_tokens=3))

    def test_a_gpu_reads_prompts_of_one_beginning_together_where_a_step_has_room_for_them(self) -> None:
        system = "You answer in one word. " * 8
        texts = [f"{system}{question}" for question in ("a?", "b?", "c?")]
        engine = decoders.over(decoders.model("Llama"))
        collector = ProgressCollector(engine.stepper)
        with (
            patch.object(engine.stepper, "_is_cpu", new=False),
            patch.object(forwards.Forwards, "_run_forward", autospec=True, side_effect=run_alone) as run,
        ):
            for prompt in texts:
                engine.stepper.join(prompt, prompt, {**GREEDY, "max_new_tokens": 2}, seed=0)
            collector.all()
        read = [tuple(call.args[1].shape) for call in run.call_args_list]
        self.assertEqual([shape for shape in read if shape[1] > 1], [(3, len(system) + 2)])
        for prompt in texts:
            self.assertEqual(collector.answers[prompt], alone(engine, prompt, max_new_tokens=2))

    def test_beginnings_have_a_bounded_room_and_give_way_where_memory_is_short(self) -> None:
        engine = decoders.over(decoders.model("Llama"), max_batch_tokens=8 * 400)
        stepper, kept = engine.stepper, engine.stepper.prefixes
        for letter in "abcb":
            stepper.join(letter, letter * 180, {**GREEDY, "max_new_tokens": 2}, seed=0)
            ProgressCollector(stepper).all()
        self.assertEqual([engine.pipe.tokenizer.decode(prefix.tokens[:1]) for prefix in kept.kept], ["c", "b"])
        self.assertLessEqual(sum(len(prefix.tokens) for prefix in kept.kept), 400)
        with patch.object(prefix_cache, "DynamicCache", side_effect=MemoryError):
            stepper.join("b", "b" * 180, {**GREEDY, "max_new_tokens": 2}, seed=0)
            found = ProgressCollector(stepper).all().answers["b"]
        self.assertEqual(found, alone(engine, "b" * 180, max_new_tokens=2))

    def test_chats_and_whole_texts_are_answered_as_the_pipeline_does(self) -> None:
        engine = decoders.engine("Llama")
        chat = [{"role": "user", "content": "hello"}]
        begun = [*chat, {"role": "assistant", "content": "I am"}]
        collector = ProgressCollector(engine.stepper)
        cases = list(itertools.product([chat, begun, "a text"], [True, False]))
        for key, (value, whole) in enumerate(cases):
            engine.stepper.join(
                key, value, {"max_new_tokens": 6, "do_sample": False, "return_full_text": whole}, seed=0
            )
        collector.all()
        for key, (value, whole) in enumerate(cases):
            self.assertEqual(collector.answers[key], alone(engine, value, max_new_tokens=6, return_full_text=whole))

    def test_a_chat_that_the_template_refuses_is_the_fault_of_its_sender(self) -> None:
        engine = decoders.engine("Llama")
        refusing = "{{ raise_exception('The first message must be of a user.') }}"
        for template, words in ((None, "has no template for chats"), (refusing, "must be of a user")):
            with self.subTest(template), patch.object(engine.pipe.tokenizer, "chat_template", template):
                with self.assertRaisesRegex(InvalidInput, words):
                    engine.stepper.join("k", [{"role": "system", "content": "hello"}], GREEDY, seed=0)
                answer = alone(engine, [{"role": "system", "content": "hello"}])
                self.assertIsInstance(answer, InvalidInput)
                self.assertIn(words, answer.message)
        self.assertEqual(len(engine.stepper), 0)

    def test_tools_are_shown_by_the_template_or_refused(self) -> None:
        engine, chat = decoders.engine("Llama"), [{"role": "user", "content": "hello"}]
        tools = [{"type": "function", "function": {"name": "paint", "parameters": {"type": "object"}}}]
        shown = "{% for t in tools or () %}{{ t.function.name }} {% endfor %}{{ messages[0].content }}"
        with patch.object(engine.pipe.tokenizer, "chat_template", shown):
            collector = ProgressCollector(engine.stepper)
            engine.stepper.join("k", chat, {**GREEDY, "max_new_tokens": 5, "tools": tools, "details": True}, seed=0)
            [found] = collector.all().answers["k"]
            self.assertEqual(found["details"]["prompt_tokens"], len("paint hello"))
            self.assertEqual([found], alone(engine, chat, max_new_tokens=5, tools=tools, details=True))
        for value, words in ((chat, "template of this model shows it no tools"), ("hello", "is for chats")):
            with self.subTest(words), self.assertRaisesRegex(InvalidInput, words) as caught:
                engine.stepper.join("k", value, {**GREEDY, "tools": tools}, seed=0)
            self.assertEqual(caught.exception.field, "parameters.tools")
            self.assertIn(words, alone(engine, value, tools=tools).message)

    def test_log_probabilities_are_the_model_s(self) -> None:
        """They equal those of a prompt with its answer in one forward, also beside a grammar and in a batch."""
        grammar = {"type": "regex", "value": "[a-c]{1,6}"}
        for name, more in (("Llama", {}), ("GPT2", {"grammar": grammar}), ("GPT2", {"do_sample": True, "seed": 5})):
            with self.subTest(name, **more):
                engine, collector = decoders.engine(name), ProgressCollector(decoders.engine(name).stepper)
                given = {**GREEDY, "max_new_tokens": 6, "logprobs": 3, **more}  # which come with details
                requested = prompts(random.Random(2), 4)
                for prompt in requested:
                    engine.stepper.join(prompt, prompt, given, seed=0)
                collector.all()
                for prompt in requested:
                    answer = collector.answers[prompt]
                    details = answer[0]["details"]
                    ids = [token["id"] for token in details["tokens"]]
                    read = engine.pipe.tokenizer(prompt)["input_ids"]
                    with torch.inference_mode():
                        scores = engine.pipe.model(torch.tensor([read + ids])).logits[0].float().log_softmax(-1)
                    for step, token in enumerate(details["tokens"]):
                        expected = scores[len(read) + step - 1]
                        self.assertAlmostEqual(token["logprob"], float(expected[token["id"]]), places=3)
                        best = [each["logprob"] for each in details["top_tokens"][step]]
                        self.assertTrue(torch.allclose(torch.tensor(best), expected.topk(3).values, atol=1e-3))
                    self.assertEqual(details["generated_tokens"], len(ids))
                    [alone_answer] = alone(engine, prompt, **given)
                    self.assertEqual([token["id"] for token in alone_answer["details"]["tokens"]], ids)

    def test_log_probabilities_come_with_the_text_in_which_their_tokens_begin(self) -> None:
        """The scores of all steps, and of tokens whose text does not show, are those of the answer."""
        chosen, engine = random.Random(3), decoders.engine("Llama")
        collector, texts = ProgressCollector(engine.stepper), dict[Any, str]()
        scores = defaultdict[Any, list[Any]](list)
        requested: dict[int, tuple[Any, dict[str, Any]]] = {}
        for key, prompt in enumerate(prompts(chosen, 40)):
            value: Any = prompt if key % 2 else [{"role": "user", "content": prompt}]
            stop = {"stop": chosen.choices(["ab", "c", "\n", "e "], k=2)} if key % 3 else {}
            given = {**GREEDY, "max_new_tokens": chosen.randrange(1, 30), "logprobs": 2, "do_sample": True, **stop}
            requested[key] = value, {**given, "seed": key}
            engine.stepper.join(key, *requested[key], seed=0)
        for _ in range(100):
            ended = [
                engine.stepper.finish(key) for key in [*requested] if chosen.random() < 0.02
            ]  # some before their time
            for progress in [*collector.step(), *ended]:
                before = len(texts.setdefault(progress.key, ""))
                texts[progress.key] += progress.text
                for token, _ in progress.scores:
                    self.assertTrue(before <= token["start"] < len(texts[progress.key]), (token, progress))
                scores[progress.key] += progress.scores
                if progress.answer is not OPEN and progress.key in requested:
                    [answer] = progress.answer
                    details = answer["details"]
                    shown = [
                        pair
                        for pair in zip(details["tokens"], details["top_tokens"], strict=True)
                        if not pair[0]["special"]
                    ]
                    received = scores[progress.key]
                    self.assertEqual(received, shown[: len(received)])
                    for token, _ in shown[len(received) :]:
                        self.assertGreaterEqual(token["start"], len(texts[progress.key]))
                    value, given = requested.pop(progress.key)
                    if progress not in ended:
                        [lone] = alone(engine, value, **given)
                        found, expected = (
                            [{**token, "logprob": 0} for token in each["details"]["tokens"]] for each in (answer, lone)
                        )
                        self.assertEqual(found, expected)
        self.assertFalse(requested)

    def test_log_probabilities_of_prompts_are_the_model_s_whatever_the_prompts_are_read_beside(self) -> None:
        """They are read side by side and in pieces, beside rows that ask for none and behind a known beginning."""
        beginning = "You answer in one word. " * 6
        requested = [*prompts(random.Random(3), 5), beginning + "a?", beginning + "bc?", "x"]
        for name in STEPPED:
            engine = decoders.over(decoders.model(name))
            with (
                self.subTest(name),
                patch.object(pipeline_stepper, "PIECE", 64),
                patch.object(engine.stepper, "_scored_piece", 48),
                patch.object(logprobs, "AT_ONCE", 7),
            ):
                collector = ProgressCollector(engine.stepper)
                for prompt in requested:
                    engine.stepper.join(prompt, prompt, {**GREEDY, "max_new_tokens": 4}, seed=0)
                    given = {"prompt_logprobs": 2, "logprobs": 2, "prompt_only": len(prompt) % 2 == 0}
                    engine.stepper.join((prompt,), prompt, {**GREEDY, "max_new_tokens": 4, **given}, seed=0)
                    collector.step()
                collector.all()
                for prompt in requested:
                    [plain], [answer] = collector.answers[prompt], collector.answers[(prompt,)]
                    is_alone = len(prompt) % 2 == 0
                    self.assertEqual(answer["generated_text"], "" if is_alone else plain["generated_text"])
                    self.assertEqual(collector.tokens[(prompt,)], 0 if is_alone else 4)
                    self.assert_prompt_is_scored(engine, prompt, answer["details"], top=2)

    def test_only_prompts_that_are_scored_have_the_scores_of_all_positions(self) -> None:
        engine, kept = decoders.over(decoders.model("Llama")), list[tuple[int, int]]()

        def run(*given: Any) -> Any:
            with patch.object(engine.pipe.model, "forward", wraps=engine.pipe.model.forward) as forward:
                found = run_alone(*given)
            kept.append((given[1].shape[1], forward.call_args.kwargs.get("logits_to_keep", 0)))
            return found

        with patch.object(forwards.Forwards, "_run_forward", autospec=True, side_effect=run):
            collector = ProgressCollector(engine.stepper)
            for key, given in (("plain", {}), ("scored", {"prompt_logprobs": 0}), ("beside", {"logprobs": 2})):
                engine.stepper.join(key, "hello", {**GREEDY, "max_new_tokens": 3, **given}, seed=0)
            collector.all()
        self.assertEqual(sorted({shape for shape in kept if shape[0] > 1}), [(5, 0), (5, 1)])
        self.assertEqual({keep for width, keep in kept if width == 1}, {1})
        self.assertEqual(collector.answers["scored"][0]["details"].keys() & {"tokens", "top_tokens"}, set())

    def test_a_prompt_whose_scores_are_not_all_there_fails_where_it_is_cut(self) -> None:
        engine, given = decoders.engine("Llama"), {**GREEDY, "prompt_logprobs": 0, "max_new_tokens": 5}
        with patch.object(pipeline_stepper, "PIECE", 16):
            engine.stepper.join("long", "abc" * 10, given, seed=0)
            engine.stepper.step()
            self.assertIsInstance(engine.stepper.finish("long").answer, TimedOut)
            engine.stepper.join("long", "abc" * 10, given, seed=0)
            for _ in range(2):
                engine.stepper.step()
            [answer] = engine.stepper.finish("long").answer
        self.assert_prompt_is_scored(engine, "abc" * 10, answer["details"], top=0)

    def test_the_tokens_of_a_prompt_start_where_its_own_text_has_them(self) -> None:
        """The tokenizer composes characters, and leaves blanks out of its offsets."""
        engine = decoders.over(decoders.model("Llama"))
        known = engine.pipe.tokenizer.backend_tokenizer
        known.normalizer, known.post_processor = normalizers.NFC(), processors.ByteLevel(trim_offsets=True)
        given = {**GREEDY, "prompt_logprobs": 0, "prompt_only": True, "max_new_tokens": 1}
        chat = [{"role": "user", "content": "hello"}]
        for prompt, expected in (
            ("e\u0301 b\U0001f600", [0, 0, 2, 3, 4, 4, 4, 4]), ("a  b", [0, 1, 2, 3]),
            ("\u1112\u1161\u11abb", [0, 0, 0, 3]), (chat, [None] * len("user: hello\n")),
        ):  # fmt: skip
            for prefix in ("", "to: "):
                with self.subTest(prompt, prefix=prefix), patch.dict(engine.steps.defaults[0], prefix=prefix):
                    engine.stepper.join("one", prompt, given, seed=0)
                    [answer] = ProgressCollector(engine.stepper).all().answers["one"]
                    starts = [token.get("start") for token in answer["details"]["prefill"]]
                    self.assertEqual(starts, ([] if prompt is chat else [0] * len(prefix)) + expected)
        self.assertEqual(logprobs.convert_offsets_to_starts("e\u0301  is", [(0, 1), (4, 6), (0, 0)]), [0, 2, 6])

    def test_a_prompt_of_tokens_is_answered_and_scored_as_its_text(self) -> None:
        engine = decoders.engine("Llama")
        text = "hé 🙂 llo"
        tokens = engine.pipe.tokenizer(text)["input_ids"]
        given = {**GREEDY, "return_full_text": True, "prompt_logprobs": 1, "max_new_tokens": 5}
        for key, prompt in (("text", text), ("tokens", {TOKENS: tokens})):
            engine.stepper.join(key, prompt, given, seed=0)
        collector = ProgressCollector(engine.stepper).all()
        self.assertEqual(collector.answers["tokens"], collector.answers["text"])
        self.assertEqual(collector.texts["tokens"], collector.texts["text"])

    def test_tokens_that_the_model_does_not_have_are_refused(self) -> None:
        engine = decoders.engine("Llama")
        known = engine.pipe.model.config.vocab_size
        for prompt, more, expected in (
            ({TOKENS: [1, known]}, {}, f"the token {known}; those of this model end at {known - 1}."),
            ({TOKENS: [1]}, {"tools": [{}]}, "is for chats"),
        ):  # fmt: skip
            with self.assertRaises(InvalidInput) as refused:
                engine.stepper.join("refused", prompt, {**GREEDY, **more}, seed=0)
            self.assertIn(expected, refused.exception.message)
        [answer] = engine.predict([{TOKENS: [1]}], GREEDY)
        self.assertIn("takes no tokens, as it does not generate by the step", answer.message)

    def test_a_prompt_with_more_scores_than_are_kept_is_refused_as_it_joins(self) -> None:
        engine, given = decoders.engine("Llama"), {**GREEDY, "prompt_logprobs": 2, "max_new_tokens": 1}
        numbers = 5 * logprobs.count_numbers_per_token(2)
        with patch.object(lengths, "MOST_ANSWERED", numbers):
            engine.stepper.join("kept", "hello", given, seed=0)
            with self.assertRaises(InvalidInput) as refused:
                engine.stepper.join("refused", "hello!", given, seed=0)
        self.assertEqual(refused.exception.field, "parameters.prompt_logprobs")
        self.assertIn("at most 5 tokens of a prompt are scored with 2 others", refused.exception.message)
        [answer] = ProgressCollector(engine.stepper).all().answers["kept"]
        scores = [answer["details"][name] for name in ("prefill", "prefill_top_tokens")]
        without = 5 * 2 - 3  # the others of the first token, less what the lists count
        self.assertEqual(json_values.estimate_size_in_numbers(scores), numbers - without)

    def test_a_prompt_alone_may_have_all_tokens_of_the_context_and_of_the_cache(self) -> None:
        engine = decoders.over(decoders.model("GPT2"))
        for most in (decoders.POSITIONS, 100):
            for is_alone in (True, False):
                given = {**GREEDY, "max_new_tokens": 1, "prompt_only": is_alone, "prompt_logprobs": 0}
                fits = most if is_alone else most - 1
                with self.subTest(most, is_alone=is_alone), patch.object(engine.stepper, "capacity", most):
                    engine.stepper.join("fits", "a" * fits, given, seed=0)
                    [answer] = ProgressCollector(engine.stepper).all().answers["fits"]
                    self.assertEqual(len(answer["details"]["prefill"]), fits)
                    with self.assertRaisesRegex(InvalidInput, f"limit of {fits} tokens"):
                        engine.stepper.join("too long", "a" * (fits + 1), given, seed=0)

    def test_prompts_are_scored_by_the_step_only(self) -> None:
        for name in ("prompt_logprobs", "prompt_only"):
            with self.assertRaises(InvalidInput) as refused:
                alone(decoders.engine("Mamba"), "hello", **{name: 1})
            self.assertEqual(refused.exception.field, f"parameters.{name}")

    def assert_prompt_is_scored(self, engine: Any, prompt: str, details: Any, *, top: int) -> None:
        ids = engine.pipe.tokenizer(prompt)["input_ids"]
        with torch.inference_mode():
            scores = engine.pipe.model(torch.tensor([ids])).logits[0].float().log_softmax(-1)
        self.assertEqual([token["id"] for token in details["prefill"]], ids)
        self.assertEqual((details["prefill"][0]["logprob"], details["prefill_top_tokens"][0]), (None, []))
        behind = zip(details["prefill"][1:], details["prefill_top_tokens"][1:], scores, strict=False)
        for token, best, expected in behind:
            self.assertAlmostEqual(token["logprob"], float(expected[token["id"]]), places=3)
            found = torch.tensor([each["logprob"] for each in best])
            self.assertTrue(torch.allclose(found, expected.topk(top).values, atol=1e-3))

    def test_what_the_tokenizer_says_of_an_input_is_its_sender_s_and_what_a_bug_says_is_not(self) -> None:
        engine = decoders.engine("Llama")
        with self.assertRaises(InvalidInput) as caught:
            engine.stepper.join("k", "hello \ud800", GREEDY, seed=0)
        self.assertIn("TextEncodeInput must be", caught.exception.message)
        bug = patch.object(engine.pipe, "preprocess", side_effect=ValueError("a secret"))
        with bug, self.assertRaises(InvalidInput) as caught:
            engine.stepper.join("k", "hello", GREEDY, seed=0)
        self.assertEqual((caught.exception.message, caught.exception.raised), (UNREADABLE, "ValueError: a secret"))

    def test_processors_of_scores_see_the_row_alone(self) -> None:
        for parameters in (
            {"repetition_penalty": 3.0}, {"no_repeat_ngram_size": 2}, {"max_length": 60},
            {"frequency_penalty": 2.0}, {"presence_penalty": 2.0, "logit_bias": {"100": 50.5}}, {"min_new_tokens": 20},
            {"grammar": {"type": "json", "value": {"type": "array", "items": {"type": "integer"}}}},
        ):  # fmt: skip
            engine, collector = decoders.engine("GPT2"), ProgressCollector(decoders.engine("GPT2").stepper)
            requests = {key: {**GREEDY, "max_new_tokens": 20, **parameters} for key in prompts(random.Random(1), 5)}
            for prompt, given in requests.items():
                engine.stepper.join(prompt, prompt, given, seed=0)
            collector.all()
            for prompt, given in requests.items():
                self.assertEqual(collector.answers[prompt], alone(engine, prompt, **given))

    def test_the_model_s_own_settings_hold(self) -> None:
        made = decoders.model("Llama")
        made.generation_config.update(max_new_tokens=7, repetition_penalty=2.0, eos_token_id=[256, 97])
        engine = decoders.over(made)
        collector = ProgressCollector(engine.stepper)
        texts = ("b", "hello", "hello you")
        for prompt in texts:
            engine.stepper.join(prompt, prompt, GREEDY, seed=0)
        collector.all()
        for prompt in texts:
            self.assertEqual(collector.answers[prompt], alone(engine, prompt))

    def test_the_cells_are_given_back_when_nobody_is_in(self) -> None:
        stepper = decoders.engine("Llama").stepper
        stepper.join("a", "a", {**GREEDY, "max_new_tokens": 3}, seed=0)
        ProgressCollector(stepper).all()
        self.assertEqual((stepper.cells.layers, len(stepper), stepper.room), ([], 0, stepper.capacity))


class SamplingTests(StepperTestCase):
    PARAMETERS: tuple[dict[str, Any], ...] = (
        {}, {"temperature": 1.5}, {"top_k": 5}, {"top_p": 0.7, "temperature": 2.0}, {"typical_p": 0.5},
        {"top_k": 30, "repetition_penalty": 1.5}, {"temperature": 2.0, "top_k": 7}, {"min_p": 0.2},
        {"frequency_penalty": 1.5, "presence_penalty": -0.5}, {"logit_bias": {"97": 9, "98": -100}},
        {"min_new_tokens": 12, "temperature": 3.0}, {"grammar": {"type": "regex", "value": "[0-9a-f ]{4,40}"}},
    )  # fmt: skip

    def test_a_seed_gives_the_answer_that_generate_has_with_it_alone_and_in_company(self) -> None:
        engine = decoders.engine("Llama")
        collector = ProgressCollector(engine.stepper)
        requests = [
            (prompt, {"do_sample": True, "return_full_text": False, "max_new_tokens": 12, "seed": seed, **parameters})
            for seed, parameters in enumerate([*self.PARAMETERS, *self.PARAMETERS])
            for prompt in ("a", "hello you")
        ]
        for key, (prompt, parameters) in enumerate(requests):
            engine.stepper.join(key, prompt, parameters, seed=99)
            collector.step()
        collector.all()
        for key, (prompt, parameters) in enumerate(requests):
            self.assertEqual(collector.answers[key], alone(engine, prompt, **parameters), parameters)
        self.assert_texts_match_answers(collector)
        self.assertGreater(len({text(answer) for answer in collector.answers.values()}), 20)

    def test_without_one_of_its_own_a_row_samples_from_the_seed_that_it_is_given(self) -> None:
        engine = decoders.engine("Llama")
        parameters = {"do_sample": True, "max_new_tokens": 12}
        collector = ProgressCollector(engine.stepper)
        for key, seed in enumerate((5, 5, 6)):
            engine.stepper.join(key, "hello", parameters, seed=seed)
        answers = collector.all().answers
        self.assertEqual(answers[0], answers[1])
        self.assertNotEqual(answers[0], answers[2])
        self.assertEqual(answers[0], engine.predict(["hello"], {**parameters, "seed": 5})[0])


class EndTests(StepperTestCase):
    def test_a_row_that_is_ended_before_its_time_answers_with_what_it_has(self) -> None:
        engine = decoders.engine("Llama")
        given = {**GREEDY, "details": True, "max_new_tokens": 30}
        collector = ProgressCollector(engine.stepper)
        for key in ("begun", "beside"):
            engine.stepper.join(key, "hello", given, seed=0)
        for _ in range(5):
            collector.step()
        engine.stepper.join("new", "hello", given, seed=0)
        for key in ("begun", "new"):
            tokens = collector.tokens.get(key, 0)
            shown = alone(engine, "hello", **{**given, "max_new_tokens": tokens})[0] if tokens else {}
            details = {"finish_reason": "length", "prompt_tokens": 5, "generated_tokens": tokens}
            expected = [{"generated_text": shown.get("generated_text", ""), "details": details}]
            self.assertEqual(engine.stepper.finish(key).answer, expected)
        self.assertIs(engine.stepper.finish("nobody").answer, OPEN)
        self.assertEqual(collector.all().answers, {"beside": alone(engine, "hello", **given)})

    def test_a_text_ends_before_the_first_stop_string_as_in_a_static_batch(self) -> None:
        engine = decoders.engine("Llama")
        whole = text(alone(engine, "hello", max_new_tokens=30))
        pieces = list(re.findall(r"[ -~]{1,3}", whole))
        self.assertGreater(len(pieces), 3)
        for piece in pieces[:4]:
            stops = [piece, "never there"]
            given = {**GREEDY, "max_new_tokens": 30, "stop": stops, "details": True}
            collector = ProgressCollector(engine.stepper)
            engine.stepper.join("stopped", "hello", given, seed=0)
            engine.stepper.join("beside", "hello you", {**GREEDY, "max_new_tokens": 30}, seed=0)
            found = collector.all().answers["stopped"]
            self.assertEqual(text(found), whole[: whole.index(stops[0])])
            self.assertEqual(found[0]["details"]["finish_reason"], "stop_sequence")
            self.assertEqual(found[0]["details"]["generated_tokens"], collector.tokens["stopped"])
            self.assertEqual(found, alone(engine, "hello", **given))
            self.assertEqual([found, found], engine.predict(["hello", "hello"], given))
            self.assert_texts_match_answers(collector)

    def over(self, tokenizer: Any, *allowed: str) -> Any:
        """An engine whose model generates these tokens alone."""
        tokens = tokenizer.convert_tokens_to_ids(list(allowed))
        self.assertNotIn(tokenizer.unk_token_id, tokens)
        with patch.object(tiny_models, "byte_tokenizer", return_value=tokenizer):
            made = decoders.model("Llama")
            others = set(range(len(tokenizer))) - set(tokens)
            made.generation_config.update(suppress_tokens=sorted(others))
            return decoders.over(made)

    def test_a_text_ends_at_a_special_token_that_the_request_names(self) -> None:
        mark = "<|im_end|>"
        engine = self.over(tiny_models.byte_tokenizer(mark), "a", "b", mark)
        number = engine.pipe.tokenizer.convert_tokens_to_ids(mark)
        drawn = {"do_sample": True, "max_new_tokens": 30, "seed": 3, "details": True}
        given = {**drawn, "return_full_text": False}
        [tokens] = engine.predict(["hello"], {**drawn, "return_tensors": True})[0]
        tokens = tokens["generated_token_ids"][len("hello") :]
        count = tokens.index(number) + 1
        self.assertLess(count, 30)
        for stop in ([mark], ["never there", f"{mark}\n"]):
            collector = ProgressCollector(engine.stepper)
            engine.stepper.join("stopped", "hello", {**given, "stop": stop}, seed=0)
            engine.stepper.join("beside", "hello", given, seed=0)
            collector.all()
            for [answer] in (collector.answers["stopped"], alone(engine, "hello", **{**given, "stop": stop})):
                self.assertEqual(answer["generated_text"], engine.pipe.tokenizer.decode(tokens[: count - 1]))
                self.assertEqual(answer["details"]["finish_reason"], "stop_sequence")
                self.assertEqual(answer["details"]["generated_tokens"], count)
            self.assertEqual(collector.answers["beside"][0]["details"]["generated_tokens"], 30)
            self.assert_texts_match_answers(collector)

    def test_a_stop_that_no_text_can_show_is_refused(self) -> None:
        engine = self.over(tiny_models.byte_tokenizer("<|im_end|>"), "a", "b")
        given = {**GREEDY, "max_new_tokens": 3, "stop": ["a<|im_end|>b"]}
        with self.assertRaisesRegex(InvalidInput, r"'<\|im_end\|>' alone"):
            engine.stepper.join("stopped", "hello", given, seed=0)
        self.assertIsInstance(alone(engine, "hello", **given), InvalidInput)

    def test_the_blank_before_the_first_word_is_kept_behind_a_prompt(self) -> None:
        engine = self.over(with_bytes(), "▁Hello", "▁done")
        new, chat = {"max_new_tokens": 2, "stop": ["never"]}, [{"role": "user", "content": "ab"}]
        begun = [*chat, {"role": "assistant", "content": "ab"}]
        for given in (new, {**new, "details": True, "seed": 1}, {"max_new_tokens": 2}):
            requests = {key: {**GREEDY, **given, "return_full_text": key == "whole"} for key in ("new", "whole")}
            collector = ProgressCollector(engine.stepper)
            for key, parameters in requests.items():
                engine.stepper.join(key, "ab", parameters, seed=0)
            for key, value in (("message", chat), ("begun", begun)):
                engine.stepper.join(key, value, requests["new"], seed=0)
            collector.all()
            self.assertRegex(text(collector.answers["new"]), "^ (Hello|done) (Hello|done)$")
            self.assertEqual(text(collector.answers["whole"]), "ab" + text(collector.answers["new"]))
            self.assertRegex(text(collector.answers["message"]), "^(Hello|done) (Hello|done)$")
            self.assertRegex(text(collector.answers["begun"]), "^ (Hello|done) (Hello|done)$")
            for key, parameters in requests.items():
                self.assertEqual(collector.answers[key], alone(engine, "ab", **parameters))
            self.assertEqual(collector.answers["message"], alone(engine, chat, **requests["new"]))
            self.assertEqual(collector.texts["whole"], text(collector.answers["new"]))
            self.assertEqual(collector.texts["message"], text(collector.answers["message"]))
            self.assertEqual([collector.answers["new"]] * 2, engine.predict(["ab", "ab"], requests["new"]))

    def test_a_stop_may_begin_with_the_blank_behind_a_prompt(self) -> None:
        engine = self.over(with_bytes(), "▁Hello")
        given = {**GREEDY, "max_new_tokens": 3, "return_full_text": False, "stop": [" Hello"], "details": True}
        collector = ProgressCollector(engine.stepper)
        engine.stepper.join("stopped", "ab", given, seed=0)
        for [answer] in (collector.all().answers["stopped"], alone(engine, "ab", **given)):
            self.assertEqual((answer["generated_text"], answer["details"]["generated_tokens"]), ("", 1))

    def test_a_template_of_answers_leaves_no_token_in_them_that_was_not_streamed(self) -> None:
        tokenizer = tiny_models.byte_tokenizer()
        tokenizer.response_template = {"fields": {}}
        with patch.object(tiny_models, "byte_tokenizer", return_value=tokenizer):
            engine = decoders.over(decoders.model("Llama"))
        collector = ProgressCollector(engine.stepper)
        drawn = {"do_sample": True, "temperature": 99.0, "top_k": 257, "max_new_tokens": 40, **WITH_DETAILS}
        for seed in range(16):
            engine.stepper.join(seed, [{"role": "user", "content": "a"}], drawn, seed=seed)
        answers = collector.all().answers.values()
        self.assertIn("eos_token", {answer[0]["details"]["finish_reason"] for answer in answers})
        self.assert_texts_match_answers(collector)

    def test_details_say_why_it_ended_and_count(self) -> None:
        made = decoders.model("Llama")
        whole = decoders.over(made).predict(["hello"], {**GREEDY, "max_new_tokens": 8})[0]
        end = text(whole).encode()[-1:]
        engine = decoders.over(made)
        ends = engine.pipe.tokenizer.encode(end.decode(errors="ignore") or "a")[0]
        made.generation_config.eos_token_id = [256, ends]
        for limit in (1, 8, 30):
            given = {**GREEDY, "max_new_tokens": limit, "details": True}
            collector = ProgressCollector(engine.stepper)
            engine.stepper.join(1, "hello", given, seed=0)
            found = collector.all().answers[1]
            self.assertEqual(found, alone(engine, "hello", **given))
            self.assertEqual(found[0]["details"]["prompt_tokens"], 5)
            self.assertEqual(found[0]["details"]["generated_tokens"], collector.tokens[1])
            self.assertIn(found[0]["details"]["finish_reason"], ("length", "eos_token"))


class RoomTests(StepperTestCase):
    def test_what_never_fits_is_refused_with_the_figure(self) -> None:
        engine = decoders.over(decoders.model("Llama"), max_batch_tokens=64)
        for prompt, figure in (("a" * 256, 255), ("a" * 64, 63)):
            with self.assertRaises(InvalidInput) as caught:
                engine.stepper.join("k", prompt, {**GREEDY, "max_new_tokens": 1}, seed=0)
            self.assertIn(f"the configured limit of {figure} tokens", caught.exception.message)
            self.assertIn(f"resulted in {len(prompt)} tokens.", caught.exception.message)
            self.assertEqual(caught.exception.code, "context_length_exceeded")
        for bad in ("", [], 3, [{"role": "user"}]):
            with self.assertRaises(InvalidInput):
                engine.stepper.join("k", bad, GREEDY, seed=0)
        self.assertEqual(len(engine.stepper), 0)

    def test_an_answer_has_what_the_prompt_leaves_of_the_context(self) -> None:
        """The context is that of the model, or the cache where that is less."""
        for kind, spec, context in (("Llama", {}, 256), ("GPT2", {}, 256), ("Llama", {"max_batch_tokens": 64}, 64)):
            engine = decoders.over(decoders.model(kind), **spec)
            engine.pipe.model.generation_config.eos_token_id = NEVER
            for length in (context - 1, context - 9, context // 2 + 1):
                for limit in ({"max_new_tokens": 4096}, {"max_new_tokens": 2**62}, {}):
                    with self.subTest(kind=kind, context=context, length=length, limit=limit):
                        engine.stepper.join("k", "a" * length, {**GREEDY, "details": True, **limit}, seed=0)
                        [answer] = ProgressCollector(engine.stepper).all().answers["k"]
                        self.assertEqual(answer["details"]["finish_reason"], "length")
                        self.assertEqual(answer["details"]["generated_tokens"], context - length)

    def test_rows_wait_in_order_until_there_is_room(self) -> None:
        engine = decoders.over(decoders.model("Llama"), max_batch_tokens=64)
        stepper = engine.stepper
        collector, begun = ProgressCollector(stepper), []
        for key in range(8):
            stepper.join(key, "abcd", {**GREEDY, "max_new_tokens": 8 + key}, seed=0)
        self.assertEqual((len(stepper), stepper.room), (8, 0))
        while len(stepper):
            begun += [progress.key for progress in collector.step() if progress.key not in begun]
            self.assertLessEqual(len(stepper.rows), 5)
        self.assertEqual(begun, sorted(begun))
        for key in range(8):
            self.assertEqual(collector.answers[key], alone(engine, "abcd", max_new_tokens=8 + key))

    def test_room_is_what_no_row_will_take(self) -> None:
        stepper = decoders.over(decoders.model("Llama"), max_batch_tokens=100).stepper
        self.assertEqual((stepper.capacity, stepper.room), (100, 100))
        stepper.join("a", "abcd", {**GREEDY, "max_new_tokens": 16}, seed=0)
        self.assertEqual(stepper.room, 80)
        stepper.step()
        stepper.join("b", "ab", {**GREEDY, "max_new_tokens": 2}, seed=0)
        self.assertEqual(stepper.room, 60)
        room = Room(rows=8, tokens=stepper.room, longest=stepper.tokens_per_row, others=len(stepper))
        stepper.join("c", "abcd", {**GREEDY, "max_new_tokens": 26}, seed=0)
        self.assertEqual((stepper.room, room.subtract_rows(1, 30).tokens), (10, 10))
        for key in ("c", "b", "a", "nobody"):
            stepper.leave(key)
        self.assertEqual((stepper.room, stepper.step()), (100, []))


class TrialTests(StepperTestCase):
    def test_what_cannot_be_stepped_keeps_static_batches_and_says_so(self) -> None:
        engine = decoders.engine("Mamba")
        self.assertIsNone(engine.stepper)
        self.assertIn("nswers wait for the longest of their batch", engine.note)
        self.assertEqual(len(engine.predict(["a", "abc"], {**GREEDY, "max_new_tokens": 3})), 2)

    def test_a_model_in_bfloat16_is_padded_and_stepped_though_its_scores_are_of_float32(self) -> None:
        for kind in ("GPT2", "OPT"):  # of which padding changes the last digits
            engine = decoders.over(decoders.model(kind).bfloat16())
            self.assertEqual((engine.note, engine.stepper is None), ("", False), kind)

    def test_a_model_that_searches_with_beams_is_not_stepped(self) -> None:
        made = decoders.model("Llama")
        made.generation_config.num_beams = 2
        engine = decoders.over(made)
        self.assertIsNone(engine.stepper)
        self.assertIn("it generates by beam_sample, 2 at once", engine.note)
        requested = {"max_new_tokens": 2, "details": True, "logprobs": 0}
        for more in ({}, {"num_beams": 3}):
            with (
                self.subTest(more),
                self.assertRaisesRegex(InvalidInput, "send num_beams: 1 if") as refused,
            ):
                alone(engine, "a", **requested, **more)
            self.assertEqual(refused.exception.field, "parameters.logprobs")
        [answer] = alone(engine, "a", **requested, num_beams=1)
        self.assertEqual(len(answer["details"]["tokens"]), 2)

    def test_a_catalog_that_allows_beams_leaves_static_batches(self) -> None:
        from inference.catalog.parameters import ParameterSpec

        allowed = {"num_beams": ParameterSpec(type="integer", min=1, max=4)}
        self.assertIn("num_beams", decoders.over(decoders.model("Llama"), parameters=allowed).note)

    def test_positions_that_depend_on_neighbours_are_not_stepped(self) -> None:
        rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
        self.assertIn("positions", decoders.over(decoders.model("Llama", rope_parameters=rope)).note)

    def test_a_model_is_not_stepped_if_its_answers_would_change(self) -> None:
        made = decoders.model("Llama")
        forward = made.forward

        def shifted(*arguments: Any, position_ids: Any = None, **named: Any) -> Any:
            if position_ids is not None and len(position_ids) > 1:
                position_ids = position_ids + position_ids.max()
                named["attention_mask"] = None
            return forward(*arguments, position_ids=position_ids, **named)

        with patch.object(made, "forward", shifted):
            self.assertIsNone(decoders.over(made).stepper)
