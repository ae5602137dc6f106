"""lm-eval: a task that generates chat answers, and one that compares likelihoods of choices."""

import json
import os
import tempfile
from pathlib import Path

from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager

URL = os.environ["OPENAI_BASE_URL"]
ROWS = [
    {"question": f"What is the capital of {country}?", "choices": [f"{city}.", other], "label": 0}
    | {"target": city, "sentence": f"The capital of {country} is "}
    for country, city, other in (("Peru", "Lima", "Oslo."), ("Kenya", "Nairobi", "Rome."))
]
GENERATES = """
task: capitals_said
dataset_path: json
dataset_kwargs: {{data_files: {{test: {rows}}}}}
test_split: test
output_type: generate_until
doc_to_text: question
doc_to_target: target
generation_kwargs: {{until: ["\\n"], max_gen_toks: 40}}
filter_list:
  - name: city
    filter: [{{function: regex, regex_pattern: "is (.*)\\\\."}}, {{function: take_first}}]
metric_list: [{{metric: exact_match}}]
"""
COMPARES = """
task: capitals_chosen
dataset_path: json
dataset_kwargs: {{data_files: {{test: {rows}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: sentence
doc_to_choice: choices
doc_to_target: label
target_delimiter: ""
metric_list: [{{metric: acc}}]
"""


def evaluate(folder: Path, task: str, kind: str, path: str, **more: object) -> dict:
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    model = {"model": os.environ["MODEL"], "base_url": f"{URL}{path}"} | more
    chat = "chat" in kind
    found = simple_evaluate(
        kind, model_args=model, tasks=[task], task_manager=manager, apply_chat_template=chat
    )
    return found["results"][task]


def main() -> None:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        rows = folder / "rows.json"
        rows.write_text("\n".join(map(json.dumps, ROWS)))
        for name, task in (("said", GENERATES), ("chosen", COMPARES)):
            (folder / f"{name}.yaml").write_text(task.format(rows=rows))
        said = evaluate(folder, "capitals_said", "local-chat-completions", "/chat/completions")
        assert said["exact_match,city"] == 1.0, said
        chosen = evaluate(
            folder, "capitals_chosen", "local-completions", "/completions",
            tokenizer=os.environ["TOKENIZER"],
        )  # fmt: skip
        assert chosen["acc,none"] == 1.0, chosen


if __name__ == "__main__":
    main()
