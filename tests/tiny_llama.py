"""A tiny Llama of random weights with a byte-pair tokenizer, as several tests save one to a
folder."""

import pytest


def save_tokenizer(folder, texts, vocab_size, *special, template=None, bos=True):
    """Train a byte-pair tokenizer that puts a BOS before a text, with more special tokens and a chat
    template; its size. Without a BOS it is like GPT-NeoX': token 0 ends a text."""
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    names = {"bos_token": "<s>", "eos_token": "</s>"} if bos else {"eos_token": "<|endoftext|>"}
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[*names.values(), *special],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    if bos:
        backend.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", 0)]
        )
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **names)
    fast.chat_template = template
    fast.save_pretrained(folder)
    size = backend.get_vocab_size()
    return size


def save_llama(folder, vocab_size, max_shard_size="50GB", **shape):
    """Two layers of random weights, the same ones for the same shape; `shape` goes over the
    configuration."""
    torch = pytest.importorskip("torch", reason="a tiny checkpoint is made with torch")
    transformers = pytest.importorskip("transformers")

    torch.manual_seed(0)
    config = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 4096,
        "initializer_range": 0.2,  # so that logits are not flat and greedy answers differ
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    made = transformers.LlamaConfig(vocab_size=vocab_size, **(config | shape))
    transformers.LlamaForCausalLM(made).save_pretrained(folder, max_shard_size=max_shard_size)
