"""What Hugging Face's libraries expect of a hub, under `/hub`.

With HF_ENDPOINT set to it they push and pull adapters unchanged. A repository is an adapter, a
commit is a version, and `main` is the live one.
"""
