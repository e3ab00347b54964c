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
    about = {"vocab_size": vocab_size, "special_tokens": [*names.values(), *special]}
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(initial_alphabet=alphabet, show_progress=False, **about)
    backend.train_from_iterator(texts, trainer)
    if bos:
        around = {"single": "<s> $A", "special_tokens": [("<s>", 0)]}
        backend.post_processor = processors.TemplateProcessing(**around)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **names)
    fast.chat_template = template
    fast.save_pretrained(folder)
    return backend.get_vocab_size()


def save_llama(folder, vocab_size, max_shard_size="50GB", **shape):
    """Two layers of random weights, the same ones for the same shape; `shape` goes over the
    configuration."""
    torch = pytest.importorskip("torch", reason="a tiny checkpoint is made with torch")
    transformers = pytest.importorskip("transformers")

    torch.manual_seed(0)
    config = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    config |= {"num_attention_heads": 2, "num_key_value_heads": 1}
    config |= {"max_position_embeddings": 4096, "bos_token_id": 0, "eos_token_id": 1}
    config["initializer_range"] = 0.2  # so that logits are not flat and greedy answers differ
    made = transformers.LlamaConfig(vocab_size=vocab_size, **(config | shape))
    transformers.LlamaForCausalLM(made).save_pretrained(folder, max_shard_size=max_shard_size)
