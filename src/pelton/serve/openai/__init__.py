"""The OpenAI protocol over language models: chat completions, completions, embeddings, models."""
