"""Runs tests of GoogleTest, in C++, on functions of Python: a reader of the statements that such tests consist of.

A test is a list of declarations, assignments, calls and expectations. It reads no loops, conditions and lambdas:
`Unreadable` says where one is. What a test calls, and the types that it declares, come with the functions' table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .gtest_source import Test, Token, Unreadable, statements, tokens

QUALIFIERS = ("const", "constexpr", "static")


class _Stopped(Exception):
    """An assertion failed, which ends its test."""


@dataclass
class Place:
    """What `&name` or `&map["key"]` points to."""

    values: Any
    key: Any

    def get(self) -> Any:
        return self.values[self.key]

    def set(self, value: Any) -> None:
        self.values[self.key] = value


@dataclass(frozen=True)
class Status:
    """A status of absl. code: "OK", or the name of an error as gRPC has it."""

    code: str = "OK"
    message: str = ""


@dataclass
class Language:
    """What tests call. functions: by their names. types: the value of a variable that is declared without one.
    methods: by name, called with the place of the object and the arguments. parameter: of a test with types."""

    functions: Mapping[str, Callable[..., Any]]
    types: Mapping[str, Callable[[], Any]] = field(default_factory=dict)
    methods: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    parameter: str = ""


class Runner:
    """A run of one test: its variables, and the expectations that failed, each with its line."""

    def __init__(self, language: Language):
        self.language = language
        self.variables: dict[str, Any] = dict(language.values)
        self.failures: list[str] = []
        self.tokens: list[Token] = []
        self.at = 0

    def run(self, test: Test) -> list[str]:
        """Runs a test; returns the expectations that failed. Raises Unreadable."""
        try:
            for part in statements(tokens(test.body, test.line)):
                self.tokens, self.at = [*part, Token("end", "", part[-1].line)], 0
                self._statement()
        except _Stopped:
            pass
        return self.failures

    # statements

    def _statement(self) -> None:
        while self._peek().text in QUALIFIERS:
            self.at += 1
        start = self.at
        declared = self._type()
        if declared is not None and self._peek().kind == "name":
            self._declare(declared)
            return
        self.at = start
        place = self._lvalue()
        if place is not None and self._take("="):
            place.set(self._expression())
        else:
            self.at = start
            self._expression()
        if self._peek().kind != "end" and self._peek().text != "<<":  # what an expectation prints has no effect
            self._refuse()

    def _type(self) -> str | None:
        """Reads a type's name, as in `absl::Status`, `const string&` or `std::optional<int>`."""
        if self._peek().kind != "name":
            return None
        name = self._next().text
        if self._take("<"):
            while not self._take(">"):
                if self._next().kind == "end":
                    return None
        while self._take("&"):
            pass
        return name

    def _declare(self, declared: str) -> None:
        while True:
            name = self._next().text
            if self._take("="):
                self.variables[name] = self._expression()
            else:
                self.variables[name] = self.language.types.get(declared, lambda: None)()
            if not self._take(","):
                break
        if self._peek().kind != "end":
            self._refuse()

    # expressions

    def _expression(self) -> Any:
        value = self._unary()
        while self._peek().text in ("+", "-") and self._peek().kind == "symbol":
            sign = self._next().text
            other = self._unary()
            value = value + other if sign == "+" else value - other
        return value

    def _unary(self) -> Any:
        if self._take("-"):
            return -self._unary()
        if self._take("!"):
            return not self._unary()
        if self._take("&"):
            place = self._lvalue()
            return place if place is not None else self._refuse()
        return self._postfix(*self._primary())

    def _lvalue(self) -> Place | None:
        """Reads a name and its indices, as the place that they name."""
        if self._peek().kind != "name":
            return None
        place = Place(self.variables, self._next().text)
        while self._take("["):
            place = Place(place.get(), self._expression())
            self._expect("]")
        return place

    def _primary(self) -> tuple[Any, Place | None]:
        token = self._next()
        if token.kind == "string":
            text = token.text
            while self._peek().kind == "string":
                text += self._next().text
            return text, None
        if token.kind == "number":
            return (float if "." in token.text else int)(token.text), None
        if token.text == "(" and token.kind == "symbol":
            if self._peek().kind == "name" and self.tokens[self.at + 1].text == ")":  # a type before braces
                self.at += 2
                return self._primary()
            value = self._expression()
            self._expect(")")
            return value, None
        if token.text == "{":
            return self._list("}"), None
        if token.kind == "name":
            return self._named(token)
        self.at -= 1
        return self._refuse(), None

    def _named(self, token: Token) -> tuple[Any, Place | None]:
        name = token.text
        if name == "this" and self._take("->"):
            name = self._next().text
        if self._peek().text == "<" and self.tokens[self.at + 2].text == ">":  # std::numeric_limits<double>::max
            name += f"<{self.tokens[self.at + 1].text}>"
            self.at += 3
            name += self._next().text
        if self._take("("):
            return self._call(name, token), None
        if name in self.variables:
            return self.variables[name], Place(self.variables, name)
        if "::" in name or name[0] == "k" or name in ("true", "false"):
            return {"true": True, "false": False}.get(name, name), None  # a constant of an enumeration is its name
        raise Unreadable(f"line {token.line}: no variable {name}")

    def _call(self, name: str, token: Token) -> Any:
        function = self.language.functions.get(name.rpartition("::")[2]) or self.language.functions.get(name)
        arguments = self._list(")")
        if name in EXPECTATIONS:
            self._expectation(name, arguments, token)
            return None
        if name in self.language.types and not arguments:
            return self.language.types[name]()
        if function is None:
            raise Unreadable(f"line {token.line}: no function {name}")
        return function(*arguments)

    def _postfix(self, value: Any, place: Place | None) -> Any:
        while True:
            if self._take("["):
                key = self._expression()
                self._expect("]")
                place = Place(value, key)
                value = value.get(key)  # a map of C++ has a value for every key
            elif self._take(".") or self._take("->"):
                token = self._next()
                if not self._take("("):
                    value = getattr(value, token.text)
                    continue
                arguments = self._list(")")
                method = self.language.methods.get(token.text) or METHODS.get(token.text)
                if method is None:
                    raise Unreadable(f"line {token.line}: no method {token.text}")
                value = method(place or Place([value], 0), *arguments)
                place = None
            else:
                return value

    def _list(self, end: str) -> list[Any]:
        values: list[Any] = []
        while not self._take(end):
            values.append(self._expression())
            if not self._take(","):
                self._expect(end)
                break
        return values

    def _expectation(self, name: str, arguments: list[Any], token: Token) -> None:
        failure = EXPECTATIONS[name](*arguments)
        if failure:
            self.failures.append(f"line {token.line}: {failure}")
            if "ASSERT" in name:
                raise _Stopped

    # tokens

    def _peek(self) -> Token:
        return self.tokens[self.at]

    def _next(self) -> Token:
        self.at += 1
        return self.tokens[self.at - 1]

    def _take(self, symbol: str) -> bool:
        token = self.tokens[self.at]
        if token.kind == "symbol" and token.text == symbol:
            self.at += 1
            return True
        return False

    def _expect(self, symbol: str) -> None:
        if not self._take(symbol):
            self._refuse()

    def _refuse(self) -> Any:
        token = self._peek()
        raise Unreadable(f"line {token.line}: {token.text or 'the end'} is no part of what this reads")


