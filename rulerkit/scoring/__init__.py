"""How it is judged: scores, statistics, the summary, effective length, when an adaptive run may
stop.

Open `scores` first."""
