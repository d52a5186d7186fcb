"""Every text architecture of transformers with random weights, tiny: what takes a second to build is left out by name.

    model = build("convbert", "text-classification")

The weights are wide, so that a difference shows. One tokenizer, of a token a word, serves all.
"""

from __future__ import annotations

import functools
import re
import warnings
from typing import Any

SEED = 7
WORDS = 100
SPECIAL = ("<pad>", "<unk>", "<s>", "</s>", "<mask>")
POSITIONS = 64
MAX_WEIGHTS = 3_000_000
MAPPINGS = {
    "text-classification": "SEQUENCE_CLASSIFICATION",
    "token-classification": "TOKEN_CLASSIFICATION",
    "fill-mask": "MASKED_LM",
    "text-generation": "CAUSAL_LM",
}

AUTO = {
    "text-classification": "SequenceClassification",
    "token-classification": "TokenClassification",
    "fill-mask": "MaskedLM",
    "text-generation": "CausalLM",
}

# Names of settings, and what makes them small.
SIZES: tuple[tuple[str, Any], ...] = (
    (r"(unpadded_)?vocab_size|n_vocab|vocab_size_per_layer_input", len(SPECIAL) + WORDS),
    (
        r"hidden_size|d_model|n_embd|n_embed|dim|embed_dim|emb_dim|embedding_(size|dim)|word_embed_proj_dim|lru_width",
        32,
    ),
    (
        r"num_hidden_layers|num_layers|n_layers?|encoder_layers|decoder_layers|num_(en|de)coder_layers|n_encoder_layers",
        2,
    ),
    (r"num_attention_heads|num_heads|n_heads?|(en|de)coder_attention_heads|num_(en|de)coder_attention_heads", 2),
    (r"num_(self|cross)_attention_heads", 2),
    (r"num_key_value_heads|n_head_kv|num_kv_heads|num_global_key_value_heads", 2),
    (r"(global_|swa_|v_|qk_nope_)?head_dim|d_head|kv_channels|attention_head_size|d_kv", 16),
    (r"qk_rope_head_dim|rotary_dim", 16),
    (r"q_lora_rank|kv_lora_rank", 16),
    (r"(moe_|shared_|shared_expert_)?intermediate_size|ffn_dim|d_ff|d_inner|n_inner|(en|de)coder_ffn_dim", 48),
    (r"ffn_hidden_size|hidden_dim|expert_ffn_hidden_size|dense_intermediate_size|block_ff_dim", 48),
    (r"max_position_embeddings|n_positions|n_ctx|max_seq_len|max_sequence_length|context_length", POSITIONS),
    (r"initializer_range|init_std|embed_init_std|initializer_factor", 0.5),
    (r"num_experts|num_local_experts|n_routed_experts|moe_num_experts", 4),
    (r"num_experts_per_tok|moe_k|moe_topk|top_k_experts", 2),
    (r"n_group|topk_group|n_shared_experts", 1),
    (r"mamba_n_heads|mamba_num_heads|n_mamba_heads", 4),
    (r"mamba_d_head|mamba_head_dim", 16),
    (r"linear_(key|value)_head_dim", 8),
    (r"linear_num_(key|value)_heads", 2),
    (r"pad_token_id", 0),
    (r"bos_token_id|cls_token_id", 2),
    (r"eos_token_id|sep_token_id|decoder_start_token_id", 3),
)

ALTERNATING = {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}
# What these names leave too large, or at odds.
MORE: dict[str, dict[str, Any]] = {
    "albert": {"num_hidden_groups": 1},
    "bamba": {"attn_layer_indices": [1], "mamba_d_state": 16},
    "canine": {"num_hash_buckets": 128, "local_transformer_stride": 16, "max_position_embeddings": 128},
    "codegen": {"n_head": 4, "rotary_dim": 8},
    "dots1": {"first_k_dense_replace": 1},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "esm": {"vocab_size": 105, "mask_token_id": 4},
    "kimi_linear": {"layer_types": ["linear_attention", "full_attention"]},
    "fnet": {"tpu_short_seq_length": POSITIONS},
    "gpt_neo": {"num_layers": 2, "attention_types": [[["global", "local"], 1]]},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"], "mamba_d_state": 16},
    "hunyuan_v1_dense": {"head_dim": 16},
    "hunyuan_v1_moe": {"head_dim": 16, "moe_topk": 2, "num_experts": 4},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 8, "mamba_dt_rank": 8},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "lilt": {"num_attention_heads": 2, "channel_shrink_ratio": 2, "hidden_size": 48},
    "longcat_flash": {"zero_expert_num": 2},
    "longformer": {"attention_window": 16},
    "luke": {"entity_vocab_size": 10, "entity_emb_size": 16},
    "mamba2": {"num_heads": 4, "head_dim": 16, "n_groups": 1, "state_size": 16, "chunk_size": 8},
    "ministral": {"head_dim": 16},
    "nemotron": {"num_key_value_heads": 2},
    "nystromformer": {"segment_means_seq_len": 8, "num_landmarks": 8, "conv_kernel_size": 9},
    "olmo_hybrid": {"layer_types": ["linear_attention", "full_attention"]},
    "perceiver": {"num_latents": 8, "d_latents": 32, "num_self_attends_per_block": 2},
    "qwen3_5_moe_text": ALTERNATING,
    "qwen3_5_text": ALTERNATING,
    "qwen3_next": ALTERNATING,
    "qwen4_exp_text": ALTERNATING,
    "recurrent_gemma": {"num_hidden_layers": 3},
    "reformer": {
        "axial_pos_embds_dim": [16, 16], "axial_pos_shape": [8, 8], "attn_layers": ["local", "lsh"], "num_buckets": 4,
        "local_attn_chunk_length": 8, "lsh_attn_chunk_length": 8,
    },
    "roc_bert": {
        "pronunciation_vocab_size": 105, "shape_vocab_size": 105, "pronunciation_embed_dim": 16, "shape_embed_dim": 16,
    },
    "rwkv": {"context_length": 128},
    "xlstm": {"embedding_dim": 32, "hidden_size": 32, "num_blocks": 2, "num_heads": 2, "chunk_size": 16},
    "xmod": {"default_language": "en_XX"},
    "youtu": {"qk_head_dim": 32},
    "t5": {"decoder_start_token_id": 0},
    "xglm": {"ffn_dim": 48},
    "zamba": {
        "num_hidden_layers": 4, "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"], "attention_head_dim": 32,
        "attention_hidden_size": 64,
    },
    "zamba2": {
        "num_hidden_layers": 2, "layers_block_type": ["mamba", "hybrid"], "n_mamba_heads": 4, "mamba_headdim": 16,
        "adapter_rank": 8, "mamba_d_state": 16,
    },
    "zaya": {"num_experts_per_tok": 1, "router_hidden_size": 16},
}  # fmt: skip