def _equal(a: Any, b: Any) -> str:
    return "" if a == b else f"{a!r} is not {b!r}"


def _that(value: Any, matcher: Callable[[Any], str]) -> str:
    return matcher(value)


def _ok(status: Status) -> str:
    return "" if status.code == "OK" else f"{status.code}: {status.message}"


def _true(value: Any) -> str:
    return "" if value is True else f"not so: {value}"


EXPECTATIONS: dict[str, Callable[..., str]] = {
    "TF_EXPECT_OK": _ok,
    "TF_ASSERT_OK": _ok,
    "EXPECT_TRUE": _true,
    "ASSERT_TRUE": _true,
    "EXPECT_FALSE": lambda value: "is so" if value is True else "",
    "EXPECT_EQ": _equal,
    "EXPECT_THAT": _that,
}


def _append(place: Place, *arguments: Any) -> None:
    more = arguments[0] if len(arguments) == 1 else arguments[1] * arguments[0]
    place.set(place.get() + more)


METHODS: dict[str, Callable[..., Any]] = {
    "append": _append,
    "clear": lambda place: place.set(type(place.get())()),
    "Clear": lambda place: place.set(type(place.get())()),
    "size": lambda place: len(place.get()),
    "length": lambda place: len(place.get()),
    "data": lambda place: place.get(),
    "message": lambda place: place.get().message,
}


def has_substring(part: str) -> Callable[[str], str]:
    """Returns the matcher HasSubstr."""
    return lambda text: "" if part in text else f"{text[:200]!r} lacks {part!r}"


COMMON: dict[str, Callable[..., Any]] = {
    "HasSubstr": has_substring,
    "IsInvalidArgument": lambda status: _code(status, "INVALID_ARGUMENT"),
    "IsNotFound": lambda status: _code(status, "NOT_FOUND"),
    "StrCat": lambda *parts: "".join(map(str, parts)),
    "Substitute": lambda text, value: text.replace("$0", f"{value:g}"),
    "string_view": lambda text, length: text[:length],
    "std::numeric_limits<double>::max": lambda: 1.7976931348623157e308,
    "std::numeric_limits<double>::min": lambda: 2.2250738585072014e-308,
    "std::numeric_limits<uint64_t>::max": lambda: (1 << 64) - 1,
    "OkStatus": Status,
    "InvalidArgument": lambda *parts: Status("INVALID_ARGUMENT", "".join(map(str, parts))),
}


def _code(status: Status, wanted: str) -> bool | str:
    """Returns True, or what the status is instead."""
    return status.code == wanted or f"{status.code} {status.message[:200]}, not {wanted}"
