"""Parts of generation that need no engine: sampling, stops, lookup, chat templates in their sandbox."""

from __future__ import annotations

import json
import sys
import time

import numpy as np
import pytest

from pelton.errors import InputError, ModelError
from pelton.language import gguf_tokens
from pelton.language.chat import ChatTemplate
from pelton.language.lookup import TokenLookup, Speed
from pelton.language.places import common_beginning, prompt_part
from pelton.language.few import FEW
from pelton.language.sampling import Sampler, Sampling, draw, largest, nucleus
from pelton.language.stops import StopFilter

VOCABULARY, DRAWS = 700, 4000


def probabilities(logits, s, prompt=(), answer=()):
    """The distribution that a Sampling describes, in float64, written out without any sorting by parts."""
    x = logits.astype(np.float64)
    for t in {*prompt, *answer}:
        x[t] = x[t] / s.repetition_penalty if x[t] > 0 else x[t] * s.repetition_penalty
    for t in {*answer}:
        x[t] -= s.presence_penalty + s.frequency_penalty * list(answer).count(t)
    late = s.temperature if s.temperature_last else 1
    x = x if s.temperature_last else x / s.temperature

    def shares(x):
        e = np.exp(x - x.max())
        return e / e.sum()

    if s.top_k:
        x[np.argsort(-x, kind="stable")[s.top_k :]] = -np.inf
    order = np.argsort(-x, kind="stable")
    behind = np.cumsum(shares(x)[order]) - shares(x)[order]
    x[order[behind >= s.top_p]] = -np.inf
    x[shares(x) < s.min_p * shares(x).max()] = -np.inf
    return shares(x / late)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.5},
        {"top_k": 5},
        {"top_p": 0.6},
        {"min_p": 0.2},
        {"top_k": 300, "top_p": 0.99, "temperature": 2.0},
        {"top_k": 40, "top_p": 0.9, "min_p": 0.05, "temperature": 0.7},
        {"top_p": 0.8, "temperature": 0.4, "temperature_last": True},
        {"repetition_penalty": 1.7, "presence_penalty": 0.5, "frequency_penalty": 0.3, "top_k": 20},
    ],
)
def test_draws_have_the_distribution_of_the_description(options):
    rng = np.random.default_rng(3)
    sampling = Sampling(**{"temperature": 1.0, "seed": 11, **options})
    logits = (2.5 * rng.standard_normal(VOCABULARY)).astype(np.float32)
    best = [int(t) for t in np.argsort(-logits)[:4]]
    prompt, answer = best[:2], [best[1], best[2], best[2]]
    sampler = Sampler(sampling, prompt, VOCABULARY)
    for token in answer:
        sampler.add(token)
    before = logits.copy()
    counts = np.bincount([sampler.choose(logits) for _ in range(DRAWS)], minlength=VOCABULARY)
    assert np.array_equal(before, logits)
    expected = DRAWS * probabilities(logits, sampling, prompt, answer)
    assert not counts[expected == 0].any()
    # chi-squared of those that are expected often, within five standard deviations
    often = expected > 5
    chi = ((counts - expected)[often] ** 2 / expected[often]).sum()
    assert abs(chi - often.sum()) < 5 * np.sqrt(2 * often.sum()) + 5
    greedy = Sampler(Sampling(**{**options, "temperature": 0}), prompt, VOCABULARY)
    for token in answer:
        greedy.add(token)
    likeliest = probabilities(logits, Sampling(**{**options, "temperature": 1.0, "top_k": 0}), prompt, answer)
    assert greedy.choose(logits) == likeliest.argmax()


