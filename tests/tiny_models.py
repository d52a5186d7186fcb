"""Small models of real architectures with random weights, for the tasks that tests run: built in a second, no hub.

    folder = build("fill-mask", Path("/tmp/fill"))        # then: task = "fill-mask", model = the folder

The weights are wide, so that answers differ from text to text; they are the same at every call. Torch is imported
when a model is built, not with this module.
"""

from __future__ import annotations

import base64
import io
import json
import math
import struct
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

SEED = 20261
WIDTH = 32  # of every hidden state
POSITIONS = 64
LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDS = (
    "the",
    "a",
    "is",
    "was",
    "in",
    "on",
    "it",
    "and",
    "cat",
    "dog",
    "house",
    "red",
    "good",
    "bad",
    "paris",
    "france",
)
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

ENCODER = {
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 2 * WIDTH,
    "max_position_embeddings": POSITIONS,
    "initializer_range": 0.5,
}
PATCHES = {
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": WIDTH,
    "image_size": 32,
    "patch_size": 8,
    "initializer_range": 0.5,
}
SQUARE = {"height": 32, "width": 32}  # to which processors scale an image
SOUND = {
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": WIDTH,
    "conv_dim": (16, 16),
    "conv_stride": (10, 8),
    "conv_kernel": (10, 7),  # 8 is wrong in bfloat16 with AMX: oneDNN's convolution of 16 channels by a stride as long
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
    "initializer_range": 0.1,
}


def build(name: str, folder: Path) -> Path:
    """Save a model for the task `name` in `folder`, which is made, and return the folder.

    "whisper" and "gpt2-features" are second architectures, of speech recognition and feature extraction;
    "whisper-with-times" is one that can tell times. "bert-base" is not small.
    """
    import torch
    from transformers.utils import logging

    logging.disable_progress_bar()
    folder.mkdir(parents=True, exist_ok=True)
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        for part in BUILDERS[name](folder):
            part.save_pretrained(folder)
    return folder


def png(color: tuple[int, int, int] = (200, 30, 30), size: tuple[int, int] = (40, 30)) -> str:
    """A picture of one colour, as base64 of a PNG."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.new("RGB", size, color).save(buffer, format="PNG")
    return base64.b64encode(buffer.getvalue()).decode()


def wav(hertz: float = 440.0, seconds: float = 0.2, rate: int = 16_000) -> str:
    """A tone, as base64 of a WAV of 16 bits."""
    samples = [int(20_000 * math.sin(2 * math.pi * hertz * n / rate)) for n in range(int(seconds * rate))]
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setparams((1, 2, rate, len(samples), "NONE", ""))
        file.writeframes(struct.pack(f"<{len(samples)}h", *samples))
    return base64.b64encode(buffer.getvalue()).decode()


def _word_tokenizer(more: int = 0, longest: int = POSITIONS, **settings: Any) -> Any:
    """WordPiece over a few words and all letters, as BERT's, and so many tokens more."""
    from transformers import BertTokenizerFast

    vocabulary = [*SPECIAL, *WORDS, *LETTERS, *(f"##{letter}" for letter in LETTERS), *".,!?0123456789"]
    vocabulary += [f"[unused{number}]" for number in range(more)]
    unique = {token: index for index, token in enumerate(dict.fromkeys(vocabulary))}
    return BertTokenizerFast(vocab=unique, model_max_length=longest, **settings)


