"""The operations that vLLM runs here, and how. A new one is added to `RUNNERS` if it generates, to
`POOLERS` if it embeds or scores, else to `INQUIRIES`."""

from __future__ import annotations

from collections.abc import Mapping

from inference.agent.engines.vllm.runners.chat import ChatRunner
from inference.agent.engines.vllm.runners.completion import CompletionRunner
from inference.agent.engines.vllm.runners.messages import CountTokensInquiry, MessagesRunner
from inference.agent.engines.vllm.runners.pooling import EmbeddingsPooler, Pooler, ScoringPooler
from inference.agent.engines.vllm.runners.responses import InputTokensInquiry, ResponsesRunner
from inference.agent.engines.vllm.runners.runner import Inquiry, Runner
from inference.agent.engines.vllm.runners.tokens import DetokenizeInquiry, TokenizeInquiry
from inference.operations.chat import CHAT
from inference.operations.completion import COMPLETION
from inference.operations.messages.messages import COUNT_TOKENS, MESSAGES
from inference.operations.pooling.embeddings import EMBEDDINGS
from inference.operations.pooling.scoring import RERANK, SCORE
from inference.operations.responses.input_tokens import INPUT_TOKENS
from inference.operations.responses.responses import RESPONSES
from inference.operations.tokens import DETOKENIZE, TOKENIZE

RUNNERS: Mapping[str, Runner] = {
    CHAT.name: ChatRunner(),
    COMPLETION.name: CompletionRunner(),
    RESPONSES.name: ResponsesRunner(),
    MESSAGES.name: MessagesRunner(),
}
POOLERS: Mapping[str, Pooler] = {
    EMBEDDINGS.name: EmbeddingsPooler(),
    SCORE.name: ScoringPooler(SCORE),
    RERANK.name: ScoringPooler(RERANK),
}
INQUIRIES: Mapping[str, Inquiry] = {
    COUNT_TOKENS.name: CountTokensInquiry(),
    INPUT_TOKENS.name: InputTokensInquiry(),
    TOKENIZE.name: TokenizeInquiry(),
    DETOKENIZE.name: DetokenizeInquiry(),
}
