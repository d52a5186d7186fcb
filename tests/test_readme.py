"""What README and the pages name exists: variables, commands, versions, addresses."""

import re
import subprocess
from pathlib import Path

from django.conf import settings
from django.core.management import get_commands
from django.test import SimpleTestCase, tag
from django.urls import resolve

from api.errors.problems import answer_not_found
from inference.catalog import reader

ROOT = Path(settings.BASE_DIR)
README = (ROOT / "README.md").read_text()
MARKDOWN = ("*.md", "docs/*.md", "docs/[!._]*/**/*.md")  # not docs/.venv and docs/_site
PAGES = "\n".join(page.read_text() for pattern in MARKDOWN for page in ROOT.glob(pattern))
SETTINGS = (ROOT / "docs" / "reference" / "settings.md").read_text()
MODULE = re.compile(r"\b(?:tests|benchmarks)(?:\.(?!md\b|json\b|svg\b)\w+)+")
READS = re.compile(r"""(?:os\.environ(?:\.get\(|\[)|env\.[a-z_]+\()\s*"([A-Z_]+)\"""")
NOT_SETTINGS = re.compile(r"INFERENCE_|CUDA_VISIBLE_DEVICES|TOKENIZERS_|PYTORCH_|OMP_NUM_|FAILPOINT|HF_")


def variables_read() -> set[str]:
    """The environment variables that the service's own code reads."""
    sources = (
        file.read_text()
        for folder in ("project", "inference", "api", "tools", "batch_inference_client")
        for file in ROOT.glob(f"{folder}/**/*.py")
    )
    return {name for source in sources for name in READS.findall(source) if not NOT_SETTINGS.match(name)}


class TestReadme(SimpleTestCase):
    def test_the_table_has_the_variables_that_the_code_reads_and_no_others(self) -> None:
        rows = re.findall(r"^\| (`[^|]*`) \|", SETTINGS, re.MULTILINE)
        self.assertEqual({name for row in rows for name in re.findall(r"`([A-Z_]+)`", row)}, variables_read())

    def test_the_make_targets_exist(self) -> None:
        targets = set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))
        self.assertLessEqual(set(re.findall(r"`make ([a-z-]+)", PAGES)), targets)

    def test_the_management_commands_exist(self) -> None:
        self.assertLessEqual(set(re.findall(r"manage\.py ([a-z_]+)", PAGES)), set(get_commands()))

    def test_the_files_and_the_tests_exist(self) -> None:
        text = PAGES + (ROOT / "Makefile").read_text()
        named = re.findall(r"\b(?:project|inference|api|tests|benchmarks)/(?!var|\.venv)[\w./-]*\w", text)
        named += [module.replace(".", "/") for module in re.findall(MODULE, text)]
        missing = {name for name in named if not ((ROOT / name).exists() or (ROOT / f"{name}.py").exists())}
        self.assertEqual(missing, set())

    def test_a_key_in_a_sample_can_be_sent_as_it_is_printed(self) -> None:
        """A header holds no "…"; and where no keys are needed any word will do that looks like none of ours."""
        keys = r"""(?:Bearer |(?:api_key|apiKey|token)(?:=|: )|API_KEY=|Client\("http[^"]*", )"?([^\s"')]+)"""
        samples = "".join(re.findall(r"^```.*?^```", PAGES, re.MULTILINE | re.DOTALL))
        self.assertEqual({key.strip("$.") for key in re.findall(keys, samples)}, {"KEY"})

    @tag("pinned")
    def test_the_versions_are_those_of_the_requirements(self) -> None:
        pins = dict(re.findall(r"^([A-Za-z-]+)==([\d.]+)", (ROOT / "requirements.txt").read_text(), re.MULTILINE))
        for name, package in (("Django", "Django"), ("Celery", "celery"), ("torch", "torch"), ("transformers",) * 2):
            self.assertIn(f"{name} {pins[package]}", README.replace("\n", " "))

    def test_the_addresses_in_its_curl_lines_are_served(self) -> None:
        paths = re.findall(r"curl '?http://127\.0\.0\.1:8000(/[^ ?'\n]*)", README)
        self.assertGreaterEqual(len(paths), 3)
        for path in paths:
            self.assertIsNot(resolve(path).func, answer_not_found, path)

    def test_its_table_for_models_toml_is_a_model(self) -> None:
        (table,) = re.findall(r"```toml\n(.*?)```", README, re.DOTALL)
        self.assertEqual([spec.task for spec in reader.parse_catalog(table).values()], ["text-classification"])

    def test_the_first_screen_has_the_two_commands_and_a_curl(self) -> None:
        first_screen = "\n".join(README.splitlines()[:35])
        for part in ("make run", "make test", "curl http://127.0.0.1:8000/v1/models/embeddings", "384 numbers]"):
            self.assertIn(part, first_screen)


class TestMakefile(SimpleTestCase):
    def make(self, *arguments: str) -> str:
        installed = ("-o", ".venv/.installed")  # is not looked at, whoever runs the tests
        command = ("make", "--no-print-directory", *installed, *arguments)
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout

    def test_help_lists_every_target_with_a_word(self) -> None:
        listed = self.make("help")
        for target in re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE):
            self.assertRegex(listed, rf"make {target} +\S")

    def test_run_takes_a_port(self) -> None:
        self.assertIn("PORT=8001", self.make("run", "PORT=8001", "PY=env #").splitlines())
        self.assertIn("DEVELOPMENT=1", self.make("run", "PY=env #").splitlines())
