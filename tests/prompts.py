"""Eight prompts of different lengths, in the default model's chat form, that tests and benchmarks share."""

from __future__ import annotations


def _chat(text: str) -> str:
    return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


EIGHT_PROMPTS = (
    "Hi",
    "The capital of France is",
    _chat("Name three rivers."),
    _chat("Write one sentence about the sea, and another about the wind over it."),
    _chat("What is 12 + 30? Answer with the number."),
    _chat("List the days of the week, each on its own line, beginning with Monday. " * 2),
    _chat("Tell a short story of a lighthouse keeper who finds a bottle with a letter in it. " * 3),
    _chat(
        "Summarise: " + "The old bridge was closed, and people took the ferry instead, which ran twice an hour. " * 6
    ),
)
