"""RULER as a task of inspect_ai, and a reader of its logs for rulerkit."""

readers = {".eval": "rulerkit_inspect.logs:read_log"}
