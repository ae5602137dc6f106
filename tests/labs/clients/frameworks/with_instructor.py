"""instructor: an object extracted from a sentence, whole and streamed in parts."""

import os

import instructor
from openai import OpenAI
from pydantic import BaseModel, Field

MODEL = os.environ["MODEL"]


class User(BaseModel):
    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=99)


def main() -> None:
    client = instructor.from_openai(OpenAI())
    asked = {"model": MODEL, "messages": [{"role": "user", "content": "Jason is 25 years old."}]}
    user = client.chat.completions.create(response_model=User, **asked)
    assert isinstance(user, User)
    *_, last = client.chat.completions.create_partial(response_model=User, **asked)
    assert last.name is not None and 0 <= last.age <= 99


if __name__ == "__main__":
    main()
