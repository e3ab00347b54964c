"""Where results lie: cells, their rows and records, files of examples, and the locks
that keep one writer at a time.

Open `cells` first; `places` says what a caller may give where results are meant."""
