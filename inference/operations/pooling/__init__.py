"""Operations that compute prompts and generate nothing: embeddings, and scores of texts."""