OTHER_SENSES = "reads pictures, sound or layout beside text, and its parts have no small settings here"
ODD = "its settings hang together in ways that small sizes break"
LEFT_OUT = {
    **dict.fromkeys(
        (
            "blt",
            "bros",
            "dots3_note",
            "emu3",
            "fuyu",
            "gemma3",
            "gemma3n",
            "gemma4",
            "gemma4_unified",
            "git",
            "got_ocr2",
            "layoutlmv2",
            "layoutlmv3",
            "llama4",
            "mllama",
            "modernvbert",
            "moshi",
            "moss_transcribe_diarize",
            "musicgen",
            "musicgen_melody",
            "phi4_multimodal",
            "qwen3_5",
            "qwen3_5_moe",
            "qwen3_asr",
            "qwen4_exp",
            "t5gemma",
            "t5gemma2",
            "ultravbert",
            "whisper",
        ),
        OTHER_SENSES,
    ),
    **dict.fromkeys(
        (
            "bailing_hybrid",
            "cohere_compass_text",
            "dbrx",
            "dots1",
            "dots3_note_text",
            "falcon_h1",
            "gemma3n_text",
            "gemma4_assistant",
            "gemma4_text",
            "gemma4_unified_assistant",
            "gemma4_unified_text",
            "kimi_linear",
            "lfm3",
            "mimo_v2_flash",
            "mistral4",
            "nemotron_h",
            "qwen4_exp_text",
            "xlstm",
            "zamba",
        ),
        ODD,
    ),
    "mra": "its attention is a kernel for GPUs: on a CPU each answer is the same",
}


def kinds(task: str) -> list[str]:
    """The types of models that transformers has for the task, but those that are left out."""
    from transformers.models.auto import modeling_auto

    names = getattr(modeling_auto, f"MODEL_FOR_{MAPPINGS[task]}_MAPPING_NAMES")
    decodes = task == "text-generation"
    return [kind for kind in names if kind not in LEFT_OUT and not (decodes and kind == "reformer")]


def config(kind: str, **settings: Any) -> Any:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    made = CONFIG_MAPPING[kind]
    return made(**{**_small(made(), kind), **settings})


def _small(whole: Any, kind: str) -> dict[str, Any]:
    names = whole.to_dict()
    found = {name: size for name in names for pattern, size in SIZES if _is(whole, name, pattern)}
    return {**found, **MORE.get(kind, {})}


def _is(whole: Any, name: str, pattern: str) -> bool:
    if not re.fullmatch(pattern, name):
        return False
    value = getattr(whole, name, None)
    return name.endswith("_id") or (isinstance(value, int | float) and not isinstance(value, bool))


def build(kind: str, task: str, **settings: Any) -> Any:
    """The model of this type for the task, on the CPU, for inference. `settings` are of its configuration. Raises
    whatever transformers raises."""
    import torch
    import transformers

    auto = getattr(transformers, f"AutoModelFor{AUTO[task]}")
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of layers without weights, which small settings make
        torch.manual_seed(SEED)
        small = config(kind, **settings)
        with torch.device("meta"):
            size = sum(weights.numel() for weights in auto.from_config(small).parameters())
        if size > MAX_WEIGHTS:
            raise ValueError(f"{kind} has {size:,} weights with small settings")
        return auto.from_config(small).eval()


@functools.cache
def tokenizer(*, ends: bool) -> Any:
    """A token a word; `ends`: between <s> and </s>."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    from inference.engines.runtime import parity

    known = dict.fromkeys(" ".join(parity.TEXTS).split())
    words = [*known, *(f"w{n}" for n in range(WORDS - len(known)))]
    vocabulary = {token: index for index, token in enumerate([*SPECIAL, *words])}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if ends:
        core.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", pair="<s> $A </s> $B </s>", special_tokens=[("<s>", 2), ("</s>", 3)]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<pad>",
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        cls_token="<s>",
        sep_token="</s>",
        mask_token="<mask>",
        model_input_names=["input_ids", "attention_mask"],
    )
