"""The engine in your own process, no server: prompts go in together and share the model as one batch."""

from mtplx import Engine, SamplingParams

with Engine(scheduler_mode="ar_batch") as engine:
    prompts = ["The capital of France is", "Water boils at", "The first month of the year is"]
    for completion in engine.generate(prompts, SamplingParams(temperature=0.0, max_tokens=12)):
        print(repr(completion.text), completion.finish_reason)