def byte_tokenizer(*special: str, kind: Any = None) -> Any:
    """Byte-level BPE without merges, as GPT-2's: an end token, and no padding token. None for NUL, which no answer may
    have: who samples from random weights would meet it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    kind = kind or PreTrainedTokenizerFast
    alphabet = ["aa" if byte == "Ā" else byte for byte in sorted(pre_tokenizers.ByteLevel.alphabet())]
    vocabulary = {token: index for index, token in enumerate([*alphabet, "<|endoftext|>", *special])}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return kind(
        tokenizer_object=tokenizer,
        eos_token="<|endoftext|>",
        bos_token="<|endoftext|>",
        additional_special_tokens=list(special),
    )


def _encoder(model: str, **config: Any) -> list[Any]:
    import transformers

    tokenizer = _word_tokenizer()
    made = transformers.BertConfig(vocab_size=len(tokenizer), **{**ENCODER, **config})
    return [getattr(transformers, model)(made).eval(), tokenizer]


def _bert_base() -> list[Any]:
    """Of the size of BERT-base, for what is measured: 440 MB."""
    import transformers

    tokenizer = _word_tokenizer(more=30_000, longest=512)
    return [transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=len(tokenizer))).eval(), tokenizer]


def _labels(*names: str) -> dict[str, Any]:
    return {"id2label": dict(enumerate(names)), "label2id": {name: index for index, name in enumerate(names)}}


def _decoder(model: str, positions: int = 128) -> list[Any]:
    import transformers

    tokenizer = byte_tokenizer()
    tokenizer.padding_side = "left"  # as chat models have it
    tokenizer.chat_template = (
        '{# A call is <tool_call>{"name": …, "arguments": {…}}</tool_call>. #}'
        "{% for t in tools or () %}{{ t.function.name }}\n{% endfor %}"
        "{% for m in messages %}{{ m.role }}:{% for c in m.tool_calls or () %} {{ c.function.name }}{% endfor %}"
        " {{ m.content }}\n{% endfor %}"
    )
    config = transformers.GPT2Config(
        vocab_size=len(tokenizer),
        n_embd=WIDTH,
        n_layer=2,
        n_head=2,
        n_positions=positions,
        initializer_range=0.5,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    return [getattr(transformers, model)(config).eval(), tokenizer]


def _image_classification() -> list[Any]:
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessorPil

    config = ViTConfig(**PATCHES, **_labels("red", "green", "blue"))
    return [ViTForImageClassification(config).eval(), ViTImageProcessorPil(size=SQUARE)]


def _image_features() -> list[Any]:
    from transformers import ViTConfig, ViTImageProcessorPil, ViTModel

    return [ViTModel(ViTConfig(**PATCHES)).eval(), ViTImageProcessorPil(size=SQUARE)]


def _depth() -> list[Any]:
    from transformers import DPTConfig, DPTForDepthEstimation, DPTImageProcessorPil

    config = DPTConfig(
        **{**PATCHES, "num_hidden_layers": 4},
        backbone_out_indices=[0, 1, 2, 3],
        neck_hidden_sizes=[8, 8, 8, 8],
        fusion_hidden_size=8,
    )
    return [DPTForDepthEstimation(config).eval(), DPTImageProcessorPil(size=SQUARE)]


def _image_and_labels(kind: str, model: str, positions: int) -> list[Any]:
    """A model of CLIP's kind: a tower for texts, and one for images."""
    import transformers

    tokenizer = _word_tokenizer(longest=positions)
    text = {
        **ENCODER,
        "vocab_size": len(tokenizer),
        "max_position_embeddings": positions,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.cls_token_id,
        "eos_token_id": tokenizer.sep_token_id,
    }
    made = getattr(transformers, f"{kind}Config")
    config = made(text_config=text, vision_config=PATCHES, projection_dim=WIDTH)
    processor = getattr(transformers, f"{kind}ImageProcessorPil")(size=SQUARE, crop_size=SQUARE)
    return [getattr(transformers, model)(config).eval(), tokenizer, processor]


def _sound_and_labels() -> list[Any]:
    from transformers import ClapConfig, ClapFeatureExtractor, ClapModel

    tokenizer = _word_tokenizer(model_input_names=["input_ids", "attention_mask"])
    text = {**ENCODER, "vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id, "projection_dim": WIDTH}
    sound = {
        "hidden_size": WIDTH,
        "num_hidden_layers": 2,
        "depths": [1, 1],
        "num_attention_heads": [2, 2],
        "patch_embeds_hidden_size": 16,
        "window_size": 4,
        "projection_dim": WIDTH,
        "initializer_range": 0.5,
    }
    config = ClapConfig(text_config=text, audio_config=sound, projection_dim=WIDTH)
    extractor = ClapFeatureExtractor(truncation="rand_trunc", padding="repeatpad", max_length_s=1)
    return [ClapModel(config).eval(), tokenizer, extractor]


def _document_answers() -> list[Any]:
    from transformers import LayoutLMConfig, LayoutLMForQuestionAnswering

    tokenizer = _word_tokenizer()
    return [LayoutLMForQuestionAnswering(LayoutLMConfig(vocab_size=len(tokenizer), **ENCODER)).eval(), tokenizer]


def _image_chat() -> list[Any]:
    from transformers import (
        CLIPImageProcessorPil,
        CLIPVisionConfig,
        LlamaConfig,
        LlavaConfig,
        LlavaForConditionalGeneration,
        LlavaProcessor,
    )

    tokenizer = byte_tokenizer("<image>")
    text = LlamaConfig(
        **ENCODER | {"max_position_embeddings": 256},
        vocab_size=len(tokenizer),
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.eos_token_id,
    )
    config = LlavaConfig(
        vision_config=CLIPVisionConfig(**PATCHES),
        text_config=text,
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        vision_feature_layer=-1,
    )
    processor = LlavaProcessor(
        image_processor=CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size=SQUARE),
        tokenizer=tokenizer,
        patch_size=8,
        num_additional_image_tokens=1,
        vision_feature_select_strategy="default",
        chat_template=(
            "{% for m in messages %}{{ m.role }}: {% for c in m.content %}"
            "{% if c.type == 'image' %}<image>{% else %}{{ c.text }}{% endif %}{% endfor %}\n{% endfor %}"
        ),
    )
    model = LlavaForConditionalGeneration(config).eval()
    model.generation_config.max_new_tokens = 6
    return [model, processor]


