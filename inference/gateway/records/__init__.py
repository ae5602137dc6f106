"""What is recorded of each request once it is over: a log line, its span, counts, its outcome.

The line is the event `request`. It has names, counts and times, never content: no prompt, no
answer, and no error message, because that may quote them; only the request's own tenant sees the
message. A request whose client disconnected is recorded when its engine has sent `done`, so that
the figures match the bill.
"""
