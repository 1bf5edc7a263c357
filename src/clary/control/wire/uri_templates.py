"""URI templates of REST operations: `/jobs/{name}/parts/{key+}?list`.

Where: routing matches requests against a template, REST parsing reads the labels' values with it.
Source: Smithy, "HTTP binding traits": labels match one path segment, greedy labels (`{key+}`) several.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote

_LABEL = re.compile(r"\{([^}]+)\}")


@dataclass(frozen=True)
class UriTemplate:
    """Method, path and constant query parameters of one operation."""

    method: str
    path: re.Pattern[str]
    labels: tuple[str, ...]
    constants: tuple[tuple[str, str], ...]
    specificity: tuple[int, int]  # numbers of literal characters and constant parameters

    @classmethod
    def of(cls, http: Mapping[str, Any]) -> UriTemplate:
        """Compile the `http` trait of an operation."""
        path, _, query = str(http["requestUri"]).partition("?")
        pieces = _LABEL.split(path)
        pattern, labels = "", []
        for index, piece in enumerate(pieces):
            if index % 2 == 0:
                pattern += re.escape(piece)
            else:
                pattern += "(.+)" if piece.endswith("+") else "([^/]+)"
                labels.append(piece.rstrip("+"))
        constants = tuple(parse_qsl(query, keep_blank_values=True))
        literal = sum(len(piece) for piece in pieces[::2])
        return cls(
            str(http.get("method", "POST")),
            re.compile(pattern, re.DOTALL),
            tuple(labels),
            constants,
            (literal, len(constants)),
        )

    def match(self, method: str, raw_path: str, query: str) -> dict[str, str] | None:
        """Return the labels' decoded values, or None if the request does not fit.

        Args:
            method: upper case.
            raw_path: percent-encoded, without the query; empty counts as `/`.
            query: as on the wire, without `?`; must have the template's constant parameters.
        """
        if method != self.method:
            return None
        if self.constants:
            given = parse_qsl(query, keep_blank_values=True)
            if not all(constant in given for constant in self.constants):
                return None
        return self.labels_of(raw_path)

    def labels_of(self, raw_path: str) -> dict[str, str] | None:
        """Return the labels' decoded values, or None if the path does not fit."""
        found = self.path.fullmatch(raw_path or "/")
        if found is None:
            return None
        return {label: unquote(value) for label, value in zip(self.labels, found.groups(), strict=True)}
