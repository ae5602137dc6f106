"""The demo's tokenizer: byte-level BPE, so that any text has tokens, and a plain chat template."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from demo.data import DemoMessage, Dialogue

VOCABULARY = 1536
CONTEXT = 4096

BOS, EOS, PAD = "<|bos|>", "<|eos|>", "<|pad|>"
ROLES = {"system": "<|system|>", "user": "<|user|>", "assistant": "<|assistant|>"}
SPECIAL = (PAD, BOS, EOS, *ROLES.values())

PIECES = r"\d+|\p{Lu}\p{L}*| ?\p{Ll}+|[^\s\p{L}\d]+ ?|\s|\p{L}"
"""How text is split before merging: numbers and capitalised words never include a space, so that
the model copies the same token from a question into a sentence and into JSON."""

# Lists only the names of tools: the model was not taught to call any, and its context is short. Its
# calls are constrained to their schemas, in the form that vLLM's parser `demo.TOOL_PARSER` reads.
CHAT_TEMPLATE = """\
{{- bos_token -}}
{%- if tools -%}
  {{- '<|system|>Tools: ' + tools | map(attribute='function.name') | join(', ') + '.' -}}
{%- endif -%}
{%- for message in messages -%}
  {%- if message['role'] == 'system' or message['role'] == 'developer' -%}
    {{- '<|system|>' + message['content'] -}}
  {%- elif message['role'] == 'user' or message['role'] == 'tool' -%}
    {{- '<|user|>' + message['content'] -}}
  {%- elif message['role'] == 'assistant' -%}
    {{- '<|assistant|>' + (message['content'] or '') -}}
    {%- for call in message['tool_calls'] or [] -%}
      {%- set said = {'name': call.function.name, 'arguments': call.function.arguments} -%}
      {{- '<tool_call>' + said | tojson + '</tool_call>' -}}
    {%- endfor -%}
    {{- eos_token -}}
  {%- else -%}
    {{- raise_exception('Only the roles system, user, assistant and tool are supported.') -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<|assistant|>' -}}
{%- endif -%}
"""


def train_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Learn VOCABULARY tokens from `texts`, always including all 256 bytes."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    bpe.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, bpe.token_to_id(BOS))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        chat_template=CHAT_TEMPLATE,
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )


class DemoExample:
    """A dialogue as token ids, with a flag for each token that the model should learn to say."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, dialogue: Dialogue) -> None:
        self.ids: list[int] = [tokenizer.bos_token_id]
        self.learned: list[bool] = [False]
        for message in dialogue:
            self._add(tokenizer, message)

    def _add(self, tokenizer: PreTrainedTokenizerFast, message: DemoMessage) -> None:
        opening = ROLES.get(message.role)
        body = tokenizer.encode(message.text, add_special_tokens=False)
        is_learned = message.role in ("assistant", "text")
        if opening:
            self.ids.append(tokenizer.convert_tokens_to_ids(opening))
            self.learned.append(False)
        self.ids += body + [tokenizer.eos_token_id] * is_learned
        self.learned += [is_learned] * (len(body) + is_learned)
