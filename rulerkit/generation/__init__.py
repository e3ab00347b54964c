"""What is asked: tasks, corpora, tokenizers, and examples that fit their length exactly.

Open `generate` first."""