@pytest.mark.parametrize("size", [3, 256, 257, 5000])
@pytest.mark.parametrize("p", [0.0, 0.5, 0.999999, 1.0])
def test_the_nucleus_is_the_smallest(size, p):
    x = np.random.default_rng().standard_normal(size).astype(np.float32) / 4
    best = nucleus(x, p)
    shares = np.exp(x.astype(np.float64)) / np.exp(x.astype(np.float64)).sum()
    order = np.argsort(-x, kind="stable")
    assert np.array_equal(best, order[: len(best)])
    assert shares[best].sum() > p - 1e-6 and shares[best[:-1]].sum() < p + 1e-6


@pytest.mark.parametrize("size, kinds", [(1, 1), (40, 5), (700, 3), (5000, 40), (5017, 5000), (49152, 90)])
def test_the_largest_fall_and_of_equal_ones_the_first_come_first(size, kinds):
    rng = np.random.default_rng(size)
    x = np.where(rng.random(size) < 0.1, -np.inf, rng.integers(0, kinds, size)).astype(np.float32)
    falling = np.argsort(-x, kind="stable")
    for count in (1, 2, 20, 75, 256, size):
        np.testing.assert_array_equal(largest(x, count), falling[:count])


@pytest.mark.parametrize("size", [1, 255, 256, 257, 1000, 5120])
def test_a_draw_reaches_each_weight_by_its_share(size):
    weights = np.random.default_rng(size).integers(0, 4, size).astype(np.float32)  # whose sums are exact
    weights[-1] = 1
    sums = weights.cumsum(dtype=np.float64)
    for u in (*np.random.default_rng(1).random(300), 0.0, np.nextafter(1, 0)):
        assert draw(weights, u) == np.flatnonzero(sums > min(u * sums[-1], np.nextafter(sums[-1], 0)))[0]


def test_logits_without_numbers_are_an_error():
    for value in (np.nan, -np.inf):
        with pytest.raises(ModelError, match="logits without a largest number"):
            Sampler(Sampling(), (), 5).choose(np.full(5, value, np.float32))
    assert Sampler(Sampling(), (), 3).choose(np.array([1, 3, 2], np.float32), np.array([True, False, True])) == 2


def test_stops_are_found_across_pieces_and_beginnings_are_held_back():
    rng = np.random.default_rng(5)
    for _ in range(500):
        text = "".join(rng.choice(list("ab\n"), 30))
        stops = ["".join(rng.choice(list("ab\n"), rng.integers(1, 5))) for _ in range(rng.integers(0, 3))]
        cuts = [0, *sorted(rng.integers(0, 30, 9)), 30]
        stream, out = StopFilter(stops), ""
        first = min((at for s in stops if (at := text.find(s)) >= 0), default=len(text))
        for a, b in zip(cuts, cuts[1:]):
            if not stream.stopped:
                out += stream.push(text[a:b])
                ends = [s for s in stops if s in text[:b]]
                assert stream.stopped == bool(ends) and text.startswith(out)
                # nothing is held back that cannot become a stop
                held = text[len(out) : b]
                assert ends or not held or any(s.startswith(held) for s in stops)
        out += "" if stream.stopped else stream.finish()
        # of two stops that end in the same piece, the one that begins first ends the text
        assert out == text[:first] or stream.stopped and text.startswith(out)


def test_stops_may_have_special_tokens_which_are_no_text():
    def passed(stops, *tokens):
        stop = StopFilter(stops, {7: "<|end|>", 8: "<|user|>", 9: ""})
        texts = [stop.push("" if isinstance(t, int) else t, t if isinstance(t, int) else -1) for t in tokens]
        return texts + ([] if stop.stopped else [stop.finish()]), stop.stopped

    assert passed(["<|end|>"], "a", 7) == (["a", ""], True)
    assert passed(["<|end|>"], "a<", 7) == (["a", "<"], True)
    assert passed(["<|end|>\n"], "a", 7, "b", 7, "\n") == (["a", "", "b", "", ""], True)
    assert passed(["a<|end|>b"], "xa", 7, "c", 8) == (["x", "", "ac", "", ""], False)
    assert passed(["a<|end|>b"], "xa", 7) == (["x", "", "a"], False)
    # tokens that no stop has are nothing between two texts
    assert passed(["ab"], "a", 7, "b") == (["", "", ""], True)
    assert passed(["<|user|>", "b"], "a", 9, "<|user", "|>") == (["a", "", "", ""], True)


