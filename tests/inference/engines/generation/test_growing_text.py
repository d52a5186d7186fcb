"""A text that is told as it grows is in the end what the tokenizer makes of all tokens."""

import random
from collections.abc import Sequence
from typing import Any
from unittest import TestCase

from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from inference.engines.generation.rows.growing_text import Decoder, GrowingText
from tests import tiny_models
from tests.properties import QUICK

TEXT = "Hello, wörld 👩‍👩‍👧 \n\n done. €5"


def with_bytes() -> Any:
    """Words that begin with a blank, and bytes for what is no word: as Llama's first tokenizers."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁Hello", "▁done", "a", "b", "!"]
    core = Tokenizer(models.BPE({word: index for index, word in enumerate(words)}, [], byte_fallback=True))
    core.decoder = decoders.Sequence([
        decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)
    ])  # fmt: skip
    return PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


def with_pieces() -> Any:
    """Words and their ends, with blanks before full stops taken back: as BERT's."""
    words = ["[UNK]", "[SEP]", "do", "n't", "you", "##s", ".", ",", "'", "it"]
    core = Tokenizer(models.WordPiece({word: index for index, word in enumerate(words)}, unk_token="[UNK]"))
    core.decoder = decoders.WordPiece(cleanup=False)
    return PreTrainedTokenizerFast(
        tokenizer_object=core, unk_token="[UNK]", eos_token="[SEP]", clean_up_tokenization_spaces=True
    )


TOKENIZERS = {"bytes": tiny_models.byte_tokenizer(), "pieces and bytes": with_bytes(), "word pieces": with_pieces()}
DECODERS = {name: Decoder(tokenizer) for name, tokenizer in TOKENIZERS.items()}


def grown(decoder: Decoder, tokens: list[int], stops: list[str] = []) -> tuple[list[str], GrowingText]:  # noqa: B006
    text = GrowingText(decoder, stops)
    news = []
    for token in tokens:
        text.add_token(token)
        news.append(text.take_new_text())
        if text.stop is not None:
            break
    text.end_text()
    return [*news, text.take_new_text(last=True)], text


class GrowingTextTests(TestCase):
    @QUICK
    @given(st.sampled_from(sorted(TOKENIZERS)), st.randoms(use_true_random=False), st.integers(0, 40))
    def test_the_pieces_are_the_whole_text(self, name: str, chosen: random.Random, count: int) -> None:
        tokens = chosen.choices(range(len(TOKENIZERS[name])), k=count)
        pieces, text = grown(DECODERS[name], tokens)
        self.assertEqual("".join(pieces), TOKENIZERS[name].decode(tokens, skip_special_tokens=True))
        self.assertEqual("".join(pieces), text.value)

    def test_no_character_is_returned_before_it_is_whole(self) -> None:
        for name in ("bytes", "pieces and bytes"):
            tokens = self.bytes_of(name, TEXT)
            pieces, _ = grown(DECODERS[name], tokens)
            self.assertEqual("".join(pieces), TEXT)
            for piece in pieces:
                self.assertNotIn("\ufffd", piece)
        self.assertGreater(sum(map(bool, grown(DECODERS["bytes"], self.bytes_of("bytes", TEXT))[0])), 20)

    def test_half_a_character_behind_a_prompt_that_ends_in_bytes_is_no_longer_for_them(self) -> None:
        decoder, tokenizer = DECODERS["pieces and bytes"], TOKENIZERS["pieces and bytes"]
        hello = tokenizer.convert_tokens_to_ids("▁Hello")
        context = decoder.find_context([hello, *self.bytes_of("pieces and bytes", "🙂")])
        half = self.bytes_of("pieces and bytes", "🙂")[:2]
        text = GrowingText(decoder, [], context)
        for token in half:
            text.add_token(token)
        text.end_text()
        self.assertEqual((text.value, decoder.decode_continuation(context, half)), ("\ufffd" * 2, "\ufffd" * 2))
        self.assertEqual(decoder.decode_continuation(context, [hello]), " Hello")

    def bytes_of(self, name: str, text: str) -> list[int]:
        if name == "bytes":
            return list(TOKENIZERS[name].encode(text))
        return [TOKENIZERS[name].convert_tokens_to_ids(f"<0x{byte:02X}>") for byte in text.encode()]

    def test_blanks_before_words_are_kept_and_the_first_is_none(self) -> None:
        tokens = TOKENIZERS["pieces and bytes"].convert_tokens_to_ids(["▁Hello", "</s>", "▁", "▁done", "a", "▁Hello"])
        pieces, _ = grown(DECODERS["pieces and bytes"], tokens)
        self.assertEqual("".join(pieces), "Hello  donea Hello")

    def test_what_may_begin_a_stop_string_is_held_back(self) -> None:
        text = GrowingText(DECODERS["bytes"], ["\n\nUser:", "###"])
        said = []
        for token in self.bytes_of("bytes", "a\n\nUs #x\n\nUser: b"):
            text.add_token(token)
            said.append(text.take_new_text())
            if text.stop is not None:
                break
        self.assertEqual(said, ["a", "", "", "", "", "\n\nUs ", "", "#x", *[""] * 7])
        self.assertEqual((text.final_text, text.take_new_text(last=True)), ("a\n\nUs #x", ""))

    @QUICK
    @given(st.text("ab\n", max_size=30), st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=3))
    def test_a_text_ends_before_its_first_stop_string(self, whole: str, stops: list[str]) -> None:
        pieces, text = grown(DECODERS["bytes"], self.bytes_of("bytes", whole), stops)
        ends = [whole.index(stop) + len(stop) for stop in stops if stop in whole]
        expected = whole
        if ends:  # the stop string that is whole first; of several, the one that begins first
            read = whole[: min(ends)]
            expected = read[: min(read.index(stop) for stop in stops if stop in read)]
        self.assertEqual("".join(pieces), expected)
        self.assertEqual(text.stop is not None, bool(ends))


