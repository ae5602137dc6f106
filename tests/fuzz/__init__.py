"""Whatever a request asks for, the engine survives and its neighbours get what they got alone.

`python -m tests.fuzz` sends thousands of requests with random sampling parameters, structured
outputs, tools, prompts of all lengths and adapters to a real vLLM; some clients leave early. The
requests derive from a seed, so a run can be repeated. Meanwhile greedy neighbours repeat the same
questions, and each of their tokens is compared with that of their first answer. `make fuzz` runs
it.
"""
