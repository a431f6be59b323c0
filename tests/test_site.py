"""The site of docs/, as far as it can be checked without Sphinx: navigation, anchors, syntax, and lists of pages."""

import argparse
import importlib.metadata
import re
import shlex
import sys
from dataclasses import fields
from pathlib import Path

import pytest

import pelton
from pelton import errors
from pelton.cli import build
from pelton.compat.session.config import READERS
from pelton.options import Options

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from benchmarks import sizes  # noqa: E402

if sys.version_info >= (3, 11):
    import tomllib

DOCS = ROOT / "docs"
CODE = {p: p.read_text() for p in (ROOT / "src").rglob("*.py")}


def navigation() -> list[Path]:
    """The pages in the tables of contents of docs/index.md, in their order."""
    blocks = re.findall(r"^```\{toctree\}\n(.*?)^```", (DOCS / "index.md").read_text(), re.M | re.S)
    entries = [line for block in blocks for line in block.splitlines() if line and not line.startswith(":")]
    return [DOCS / "index.md", *((DOCS / f"{entry}.md").resolve() for entry in entries)]


PAGES = navigation()


def text_of(page: Path) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^( *)```.*?^\1```", "", page.read_text(), flags=re.M | re.S)


def anchors(page: Path) -> set[str]:
    """The names of headings, as GitHub and MyST make them."""
    found: set[str] = set()
    for title in re.findall(r"^#+ (.+)$", text_of(page), re.M):
        title = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title)
        name = base = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        count = 0
        while name in found:
            count += 1
            name = f"{base}-{count}"
        found.add(name)
    return found


def blocks(language: str) -> list[tuple[str, str]]:
    """(page, code) of every block of a language."""
    found = [(p.name, b) for p in PAGES for b in re.findall(rf"^```{language}\n(.*?)^```", p.read_text(), re.M | re.S)]
    assert found, f"no page has a block of {language}: nothing is tested"
    return found


def test_every_page_is_in_the_navigation_once():
    assert [str(p) for p in PAGES if not p.is_file()] == []
    assert len(set(PAGES)) == len(PAGES)
    assert sorted(set(DOCS.rglob("*.md")) - set(PAGES)) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_anchors_lead_somewhere(page):
    for path, anchor in re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", text_of(page)):
        if not path.startswith("http"):
            target = page.parent / path if path else page
            assert target.suffix != ".md" or anchor in anchors(target), f"{page.name}: {path}#{anchor}"


# ---- blocks that nobody runs ----


def test_manifests_are_yaml():
    yaml = pytest.importorskip("yaml", reason="pyyaml is not installed here; the extra `test` brings it")
    templates = [(p.name, p.read_text()) for p in sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("[!c]*.yml"))]
    assert len(templates) == 3
    for page, text in [*blocks("yaml"), *templates]:
        for found in yaml.safe_load_all(text):
            assert isinstance(found, dict) and len(found) > 2, page


INSTRUCTIONS = {"FROM", "RUN", "COPY", "WORKDIR", "ENV", "USER", "EXPOSE", "CMD", "ENTRYPOINT", "ARG"}


def test_dockerfiles_hang_together():
    for page, text in blocks("dockerfile"):
        lines = [line.split(maxsplit=1) for line in re.sub(r"\\\n", " ", text).splitlines() if line.strip("# \n")]
        lines = [line for line in lines if not line[0].startswith("#")]
        assert {word for word, _ in lines} <= INSTRUCTIONS and lines[0][0] == "FROM", page
        stages: set[str] = set()
        for word, rest in lines:
            words = shlex.split(rest)
            if word == "FROM":
                stages |= {words[2]} if words[1:2] == ["AS"] else set()
            assert set(re.findall(r"from=(\w+)", rest)) <= stages, f"{page}: {rest}"
        last = [word for word, _ in lines][max(i for i, (word, _) in enumerate(lines) if word == "FROM") :]
        assert "USER" in last and last[-1] == "CMD", f"{page}: the last stage runs as root, or runs nothing"


def pelton_commands() -> list[str]:
    """The calls of pelton in blocks that are not run."""
    lines = [
        line for _, block in [*blocks("console"), *blocks("dockerfile"), *blocks("yaml")] for line in block.splitlines()
    ]
    return [
        m[0].rstrip(" \\")
        for line in lines
        for m in re.finditer(r"\bpelton (build|compare|bench|tune|doctor)\b[^&]*", line)
    ]


@pytest.mark.parametrize("command", dict.fromkeys(pelton_commands()))
def test_commands_that_are_not_run_can_be_parsed(command):
    from pelton.cli import parser

    parser().parse_args(shlex.split(command)[1:])


def test_code_for_gpus_is_python():
    for page, code in blocks("python gpu"):
        compile(code, page, "exec")


# ---- what pages list ----


