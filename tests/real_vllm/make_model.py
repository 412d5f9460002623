"""Makes a model that no download needs: two layers of Llama with random weights, a tokenizer, a LoRA adapter.

    .venv-vllm/bin/python tests/real_vllm/make_model.py MODEL_DIRECTORY ADAPTER_DIRECTORY

What it says is nonsense; it is there for vLLM's scheduler, KV cache and HTTP server, which are the real ones.
"""

import itertools
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SEED = 20_261_129
VOCABULARY = 1_000
HIDDEN = 64
LAYERS = 2
# vLLM's attention on the CPU takes no heads below 32.
HEADS = 2
MAX_TOKENS = 2_048
RANK = 8
TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL = ["<|begin|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
SUBJECTS = ("The gateway", "A worker", "The queue", "Every request", "One engine", "The cache", "An agent", "My reply")
VERBS = ("takes", "sends", "holds", "counts", "leaves", "finds", "meets", "follows", "wants", "loses", "shares", "ends")
OBJECTS = ("a block", "the batch", "some tokens", "its turn", "two answers", "the stream", "a slot", "new words")
PLACES = ("today", "at once", "in order", "without haste", "on the left", "before noon", "under load", "once more")


def main(model: Path, adapter: Path) -> None:
    """Write both directories."""
    torch.manual_seed(SEED)
    model.mkdir(parents=True, exist_ok=True)
    tokenizer = _tokenizer()
    tokenizer.save_pretrained(model)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=2 * HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        max_position_embeddings=MAX_TOKENS,
        tie_word_embeddings=False,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        # Larger than a trained model's, so that the next token is not a toss-up that rounding decides.
        initializer_range=0.2,
    )
    network = LlamaForCausalLM(config)
    _say_words_only(network, tokenizer)
    network.save_pretrained(model)
    _write_adapter(adapter)


def _tokenizer() -> PreTrainedTokenizerFast:
    text = [f"{' '.join(words)}." for words in itertools.product(SUBJECTS, VERBS, OBJECTS, PLACES)]
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    raw.train_from_iterator(
        text, trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=SPECIAL, initial_alphabet=alphabet)
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, bos_token="<|begin|>", eos_token="<|end|>")
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def _say_words_only(network: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    """Let every answer be text, and as long as it may be: no control token, no half of a character, no lone space."""
    for token in range(VOCABULARY):
        text = tokenizer.decode([token], skip_special_tokens=True)
        if not (text.strip().isascii() and text.strip().isprintable() and text.strip()):
            # A logit of 0, which the largest of hundreds of random ones is always above.
            network.lm_head.weight.data[token] = 0


def _write_adapter(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    weights = {
        f"base_model.model.model.layers.{layer}.self_attn.{name}.lora_{side}.weight": torch.randn(*shape)
        for layer, name in itertools.product(range(LAYERS), ("q_proj", "v_proj"))
        for side, shape in (("A", (RANK, HIDDEN)), ("B", (HIDDEN, RANK)))
    }
    save_file(weights, directory / "adapter_model.safetensors")
    (directory / "adapter_config.json").write_text(
        json.dumps(
            {
                "peft_type": "LORA",
                "task_type": "CAUSAL_LM",
                "base_model_name_or_path": "tiny-model",
                "r": RANK,
                "lora_alpha": 2 * RANK,
                "lora_dropout": 0.0,
                "bias": "none",
                "target_modules": ["q_proj", "v_proj"],
                "modules_to_save": None,
            }
        )
    )


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