def _table_answers(folder: Path) -> list[Any]:
    """TAPAS, which needs pandas."""
    from transformers import TapasConfig, TapasForQuestionAnswering, TapasTokenizer

    vocabulary = folder / "vocab.txt"
    vocabulary.write_text("\n".join([*_word_tokenizer().get_vocab(), "[EMPTY]"]))
    tokenizer = TapasTokenizer(str(vocabulary), model_max_length=POSITIONS)
    config = TapasConfig(
        vocab_size=len(tokenizer),
        **ENCODER,
        num_aggregation_labels=2,
        aggregation_labels={0: "NONE", 1: "SUM"},
        no_aggregation_label_index=0,
    )
    return [TapasForQuestionAnswering(config).eval(), tokenizer]


def _speech(folder: Path) -> list[Any]:
    """VITS, without its noise: the same text sounds the same."""
    from transformers import VitsConfig, VitsModel, VitsTokenizer

    tokens = ["<pad>", *LETTERS, " ", "<unk>"]
    vocabulary = folder / "vocab.json"
    vocabulary.write_text(json.dumps({token: index for index, token in enumerate(tokens)}))
    tokenizer = VitsTokenizer(str(vocabulary), phonemize=False, pad_token="<pad>", unk_token="<unk>")
    config = VitsConfig(
        vocab_size=len(tokens),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        ffn_dim=16,
        flow_size=16,
        spectrogram_bins=9,
        upsample_initial_channel=16,
        upsample_rates=[4, 2],
        upsample_kernel_sizes=[8, 4],
        resblock_kernel_sizes=[3],
        resblock_dilation_sizes=[[1]],
        duration_predictor_filter_channels=16,
        posterior_encoder_num_wavenet_layers=1,
        prior_encoder_num_flows=1,
        prior_encoder_num_wavenet_layers=1,
        use_stochastic_duration_prediction=False,
        noise_scale=0.0,
    )
    return [VitsModel(config).eval(), tokenizer]


def _object_detection() -> list[Any]:
    from transformers import YolosConfig, YolosForObjectDetection, YolosImageProcessorPil

    shape = {**PATCHES, "image_size": [32, 32]}
    config = YolosConfig(num_detection_tokens=4, **shape, **_labels("cat", "dog"))
    return [YolosForObjectDetection(config).eval(), YolosImageProcessorPil(size=SQUARE)]


def _image_segmentation() -> list[Any]:
    from transformers import SegformerConfig, SegformerForSemanticSegmentation, SegformerImageProcessorPil

    config = SegformerConfig(
        num_encoder_blocks=2,
        depths=[1, 1],
        sr_ratios=[1, 1],
        hidden_sizes=[16, WIDTH],
        num_attention_heads=[1, 2],
        patch_sizes=[7, 3],
        strides=[4, 2],
        mlp_ratios=[2, 2],
        decoder_hidden_size=16,
        **_labels("sky", "sea"),
    )
    processor = SegformerImageProcessorPil(size=SQUARE)
    return [SegformerForSemanticSegmentation(config).eval(), processor]


def _audio_classification() -> list[Any]:
    from transformers import Wav2Vec2Config, Wav2Vec2FeatureExtractor, Wav2Vec2ForSequenceClassification

    config = Wav2Vec2Config(**SOUND, **_labels("low", "high"))
    return [Wav2Vec2ForSequenceClassification(config).eval(), Wav2Vec2FeatureExtractor()]


