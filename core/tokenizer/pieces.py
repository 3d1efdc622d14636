"""Where a long text may be cut so that encoding the pieces gives the ids of encoding it whole.

Owns: the argument for GPT-2's word pattern with digits apart (`Vocabulary.splits_on_whitespace`).
Never knows: tokens, or how long encoding takes.

Words are found before merges, and merges never cross words; so a cut is safe exactly where a word
must end and where the words on either side do not depend on what lies beyond. In that pattern
every alternative either holds whitespace only, or whitespace at most as its first character:

    before a space or newline that follows non-whitespace    a word cannot go on over it, and the
                                                             whitespace run starts there anyway
    after an ASCII letter, before ASCII punctuation          letters never share a word with it
    beside an ASCII digit, if digits stand apart             a digit is a word of its own

Only the first two are used: they hold with and without the digits step. Texts without either for
long (a megabyte of one letter) are one piece.
"""

import re
from collections.abc import Iterator

# Python's \s holds every character that the tokenizer's \s holds, so [^\s] is surely no whitespace.
_CUT = re.compile(r"(?<=[^\s])(?=[ \n\t\r])|(?<=[A-Za-z])(?=[!\"#$%&()*+,./:;<=>?@\[\\\]^_`{|}~-])")


def pieces(text: str, piece_chars: int, may_cut: bool) -> Iterator[str]:
    """Yield `text` in pieces of at most `piece_chars` characters where cuts allow, else longer."""
    assert piece_chars > 0, piece_chars
    start = 0
    while may_cut and len(text) - start > piece_chars:
        cut = _last_cut(text, start, start + piece_chars)
        if cut is None:
            match = _CUT.search(text, start + piece_chars)
            if match is None:
                break
            cut = match.start()
        yield text[start:cut]
        start = cut
    if start < len(text):
        yield text[start:]


def _last_cut(text: str, start: int, end: int) -> int | None:
    """Return the last cut in (start, end], looking at a growing stretch before `end`."""
    stretch = 64
    while True:
        low = max(end - stretch, start + 1)
        cuts = [match.start() for match in _CUT.finditer(text, low, min(end + 1, len(text)))]
        cuts = [cut for cut in cuts if start < cut <= end]
        if cuts:
            return cuts[-1]
        if low == start + 1:
            return None
        stretch *= 8
