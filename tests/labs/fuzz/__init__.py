"""Whatever a request asks for, the engine survives and its neighbours get what they got alone.

`python -m tests.labs.fuzz` sends thousands of requests of all operations with random sampling
parameters, structured outputs, tools, prompts of all lengths and adapters to a real vLLM, some of
which leave early; they are made of a seed, so a run can be repeated. Each takes the way from the
bytes of its body to those of its answer, which must be as the SDKs' types say. Meanwhile greedy
neighbours ask the same questions all the time, and each of their tokens is compared with what it
was before. `make fuzz` runs it.
"""
