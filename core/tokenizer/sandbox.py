"""Chat templates as bounded programs: Jinja's immutable sandbox with limits on time and memory.

Owns: what a template may do. Never knows: messages or tokens. A template comes from the model's
directory, but it runs on text from clients and within a shared process, so nothing in it may take
long or make much: every string and list it builds is measured before it is built, and a deadline is
looked at on every line, call and piece of output.
"""

import json
import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, Never, cast

from jinja2 import Template, TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from core.clock import NS_PER_MS, Clock
from core.errors import ModelError

MAX_LIST_ITEMS = 1_000_000
MAX_TEMPLATE_CHARS = 1_000_000
MAX_PRODUCT = 2**63
ALLOWED_FILTERS = frozenset({
    "abs", "capitalize", "count", "d", "default", "dictsort", "escape", "e", "first", "float",
    "int", "items", "join", "last", "length", "list", "lower", "lstrip", "map", "max", "min",
    "reject", "rejectattr", "replace", "reverse", "round", "rstrip", "safe", "select",
    "selectattr", "sort", "string", "title", "trim", "unique", "upper",
})  # fmt: skip
FORBIDDEN_METHODS = frozenset({
    "center", "expandtabs", "format", "format_map", "ljust", "rjust", "translate", "zfill",
})  # fmt: skip


class TemplateRefusedError(Exception):
    """A conversation that the template refuses or cannot handle, in the template's words if any."""


class TemplateLimitError(TemplateRefusedError):
    """Rendering took too long or made too much."""


class BoundedTemplate:
    """One compiled template; `render` may run in any thread, one at a time each."""

    def __init__(self, source: str, clock: Clock, timeout_ms: int, max_output_bytes: int) -> None:
        """Compile; raises ModelError for syntax this engine does not support."""
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._max_chars = max_output_bytes
        self._environment = _Environment(max_output_bytes)
        if len(source) > MAX_TEMPLATE_CHARS:
            raise ModelError(f"the chat template has more than {MAX_TEMPLATE_CHARS} characters")
        try:
            tree = _BoundedConcat().visit(self._environment.parse(source))
            code = self._environment.compile(tree)
            self._template = Template.from_code(
                self._environment, cast("Any", code), self._environment.make_globals(None)
            )
        except TemplateError as error:
            raise ModelError(f"the chat template is not understood ({error})") from error

    def render(self, variables: Mapping[str, object]) -> str:
        """Return the output; raises TemplateRefusedError."""
        deadline_ns = self._clock.now_ns() + self._timeout_ms * NS_PER_MS

        def check_time() -> None:
            if self._clock.now_ns() > deadline_ns:
                raise TemplateLimitError(f"the chat template ran for {self._timeout_ms} ms")

        outer_trace = sys.gettrace()
        sys.settrace(_line_tracer(check_time, self._template.root_render_func.__code__.co_filename))
        try:
            return self._collect(variables)
        except (TemplateError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise TemplateRefusedError(f"the chat template refuses it: {error}") from error
        except RecursionError as error:
            raise TemplateLimitError("the chat template nests too deeply") from error
        finally:
            sys.settrace(outer_trace)

    def _collect(self, variables: Mapping[str, object]) -> str:
        parts: list[str] = []
        size = 0
        for part in self._template.generate(variables):
            size += len(part.encode("utf-8", "surrogatepass"))
            if size > self._max_chars:
                raise TemplateLimitError(f"the chat template makes over {self._max_chars} bytes")
            parts.append(part)
        return "".join(parts)


def _line_tracer(check_time: Callable[[], None], filename: str) -> Callable[..., Any]:
    """Return a trace function that looks at the time on every line of the template itself."""

    def trace_line(_frame: FrameType, _event: str, _argument: object) -> Callable[..., Any]:
        check_time()
        return trace_line

    def trace_call(frame: FrameType, _event: str, _argument: object) -> Callable[..., Any] | None:
        return trace_line if frame.f_code.co_filename == filename else None

    return trace_call


class _BoundedConcat(NodeTransformer):
    """Replace `a ~ b`, which the sandbox does not intercept, by a filter that measures first."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802 named by jinja2
        parts = cast("list[nodes.Expr]", [self.visit(child) for child in node.nodes])
        listed = nodes.List(parts, lineno=node.lineno)
        return nodes.Filter(listed, "bounded_concat", [], [], None, None, lineno=node.lineno)


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox with Hugging Face's conventions and with every growing operation measured."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, max_chars: int) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols], autoescape=False
        )
        self._max_chars = max_chars
        self.filters = {name: f for name, f in self.filters.items() if name in ALLOWED_FILTERS}
        self.filters["bounded_concat"] = self._concat
        self.filters["join"] = self._join
        self.filters["replace"] = self._replace
        self.filters["tojson"] = self._to_json
        allowed = {name: self.globals[name] for name in ("range", "namespace", "dict")}
        self.globals = {**allowed, "raise_exception": _raise_exception}

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Refuse the string methods that can make any length of text from little."""
        return attr not in FORBIDDEN_METHODS and super().is_safe_attribute(obj, attr, value)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Measure the two string methods that can grow, then call."""
        owner = getattr(__obj, "__self__", None)
        name = getattr(__obj, "__name__", "")
        if isinstance(owner, str) and name == "replace":
            return __self._replace(owner, *args)
        if isinstance(owner, str) and name == "join":
            return __self._join(args[0], owner)
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Measure the operators that can grow text, lists or numbers."""
        if operator == "%" and isinstance(left, str):
            raise SecurityError("the % operator on text is not supported")
        if operator == "+" and hasattr(left, "__len__") and hasattr(right, "__len__"):
            self._check(len(left) + len(right), left)
        if operator == "*":
            self._check_product(left, right)
        if operator == "**" and max(abs(left), abs(right)) > 64:
            raise SecurityError("a power is too large")
        return super().call_binop(context, operator, left, right)

    def _check_product(self, left: Any, right: Any) -> None:
        sized, times = (left, right) if hasattr(left, "__len__") else (right, left)
        if hasattr(sized, "__len__"):
            self._check(len(sized) * max(int(times), 0), sized)
        elif abs(left * right) > MAX_PRODUCT:
            raise SecurityError("a product is too large")

    def _check(self, size: int, kind: object) -> None:
        if size > (self._max_chars if isinstance(kind, str) else MAX_LIST_ITEMS):
            raise SecurityError(f"a value of {size} items or characters is too large")

    def _concat(self, parts: list[object]) -> str:
        return self._join(parts)

    def _join(self, value: Any, d: str = "", attribute: str | None = None) -> str:
        texts = [
            str(item if attribute is None else self.getitem(item, attribute)) for item in value
        ]
        self._check(sum(map(len, texts)) + len(d) * len(texts), "")
        return d.join(texts)

    def _replace(self, text: str, old: str, new: str, count: int = -1) -> str:
        times = text.count(old)
        self._check(len(text) + times * len(new), "")
        return text.replace(old, new, count)

    def _to_json(self, value: object, indent: int | None = None, **options: Any) -> str:
        """As Hugging Face: plain JSON, not escaped for HTML."""
        separators = options.get("separators")
        text = json.dumps(
            value, indent=min(indent or 0, 8) or None,
            ensure_ascii=bool(options.get("ensure_ascii")),
            separators=tuple(separators) if separators else None,
            sort_keys=bool(options.get("sort_keys")),
        )  # fmt: skip
        self._check(len(text), text)
        return text


def _raise_exception(message: object) -> Never:
    raise TemplateError(str(message))