def _speech_by_letters(folder: Path) -> list[Any]:
    from transformers import Wav2Vec2Config, Wav2Vec2CTCTokenizer, Wav2Vec2FeatureExtractor, Wav2Vec2ForCTC

    tokens = ["<pad>", "<s>", "</s>", "<unk>", "|", *LETTERS.upper()]
    vocabulary = folder / "vocab.json"
    vocabulary.write_text(json.dumps({token: index for index, token in enumerate(tokens)}))
    config = Wav2Vec2Config(vocab_size=len(tokens), pad_token_id=0, **SOUND)
    return [Wav2Vec2ForCTC(config).eval(), Wav2Vec2CTCTokenizer(str(vocabulary)), Wav2Vec2FeatureExtractor()]


def _speech_by_windows(*, seconds: int = 0) -> list[Any]:
    """Whisper; one that can tell times has a token for each fiftieth of so many `seconds`."""
    from transformers import (
        GenerationConfig,
        WhisperConfig,
        WhisperFeatureExtractor,
        WhisperForConditionalGeneration,
        WhisperTokenizer,
    )

    special = ["<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|notimestamps|>"]
    special += [f"<|{number / 50:.2f}|>" for number in range(50 * seconds + 1)] if seconds else []
    tokenizer = byte_tokenizer(*special, kind=WhisperTokenizer)
    end, start = tokenizer.convert_tokens_to_ids(["<|endoftext|>", special[0]])
    layers = {f"{side}_layers": 1 for side in ("encoder", "decoder")}
    heads = {f"{side}_attention_heads": 2 for side in ("encoder", "decoder")}
    inner = {f"{side}_ffn_dim": WIDTH for side in ("encoder", "decoder")}
    config = WhisperConfig(
        vocab_size=len(tokenizer),
        d_model=WIDTH,
        num_mel_bins=80,
        max_target_positions=32,
        init_std=0.5,
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=end,
        decoder_start_token_id=start,
        **layers,
        **heads,
        **inner,
    )
    model = WhisperForConditionalGeneration(config).eval()
    model.generation_config.update(
        max_length=12, suppress_tokens=None, begin_suppress_tokens=None, is_multilingual=False
    )
    if seconds:
        none = tokenizer.convert_tokens_to_ids("<|notimestamps|>")
        model.generation_config = GenerationConfig(
            max_length=12,
            bos_token_id=end,
            eos_token_id=end,
            pad_token_id=end,
            decoder_start_token_id=start,
            is_multilingual=False,
            return_timestamps=False,
            no_timestamps_token_id=none,
        )
    return [model, tokenizer, WhisperFeatureExtractor(feature_size=80)]


BUILDERS: dict[str, Callable[[Path], list[Any]]] = {
    "fill-mask": lambda _: _encoder("BertForMaskedLM"),
    "bert-base": lambda _: _bert_base(),
    "text-ranking": lambda _: _encoder("BertForSequenceClassification", num_labels=1),
    "text-classification": lambda _: _encoder("BertForSequenceClassification", **_labels("negative", "positive")),
    "token-classification": lambda _: _encoder("BertForTokenClassification", **_labels("O", "B-LOC", "I-LOC")),
    "zero-shot-classification": lambda _: _encoder(
        "BertForSequenceClassification", **_labels("contradiction", "neutral", "entailment")
    ),
    "feature-extraction": lambda _: _encoder("BertModel"),
    "gpt2-features": lambda _: _decoder("GPT2Model"),
    "text-generation": lambda _: _decoder("GPT2LMHeadModel"),
    "long-text-generation": lambda _: _decoder("GPT2LMHeadModel", 8192),
    "image-classification": lambda _: _image_classification(),
    "image-feature-extraction": lambda _: _image_features(),
    "depth-estimation": lambda _: _depth(),
    "zero-shot-image-classification": lambda _: _image_and_labels("CLIP", "CLIPModel", POSITIONS),
    "zero-shot-object-detection": lambda _: _image_and_labels("OwlViT", "OwlViTForObjectDetection", 16),
    "zero-shot-audio-classification": lambda _: _sound_and_labels(),
    "document-question-answering": lambda _: _document_answers(),
    "image-text-to-text": lambda _: _image_chat(),
    "table-question-answering": _table_answers,
    "text-to-audio": _speech,
    "object-detection": lambda _: _object_detection(),
    "image-segmentation": lambda _: _image_segmentation(),
    "audio-classification": lambda _: _audio_classification(),
    "automatic-speech-recognition": _speech_by_letters,
    "whisper": lambda _: _speech_by_windows(),
    "whisper-with-times": lambda _: _speech_by_windows(seconds=30),
}
