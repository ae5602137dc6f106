"""The API that Hugging Face's libraries expect of a hub, under `/hub`.

With HF_ENDPOINT set to it, unmodified clients push and pull adapters. A repository is an adapter, a
commit is a version, and `main` is the live one.
"""
