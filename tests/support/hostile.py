"""Anything that another program may have written into Redis or the database, as Hypothesis
strategies."""

from __future__ import annotations

import json

from hypothesis import strategies as st


def nested(levels: int) -> str:
    """JSON of lists nested this deep."""
    return "[" * levels + "]" * levels


#: Pieces that are known to break one encoder, decoder, page or terminal or another.
PIECES = st.sampled_from(
    [
        "NaN", "-Infinity", "1e999", "1" * 4400, "\\ud800", "\\udc00\\ud800", "\\u0000", "\x00",
        "\udcff", "\x1b[31m", "\r\n", "\u2028", "\u202e", "\ufeff", "<script>", "{{ x }}", "%s",
        "{}", "[]", '{"a":1,"a":2}', "null", "true", "-1", "9" * 40, '"', "\\", " ", "",
        nested(200), "[" * 1100, '{"a":' * 300, "x" * 300,
    ]
)  # fmt: skip
_SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20), PIECES
)
_VALUES = st.recursive(
    _SCALARS,
    lambda inside: (
        st.lists(inside, max_size=3) | st.dictionaries(st.text(max_size=5), inside, max_size=3)
    ),
    max_leaves=8,
)
_JSON = _VALUES.map(json.dumps)  # with NaN, Infinity and lone surrogates, as Python allows
_PAYLOADS = st.tuples(_JSON, _JSON).map(lambda pair: f'[[{pair[0]}],{{"k":{pair[1]}}}]')
#: Text as it comes out of Redis: bytes that are not UTF-8 stand in it as lone surrogates.
TEXTS = st.one_of(
    PIECES, _JSON, _PAYLOADS, st.lists(PIECES, max_size=2).map("".join), st.text(max_size=40)
)
#: The same as Redis holds it.
BYTES = st.one_of(
    TEXTS.map(lambda text: text.encode("utf-8", "surrogatepass")), st.binary(max_size=40)
)