def flags() -> dict[str, str]:
    """Fields of Options → their flag of `pelton build`."""
    command = build.add(argparse.ArgumentParser().add_subparsers())
    return {a.dest: a.option_strings[0] for a in command._actions if a.option_strings}


def table_of_options() -> str:
    given, rows = flags(), []
    for name in (f.name for f in fields(Options)):
        flag = f"`{given[name]}`" if name in given else "–"
        variable = f"`PELTON_{name.upper()}`" if name in READERS else "–"
        rows.append(f"| `{name}` | {flag} | {variable} |\n")
    return "".join(rows)


def test_the_table_of_options_is_that_of_the_code():
    page = (DOCS / "options.md").read_text()
    assert table_of_options() in page, f"docs/options.md must have:\n{table_of_options()}"
    for flag in ("--calibrator",):
        assert f"`{flag}`" in page and flag in flags().values()


def test_every_variable_is_on_the_page_of_options():
    read = {name for text in CODE.values() for name in re.findall(r"PELTON_[A-Z_]*[A-Z]\b", text)}
    header = set(re.findall(r"PELTON_[A-Z_]+", (ROOT / "src/pelton/native/pelton.h").read_text()))
    read = read - header - {"PELTON_NAME"} | {
        f"PELTON_{name.upper()}" for name in READERS
    }  # NAME stands for any of these
    page = (DOCS / "options.md").read_text()
    assert read - set(re.findall(r"PELTON_[A-Z_]+", page)) == set()
    assert set(re.findall(r"PELTON_[A-Z_]+", page)) - read == set()


def test_every_error_is_on_its_page():
    page = (DOCS / "errors.md").read_text()
    kinds = [name for name, e in vars(errors).items() if isinstance(e, type) and issubclass(e, errors.Error)]
    assert len(kinds) > 5 and [name for name in kinds if f"`{name}`" not in page] == []


def test_messages_on_the_page_of_errors_are_those_of_the_code():
    """Each piece of a message, up to what is filled in, stands in the package."""
    native = [p.read_text() for p in sorted((ROOT / "src/pelton/native").glob("*.c"))]
    strings = re.sub(r'"\s*\n\s*f?"', "", "\n".join([*CODE.values(), *native]))
    messages = re.findall(r"^\| `([^`]+)` \|", (DOCS / "errors.md").read_text().partition("## Frequent")[2], re.M)
    assert len(messages) > 10
    for message in messages:
        for piece in message.split("…"):
            assert piece.strip() in strings, f"{message}: {piece!r}"


def test_every_public_name_is_in_the_reference():
    page = (DOCS / "api.md").read_text()
    public = [n for n in pelton.__all__ if n != "__version__"]
    assert [n for n in public if not re.search(rf"auto\w+:: pelton\.{n}$", page, re.M)] == []
    for name in re.findall(r"auto\w+:: pelton\.([\w.]+)$", page, re.M):
        found = pelton
        for part in name.split("."):
            found = (
                getattr(found, part) if hasattr(found, part) else importlib.import_module(f"{found.__name__}.{part}")
            )
        assert found.__doc__, name


def installed(extra: str) -> float:
    """MB of the packages that an extra brings, with numpy and what they need in turn, as they are installed here."""
    requirements = pytest.importorskip("packaging.requirements")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    seen: dict[str, int] = {}

    def add(text: str, of: str) -> None:
        wanted = requirements.Requirement(text)
        if wanted.name == "pelton":
            for further in (text for name in wanted.extras for text in extras[name]):
                add(further, "")
        elif wanted.name not in seen and (not wanted.marker or wanted.marker.evaluate({"extra": of})):
            package = importlib.metadata.distribution(wanted.name)
            files = [f.locate() for f in package.files or () if f.suffix != ".pyc"]
            seen[wanted.name] = sum(f.stat().st_size for f in files if f.is_file())
            for further in package.requires or ():
                add(further, "")

    for text in ("numpy", *extras.get(extra, ())):
        add(text, "")
    return sum(seen.values()) / 1e6


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib came with Python 3.11")
@pytest.mark.parametrize("extra", ["", "build", "demo", "sign", "cuda"])
def test_the_sizes_of_extras_are_about_those_of_the_page(extra):
    form = rf"\.\[{extra}\]" if extra else r"\."
    said = re.search(rf"^\| `{form}` .* \| (\d+) \|$", (DOCS / "install.md").read_text(), re.M)
    try:
        found = installed(extra)
    except importlib.metadata.PackageNotFoundError as e:
        pytest.skip(f"{e} is not installed here")
    assert said and 0.75 < (found + 5) / int(said[1]) < 1.33, f"{extra}: {found:.0f} MB"


def test_the_table_of_sizes_has_every_extra():
    said = re.findall(r"^\| `\.(?:\[(\w+)\])?` \|", (DOCS / "install.md").read_text(), re.M)
    assert said == ["", *sizes.extras()] and sizes.USES.keys() == set(said)
