"""An answer as an object of your own class, through the official `openai` client. Start a server first: mtplx serve"""

import sys
from typing import Literal

from openai import OpenAI
from pydantic import BaseModel, Field

base_url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000/v1"


class River(BaseModel):
    name: str = Field(max_length=20)
    length_km: int = Field(ge=1, le=9999)
    continent: Literal["Africa", "America", "Asia", "Europe"]


with OpenAI(base_url=base_url, api_key="none") as client:
    completion = client.chat.completions.parse(
        model=client.models.list().data[0].id,
        messages=[{"role": "user", "content": "Name a river, its length in kilometres and its continent, as JSON."}],
        response_format=River,
        max_tokens=200,
        seed=7,
    )
    print(completion.choices[0].message.parsed)
