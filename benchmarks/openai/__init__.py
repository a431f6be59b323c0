"""The OpenAI protocol of `pelton serve`, judged by OpenAI's own client."""
