"""One HTTP request and its answer: the caller, the body, and how the answer is written."""
