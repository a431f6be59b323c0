"""The memory orders of the runtime: enough and necessary, on a model that takes them from the C code."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import litmus
import pytest
from atomic_accesses import SOURCES, all_accesses, atomic_variables
from memory_machine import Exploration
from pool_model import Program, Protocol, Scenario

PAGE = Path(__file__).parents[1] / "docs" / "memory-order.md"
FOUND = {a.site: a for a in all_accesses()}
ORDERS = {site: (a.order, a.failure) for site, a in FOUND.items()}
ONE = (Program("p", waves=(2,)),)
PAIR = (Program("p", waves=(2,)), Program("q", waves=(2,), first=1))
SEATS = (Program("p", "s0", waves=(1,)), Program("q", "s1", waves=(1,)))
FREED = (((0, False), (0, None), (1, False), (1, None)),)
SCENARIOS = {
    "runs": Scenario(sleeps=False),  # two runs of two waves; a worker may be late
    "slots": Scenario((Program("p", waves=(2,), threads=3),), (((0, False),),), workers=2, joins=1, sleeps=False),
    "seats": Scenario(PAIR, FREED, reused=True, sleeps=False),  # a program is freed, another one takes its seat
    "profile": Scenario((Program("p", waves=(2,), schedules=2),), (((0, False), (0, True), (0, False)),), sleeps=False),
    "callers": Scenario(SEATS, (((0, False),), ((1, False),)), joins=1, entries=2, sleeps=False),
    "sleep": Scenario(calls=(((0, False),),), looks=True),  # workers and participants fall asleep
    "sleeps": Scenario(ONE),  # the same in two runs
}
LARGE = {
    "sleeps": Scenario(),
    "callers": Scenario(SEATS, (((0, False),), ((1, False),)), entries=2, sleeps=False),
    "slots": Scenario((Program("p", waves=(2,), threads=3),), workers=2, joins=1, sleeps=False),
}
# Sites → the scenario that fails with a weaker order.
NECESSARY = {
    "assist load open": "seats",
    "await add sleepers": "sleep",
    "await load bell": "sleep",
    "await load done": "sleep",
    "credit add bell": "sleep",
    "credit add done": "sleep",
    "credit load sleepers": "sleep",
    "leave sub state": "seats",
    "program_assist load at": "runs",
    "reached load done": "runs",
    "seat_give load state": "seats",
    "seat_open add bell": "sleep",
    "seat_open load parked": "sleep",
    "seat_open swap open": "seats",
    "seat_open swap state": "runs",
    "walk store at": "runs",
    "work add parked": "sleep",
    "work load bell": "sleep",
}
# Either acquires what the opening of a run released: only without both, a scenario fails.
EITHER = {("join load state", "join swap state"): "runs"}
# The end of a wave orders the same; the page says why these stay.
KEPT = {"take_slot swap slots", "leave and slots"}
# Accesses that the model leaves out.
LEFT_OUT = {
    "program.c": {"credit store stamps", "walk_alone store stamps"},  # times, read after `done`
    "pool.c": {"seat_open load limit"},  # a number of threads, written by the same thread
}
OUTSIDE = {  # functions of no part in claims and wakes: counts for heuristics, new threads, one thread after a fork
    "pool_enter pool_leave pool_cores pool_fits pool_crowded hire pool_rouse seat_adopt after_fork_in_child reset"
}
METHODS = {"await": "until_reached"}
WEAKER = {"seq_cst": {"load": "acquire", "store": "release"}, "acq_rel": {}, "acquire": {}, "release": {}}


def weaker(site: str) -> set[str]:
    """The next weaker order, and none."""
    order, operation = ORDERS[site][0], site.split()[1]
    return {WEAKER[order].get(operation, "acq_rel") if order == "seq_cst" else "relaxed", "relaxed"}


def run(scenario: Scenario, **weakened: str) -> Exploration:
    orders = ORDERS | {site: (order, order) for site, order in weakened.items()}
    return Protocol(orders, scenario).explore()


def report(result: Exploration) -> str:
    return "\n".join([result.verdict, *result.path])


@pytest.mark.parametrize("name", SCENARIOS)
def test_orders_are_enough(name):
    result = run(SCENARIOS[name])
    assert not result.verdict and result.states > 1000, report(result)


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_orders_are_enough_in_larger_scenarios(name):
    result = run(LARGE[name])
    assert not result.verdict and result.states > 100_000, report(result)


@pytest.mark.parametrize("site, order", [(site, order) for site in NECESSARY for order in sorted(weaker(site))])
def test_orders_are_necessary(site, order):
    assert run(SCENARIOS[NECESSARY[site]], **{site: order}).verdict, f"{site} may be {order}"


@pytest.mark.parametrize("sites", EITHER)
def test_one_of_several_orders_is_necessary(sites):
    assert run(SCENARIOS[EITHER[sites]], **dict.fromkeys(sites, "relaxed")).verdict


def test_every_order_is_necessary_or_explained():
    modelled = [site for f in modelled_functions() for site in sites_of(f)]
    ordered = {site for site in modelled if ORDERS[site][0] != "relaxed"}
    assert ordered == {*NECESSARY, *KEPT, *(site for sites in EITHER for site in sites)}


# ---- the model is the code ----


def modelled_functions() -> list[str]:
    outside = " ".join(OUTSIDE).split()
    left_out = set().union(*LEFT_OUT.values())
    found = [a for a in FOUND.values() if a.file in LEFT_OUT and a.site not in left_out and a.function not in outside]
    return list(dict.fromkeys(a.function for a in found))


def sites_of(function: str) -> list[str]:
    of = [a for a in FOUND.values() if a.function == function and a.file in LEFT_OUT]
    return [a.site for a in of if a.site not in LEFT_OUT[a.file]]


@pytest.mark.parametrize("function", modelled_functions())
def test_the_model_makes_the_accesses_of_the_code(function):
    """In the same order, each at one place."""
    method = inspect.getsource(getattr(Protocol, METHODS.get(function, function)))
    assert re.findall(rf'"({function} [a-z]+ \w+(?: \d)?)"', method) == sites_of(function)


def test_the_page_has_the_accesses_of_the_code():
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \|", PAGE.read_text(), re.M)
    listed = {(name, *access) for name, text in rows for access in re.findall(r"`(\w+) (\w+)` (\w+)", text)}
    found = {
        (variable, f, operation, a.order) for a in FOUND.values() for f, operation, variable in [a.site.split()[:3]]
    }
    assert listed == found


def test_atomic_variables_are_accessed_by_functions_alone():
    """An operator would be a seq_cst access unseen, as in `s->limit = 0`."""
    names = "|".join(sorted({name for _, name in atomic_variables()}))
    operators = re.compile(rf"(?:->|\.)({names})(?:\[[^]]*\])* ?(?:[-+|&]?=(?!=)|\+\+|--)")
    for name in LEFT_OUT:
        text = (SOURCES / name).read_text()
        for plain in (
            "p->stamps = stamps",
            "s->next = pool.unused",
            "{.lock = PTHREAD_MUTEX_INITIALIZER, .milli_cores = 1000}",
        ):
            text = text.replace(plain, "")
        assert not operators.findall(text), name


# ---- the machine ----


@pytest.mark.parametrize(
    "program, orders, verdict",
    [
        (litmus.crossing, ("relaxed", "relaxed"), "wrong"),
        (litmus.crossing, ("release", "acquire"), "wrong"),
        (litmus.crossing, ("seq_cst", "acquire"), "wrong"),
        (litmus.crossing, ("seq_cst", "seq_cst"), ""),
        (litmus.message, ("relaxed", "acquire"), "race"),
        (litmus.message, ("release", "relaxed"), "race"),
        (litmus.message, ("release", "acquire"), ""),
        (litmus.watchers, ("acquire",), "wrong"),
        (litmus.watchers, ("seq_cst",), ""),
        (litmus.late_load, ("relaxed",), "wrong"),
        (litmus.late_load, ("acquire",), ""),
        (litmus.passed_on, ("relaxed",), ""),
    ],
)
def test_the_machine_on_known_programs(program, orders, verdict):
    result = program(*orders)
    assert result.verdict == verdict, report(result)
