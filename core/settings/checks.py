"""The checks that every part of the configuration uses: one fault is one line with the key path."""

from collections.abc import Iterator


def in_range(path: str, value: float, low: float, high: float) -> Iterator[str]:
    """Yield a fault if `value` lies outside [low, high]."""
    if not low <= value <= high:
        yield f"{path} = {value} is out of range: {low} to {high}"


def one_of(path: str, value: str, allowed: tuple[str, ...]) -> Iterator[str]:
    """Yield a fault if `value` is not one of `allowed`."""
    if value not in allowed:
        yield f"{path} = {value!r} is unknown: use one of {', '.join(allowed)}"


def is_name(text: str, longest: int, marks: str) -> bool:
    """Tell whether `text` is 1 to `longest` ASCII letters, digits or `marks`."""
    plain = "".join("a" if character in marks else character for character in text)
    return 1 <= len(text) <= longest and plain.isalnum() and text.isascii()


def sha256_faults(path: str, digest: str) -> Iterator[str]:
    """Yield a fault unless `digest` is empty or 64 lower-case hex digits."""
    if digest and (len(digest) != 64 or set(digest) - set("0123456789abcdef")):
        yield f"{path} is not a SHA-256 in 64 lower-case hex digits"