def test_lookup_finds_what_followed_the_latest_tokens():
    lookup = TokenLookup([1, 2, 3, 4, 5, 6, 7])
    assert lookup.draft(3) == []
    for token in (2, 3):
        lookup.add(token)
    assert lookup.draft(3) == [4, 5, 6] and lookup.draft(0) == [] and lookup.draft(-1) == []
    for token in (9, 2, 3):
        lookup.add(token)
    assert lookup.draft(2) == [9, 2] and len(lookup) == 12


def test_drafts_are_tried_while_they_pay_and_now_and_then():
    speed = Speed()
    assert speed.pays()
    speed.single(1.0)
    for _ in range(30):
        speed.drafted(1.5, 3)
    assert speed.pays()
    for _ in range(60):
        speed.drafted(1.5, 1)
    tries = [speed.pays() for _ in range(100)]
    assert not any(tries[:32]) and any(tries)


def test_parts_of_prompts_are_none_that_other_kernels_run():
    for rest in range(1, 300):
        for most in (32, 64, 512):
            n, left = prompt_part(rest, most), rest
            assert 0 < n <= max(most, 2 * FEW + 2)
            while left:
                part = prompt_part(left, most)
                left -= part
                assert part > FEW or rest <= FEW
    assert common_beginning([1, 2, 3], [1, 2]) == 2 and common_beginning([], [1]) == 0


# --- templates

jinja2 = pytest.importorskip("jinja2", reason="chat templates need the package jinja2")
HELLO = [{"role": "user", "content": "Hello"}]


def render(template, messages=HELLO, *more, **values):
    return ChatTemplate(template, {"bos_token": "<s>"}).render(messages, *more, **values)


def test_templates_have_what_transformers_gives_them():
    template = """{{ bos_token }}
    {%- for m in messages %}
        {%- if m.role == 'none' %}{% continue %}{% endif %}
[{{ m['role'] }}]{% generation %}{{ m.content | trim }}{% endgeneration %}
    {%- endfor %}
{% if add_generation_prompt %}
[assistant]
{% endif %}
"""
    messages = [{"role": "none", "content": ""}, {"role": "user", "content": [{"type": "text", "text": " Hello "}]}]
    assert render(template, messages) == "<s>[user]Hello[assistant]\n"
    assert render(template, messages, None, False) == "<s>[user]Hello"
    tool = {"type": "function", "function": {"name": "f", "description": "é <b>"}}
    assert json.loads(render("{{ tools | tojson }}", HELLO, [tool])) == [tool]
    assert render("{{ tools[0] | tojson(indent=2) }}", HELLO, [tool]) == json.dumps(tool, indent=2, ensure_ascii=False)
    assert render("{{ strftime_now('%Y') }}") == time.strftime("%Y")
    assert render("{{ enable_thinking }}{{ documents }}{{ tools }}", enable_thinking=False) == "FalseNoneNone"
    assert (
        render("{% set ns = namespace(n=0) %}{% for i in range(9) %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}")
        == "36"
    )
    assert render("{{ 'a' ~ 1 ~ none ~ messages[0].content }}") == "a1NoneHello"
    with pytest.raises(InputError, match="rejects these messages: Only two roles, please"):
        render("{{ raise_exception('Only two roles, please') }}")