class TokenTests(TestCase):
    @QUICK
    @given(st.randoms(use_true_random=False), st.integers(0, 80))
    def test_tokens_start_where_their_texts_are(self, chosen: random.Random, count: int) -> None:
        decoder, tokenizer = DECODERS["bytes"], TOKENIZERS["bytes"]
        tokens = chosen.choices([*range(len(tokenizer)), *tokenizer.encode("漢🙂é")], k=count)
        text, starts = decoder(tokens), decoder.find_token_starts(tokens)
        self.assertEqual(starts, sorted(starts))
        for token, start in zip(tokens, starts, strict=True):
            alone = decoder([token])
            if "\ufffd" not in alone:
                self.assertEqual(text[start : start + len(alone)], alone)

    def test_a_token_that_does_not_show_within_a_character_starts_where_that_does(self) -> None:
        tokenizer = TOKENIZERS["bytes"]
        first, second, *_ = tokenizer.encode("漢")
        hidden = tokenizer.eos_token_id
        self.assertEqual(DECODERS["bytes"].find_token_starts([first, hidden, second, hidden]), [0, 0, 0, 1])

    def test_bytes_start_where_their_character_does(self) -> None:
        decoder, tokenizer = DECODERS["pieces and bytes"], TOKENIZERS["pieces and bytes"]
        characters = "€é" * 40
        inner = [tokenizer.convert_tokens_to_ids(f"<0x{byte:02X}>") for byte in characters.encode()]
        first, last, hidden = tokenizer.convert_tokens_to_ids(["▁Hello", "▁done", "</s>"])
        found = decoder.find_token_starts([hidden, first, hidden, *inner, last])
        places = [5 + place for place, character in enumerate(characters) for _ in character.encode()]
        self.assertEqual(found, [0, 0, 5, *places, 85])
        self.assertEqual(decoder([first, *inner, last]), f"Hello{characters} done")

    def test_places_of_tokens_that_show_nothing_are_found_by_decoding_each_with_few(self) -> None:
        tokenizer = TOKENIZERS["bytes"]
        half = tokenizer.encode("漢")[0]
        for token in (half, tokenizer.eos_token_id):
            decoded = 0

            class Counting(Decoder):
                def __call__(self, tokens: Sequence[int]) -> str:
                    nonlocal decoded
                    decoded += len(tokens)
                    return super().__call__(tokens)

            self.assertEqual(len(Counting(tokenizer).find_token_starts([token] * 2000)), 2000)
            self.assertLess(decoded, 2000 * 150)

    def test_a_token_that_cannot_be_stored_is_shown_as_unfinished(self) -> None:
        token = TOKENIZERS["pieces and bytes"].convert_tokens_to_ids("<0x00>")
        self.assertEqual(DECODERS["pieces and bytes"].describe_token(token, [])["text"], "\ufffd")
