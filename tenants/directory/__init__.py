"""Who a key belongs to and what a model name means, answered from memory."""
