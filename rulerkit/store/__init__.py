"""Where results lie: cells, their rows and records, and the locks that keep one writer at a time.

Open `cells` first."""
