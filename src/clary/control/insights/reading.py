"""A recursive descent parser of queries; an error names unsupported syntax and its position.

Where: `planning.plan_of` calls it. The text is not trusted: its length, its terms, its expressions and the depth of its
brackets are bounded.
Source: CloudWatch Logs user guide, "CloudWatch Logs Insights language query syntax".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from clary.control.insights import syntax
from clary.control.insights.automaton import Automaton
from clary.control.insights.errors import MalformedQuery
from clary.control.insights.expression_parts import BadExpression
from clary.control.insights.syntax import Bin, Field, Item, Place
from clary.control.insights.tokens import Kind, Token, tokens_of

MAX_TERMS = 500  # fields, bins, values, aggregates and nots
MAX_EXPRESSIONS = 10
MAX_DEPTH = 30  # of nested brackets
MAX_ROWS = 10_000
FUNCTIONS = ("count", "count_distinct", "sum", "avg", "min", "max")
# Commands of the language that are not supported, and commands of other query languages that people try.
_OTHER_COMMANDS = (
    *("anomaly", "dedup", "diff", "filterindex", "join", "lookup", "parse", "pattern", "search", "select", "source"),
    *("subqueries", "unmask", "unnest", "where"),
)
_COMPARISONS = ("=", "!=", "<", "<=", ">", ">=")
_UNITS_MS = {
    **dict.fromkeys(("ms", "msec", "millisecond", "milliseconds"), 1),
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1000),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60_000),
    **dict.fromkeys(("h", "hr", "hour", "hours"), 3_600_000),
    **dict.fromkeys(("d", "day", "days"), 86_400_000),
    **dict.fromkeys(("w", "week", "weeks"), 7 * 86_400_000),
}
MAX_BIN_MS = 3650 * 86_400_000

T = TypeVar("T")


def commands_of(text: str) -> list[syntax.Command]:
    """Return the commands of a query.

    Raises: MalformedQuery with the expected syntax and the position of the error.
    """
    return _Reader(tokens_of(text)).commands()


class _Reader:
    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._position = 0
        self._num_terms = 0
        self._num_expressions = 0
        self._depth = 0

    def commands(self) -> list[syntax.Command]:
        if self._next.is_sign("|"):
            self._take()
        commands = [self._command()]
        while self._next.kind is not Kind.END:
            self._sign("|", "'|' and another command")
            commands.append(self._command())
        return commands

    @property
    def _next(self) -> Token:
        return self._tokens[self._position]

    def _take(self) -> Token:
        token = self._next
        if token.kind is not Kind.END:
            self._position += 1
        return token

    def _sign(self, sign: str, expected: str) -> Token:
        if not self._next.is_sign(sign):
            raise _unexpected(self._next, expected)
        return self._take()

    def _command(self) -> syntax.Command:
        token = self._next
        readers: dict[str, Callable[[Token], syntax.Command]] = {
            "fields": lambda start: syntax.Fields(self._items(), self._place(start)),
            "display": lambda start: syntax.Display(self._items(), self._place(start)),
            "filter": lambda start: syntax.Filter(self._any(), self._place(start)),
            "sort": self._sort,
            "limit": self._limit,
            "head": self._limit,
            "stats": self._stats,
        }
        reader = readers.get(token.text.lower()) if token.kind is Kind.WORD else None
        if reader is not None:
            return reader(self._take())
        offered = "fields, display, filter, sort, limit and stats"
        if token.is_word(*_OTHER_COMMANDS):
            raise MalformedQuery(
                f"the command {token.text!r} is not offered here: commands are {offered}",
                start=token.start,
                end=token.end,
            )
        raise _unexpected(token, f"a command; commands are {offered}")

    def _place(self, start: Token) -> Place:
        return Place(start.start, self._tokens[self._position - 1].end)

    def _list(self, read_one: Callable[[], T]) -> tuple[T, ...]:
        found = [read_one()]
        while self._next.is_sign(","):
            self._take()
            found.append(read_one())
        return tuple(found)

    def _items(self) -> tuple[Item, ...]:
        return self._list(self._item)

    def _item(self) -> Item:
        source = self._source()
        return Item(source, self._alias(source.label))

    def _alias(self, label: str) -> str:
        if not self._next.is_word("as"):
            return label
        self._take()
        token = self._take()
        if token.kind not in (Kind.WORD, Kind.NAME) or token.text.startswith("@"):
            raise _unexpected(token, "a name behind 'as', without '@'")
        return token.text

    def _source(self) -> Field | Bin:
        """Read a field or `bin(...)`."""
        if self._next.is_word("bin") and self._tokens[self._position + 1].is_sign("("):
            return self._bin()
        return self._field("a field or bin(PERIOD)")

    def _field(self, expected: str) -> Field:
        self._count_term()
        token = self._take()
        if token.kind not in (Kind.WORD, Kind.NAME):
            raise _unexpected(token, expected)
        if token.kind is Kind.WORD and self._next.is_sign("("):
            raise MalformedQuery(
                f"the function {token.text}() is not offered here: expected {expected}",
                start=token.start,
                end=token.end,
            )
        if not token.text:
            raise _unexpected(token, expected)
        return Field(token.text, Place(token.start, token.end))

    def _bin(self) -> Bin:
        self._count_term()
        start = self._take()
        self._sign("(", "'(' behind bin")
        number = self._take()
        unit = self._take()
        width_ms = _UNITS_MS.get(unit.text, 0) if unit.kind is Kind.WORD else 0
        is_whole = number.kind is Kind.NUMBER and number.text.isdigit() and len(number.text) <= len(str(MAX_BIN_MS))
        width_ms *= int(number.text) if is_whole else 0
        if not 0 < width_ms <= MAX_BIN_MS:
            raise MalformedQuery(
                "a period is a whole number and a unit from ms to w, such as bin(30s), bin(5m) or bin(1h), and at most "
                "ten years",
                start=number.start,
                end=unit.end,
            )
        end = self._sign(")", "')' behind the period")
        return Bin(width_ms, f"bin({int(number.text)}{unit.text})", Place(start.start, end.end))

    def _any(self) -> syntax.Condition:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise MalformedQuery(
                f"conditions are nested more than {MAX_DEPTH} deep", start=self._next.start, end=self._next.end
            )
        ways = [self._all()]
        while self._next.is_word("or"):
            self._take()
            ways.append(self._all())
        self._depth -= 1
        return ways[0] if len(ways) == 1 else syntax.Any(tuple(ways))

    def _all(self) -> syntax.Condition:
        conditions = [self._one()]
        while self._next.is_word("and"):
            self._take()
            conditions.append(self._one())
        return conditions[0] if len(conditions) == 1 else syntax.All(tuple(conditions))

    def _one(self) -> syntax.Condition:
        is_negated = False
        while self._next.is_word("not"):
            self._count_term()
            self._take()
            is_negated = not is_negated
        if self._next.is_sign("("):
            self._take()
            condition = self._any()
            self._sign(")", "')', 'and' or 'or'")
        elif self._next.is_word("ispresent") and self._tokens[self._position + 1].is_sign("("):
            self._take()
            self._take()
            condition = syntax.IsPresent(self._field("a field"))
            self._sign(")", "')' behind the field")
        else:
            condition = self._comparison()
        return syntax.Not(condition) if is_negated else condition

    def _comparison(self) -> syntax.Condition:
        left = self._operand()
        token = self._take()
        is_negated = token.is_word("not")
        if is_negated:
            token = self._take()
        if token.is_word("like", "in") or token.is_sign("=~"):
            if not isinstance(left, Field):
                raise MalformedQuery(
                    f"expected a field in front of {token.text!r}, not a value", start=token.start, end=token.end
                )
            found: syntax.Condition = (
                syntax.In(left, self._values()) if token.is_word("in") else syntax.Like(left, self._pattern())
            )
            return syntax.Not(found) if is_negated else found
        if is_negated:
            raise _unexpected(token, "'like' or 'in' behind 'not'")
        if not token.is_sign(*_COMPARISONS):
            raise _unexpected(token, "a comparison: = != < <= > >= =~ like, not like, in, not in")
        return syntax.Comparison(left, token.text, self._operand())

    def _operand(self) -> syntax.Operand:
        if self._next.kind in (Kind.STRING, Kind.NUMBER) or self._next.is_sign("-"):
            return syntax.Literal(self._value())
        return self._field("a field, a number or a text in quotes")

    def _value(self) -> str | syntax.Number:
        self._count_term()
        token = self._take()
        if token.kind is Kind.STRING:
            return token.text
        is_negative = token.is_sign("-")
        if is_negative:
            token = self._take()
        if token.kind is not Kind.NUMBER:
            raise _unexpected(token, "a number or a text in quotes")
        # Through float, because int refuses numbers of thousands of digits.
        number = float(token.text)
        value: syntax.Number = int(token.text) if token.text.isdigit() and number < 1 << 63 else number
        return -value if is_negative else value

    def _values(self) -> tuple[str | syntax.Number, ...]:
        self._sign("[", "a list such as [1, 2] or ['a', 'b']")
        values = self._list(self._value)
        self._sign("]", "',' or ']'")
        return values

    def _pattern(self) -> str | Automaton:
        token = self._take()
        if token.kind is Kind.STRING:
            return token.text
        if token.kind is not Kind.REGEX:
            raise _unexpected(token, "a text in quotes or a regular expression between slashes")
        self._num_expressions += 1
        if self._num_expressions > MAX_EXPRESSIONS:
            raise MalformedQuery(
                f"a query has at most {MAX_EXPRESSIONS} regular expressions: join some with |",
                start=token.start,
                end=token.end,
            )
        try:
            return Automaton(token.text)
        except BadExpression as error:
            raise MalformedQuery(
                f"the regular expression /{token.text[:200]}/ cannot be used: {error}",
                start=token.start,
                end=token.end,
            ) from error

    def _sort(self, start: Token) -> syntax.Sort:
        if self._next.is_word("by"):
            self._take()
        return syntax.Sort(self._list(self._sort_key), self._place(start))

    def _sort_key(self) -> syntax.SortKey:
        token = self._next
        source: Field | Bin
        if token.is_word(*FUNCTIONS) and self._tokens[self._position + 1].is_sign("("):
            _, _, label = self._call()
            source = Field(label, Place(token.start, self._tokens[self._position - 1].end))
        else:
            source = self._source()
        is_descending = self._next.is_word("desc")
        if self._next.is_word("asc", "desc"):
            self._take()
        return syntax.SortKey(source, is_descending)

    def _limit(self, start: Token) -> syntax.Limit:
        token = self._take()
        is_whole = token.kind is Kind.NUMBER and token.text.isdigit() and len(token.text) <= len(str(MAX_ROWS))
        if not is_whole or not 1 <= int(token.text) <= MAX_ROWS:
            raise _unexpected(token, f"a number of rows from 1 to {MAX_ROWS}")
        return syntax.Limit(int(token.text), self._place(start))

    def _stats(self, start: Token) -> syntax.Stats:
        aggregates = self._list(self._aggregate)
        groups: tuple[Item, ...] = ()
        if self._next.is_word("by"):
            self._take()
            groups = self._items()
        return syntax.Stats(aggregates, groups, self._place(start))

    def _aggregate(self) -> syntax.Aggregate:
        function, field, label = self._call()
        return syntax.Aggregate(function, field, self._alias(label))

    def _call(self) -> tuple[str, Field | None, str]:
        """Read one aggregate and return its function, its field and its label."""
        self._count_term()
        token = self._take()
        if not token.is_word(*FUNCTIONS):
            raise _unexpected(token, f"one of the functions {', '.join(FUNCTIONS)}")
        function = token.text.lower()
        self._sign("(", f"'(' behind {function}")
        field: Field | None = None
        if self._next.is_sign("*") and function == "count":
            self._take()
        elif not (self._next.is_sign(")") and function == "count"):
            field = self._field("a field")
        self._sign(")", "')'")
        return function, field, f"{function}({field.name if field else '*'})"

    def _count_term(self) -> None:
        self._num_terms += 1
        if self._num_terms > MAX_TERMS:
            token = self._next
            raise MalformedQuery(
                f"a query has at most {MAX_TERMS} fields, values and comparisons", start=token.start, end=token.end
            )


def _unexpected(token: Token, expected: str) -> MalformedQuery:
    return MalformedQuery(f"unexpected {token}: expected {expected}", start=token.start, end=token.end)
