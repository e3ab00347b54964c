"""Makes the tokenizer of the small models, rulerkit/data/small/tokenizer: byte pairs, digits one by
one, trained on prompts and answers of the tasks on the built-in corpora."""

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from rulerkit import generate
from rulerkit.generation.corpora import load
from rulerkit.generation.tasks import THIRTEEN, task

FOLDER = Path(__file__).parent.parent / "rulerkit/data/small/tokenizer"
SIZE = 2048
SEED = 2_000_000
EXAMPLES = 100
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}


def main() -> None:
    texts = [" ".join(load("words", "wonderwords").everything)] * 3
    for name in THIRTEEN:
        examples = generate(task(name).with_corpora("builtin"), 4096, EXAMPLES, SEED)
        texts += [example.prompt for example in examples]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE,
        special_tokens=list(SPECIAL.values()),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    FOLDER.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(FOLDER / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    (FOLDER / "tokenizer_config.json").write_text(
        json.dumps(config | SPECIAL, indent=2) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
