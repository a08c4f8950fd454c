"""Which mode does the server run? Start one first: mtplx serve"""

from mtplx.client import OpenAIClient

print(OpenAIClient(base_url="http://localhost:8000/v1").get("/status")["scheduler_mode"])