DOUBLE = (
    "{% set ns = namespace(x='a', l=[1]) %}{% for i in range(70) %}{% set ns.x = EXPRESSION %}{% endfor %}{{ ns.x }}"
)
ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ raise_exception.__globals__ }}",
    "{{ strftime_now.__code__ }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update(role='x') }}",
    "{{ '{0.__class__}'.format(messages) }}",
    "{{ ('%s' | attr('__class__')) }}{{ joiner.__init__ }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}{{ os }}",
    "{{ messages | map(attribute='__class__') | list }}{{ namespace.__init__ }}",
]
FLOODS = [
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% for a in range(99999) %}{{ 'x' * 1000 }}{% endfor %}",
    "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
    "{{ range(10 ** 9) }}",
    "{{ 10 ** 10 ** 8 }}{{ 'a' * 10 ** 10 }}",
    "{{ [1] * 10 ** 10 }}",
    "{{ 'a' | center(10 ** 9) }}",
    "{{ 'a'.rjust(10 ** 9) }}",
    "{{ '%999999999d' % 1 }}",
    "{{ '%*d' % (999999999, 1) }}",
    "{{ '%999999999d' | format(1) }}",
    "{{ '{:>999999999}'.format(1) }}",
    "{{ '{:{w}}'.format(1, w=999999999) }}",
    "{{ 'a' | indent(10 ** 9, true) }}",
    *(
        DOUBLE.replace("EXPRESSION", e)
        for e in (
            "ns.x + ns.x",
            "ns.x ~ ns.x",
            "ns.x * 2",
            "[ns.x, ns.x] | join",
            "[ns.x, ns.x]",
            "[ns.x, ns.x] | tojson",
            "ns.x.replace('a', 'aa')",
            "ns.x | replace('a', 'aa')",
            "'%s%s' % (ns.x, ns.x)",
            "'%s%s' | format(ns.x, ns.x)",
            "'{}{}'.format(ns.x, ns.x)",
        )
    ),
    "{% set ns = namespace(x='a') %}{% for i in range(70) %}{% set x %}{{ ns.x }}{{ ns.x }}{% endset %}"
    "{% set ns.x = x %}{% endfor %}",
]


@pytest.mark.parametrize("template", ESCAPES)
def test_templates_stay_in_their_sandbox(template):
    messages = [{"role": "user", "content": "Hello"}]
    try:
        assert "class" not in render(template, messages)
    except (InputError, ModelError) as e:
        assert "chat template" in str(e) and "\n" not in str(e)
    assert messages == HELLO


@pytest.mark.parametrize("template", FLOODS)
def test_templates_end_and_fill_no_memory(template):
    resource = pytest.importorskip("resource")
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    traced = sys.gettrace()
    with pytest.raises(InputError, match="chat template") as e:
        render(template)
    assert "\n" not in str(e.value) and sys.gettrace() is traced
    assert time.process_time() - began < 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 << 10


def test_long_conversations_are_within_the_bounds():
    template = (
        "{% for m in messages %}{% if loop.index0 < messages | length %}{{ m.content ~ '!' }}{% endif %}{% endfor %}"
    )
    messages = [{"role": "user", "content": "word " * 200}] * 400
    assert len(render(template, messages)) == 400 * 1001


def test_templates_and_messages_that_are_none():
    with pytest.raises(ModelError, match="chat template cannot be read: Expected an expression"):
        ChatTemplate("{% if %}", {})
    for messages, message in (
        ([{"content": "a"}], "message 0 is a dictionary with a role and a content"),
        ([HELLO[0], "a"], "message 1 is a dictionary"),
        ([{"role": "user", "content": 7}], "the content of message 0 is a text"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "the content of message 0 is a text"),
    ):
        with pytest.raises(InputError, match=message):
            render("{{ messages }}", messages)


@pytest.mark.parametrize(
    "merges",
    [
        [],
        ["a b"],
        ["a b", "c d", "e f"],
        ["a b", "c"],
        ["a b c", "d"],
        ["a \n", "b c"],
        ["a \n b c", "d e"],
        ["", "a b"],
    ],
)
def test_merges_are_split_as_one_by_one(merges):
    assert gguf_tokens._pairs(merges) == [tuple(text.split(" ", 1)) for text in merges]
