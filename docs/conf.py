"""The documentation site: `sphinx-build -W docs site`. It needs the group `docs` and no network."""

import hashlib
import json
import re
import sys
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

import attrs
from sphinx.ext.intersphinx import resolve_reference_detect_inventory
from sphinx.util.nodes import make_refnode

project = "boardclient"
copyright = "the boardclient authors"  # noqa: A001 -- the name that Sphinx reads
version = release = version_of("boardclient")

extensions = [
    "myst_parser",
    "notfound.extension",
    "sphinx.ext.autodoc",
    "sphinx.ext.intersphinx",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
exclude_patterns = ["drawings", "examples", "inventories", "static"]
html_theme = "furo"
html_title = f"boardclient {version}"
html_extra_path = ["llms.txt"]
html_static_path = ["static"]
html_css_files = ["site.css"]
html_favicon = "static/icon.svg"
notfound_urls_prefix = "/"
notfound_context = {
    "title": "Page not found",
    "body": '<h1>Page not found</h1><p>Go to the <a href="/">first page</a>, or <a href="/search.html">search</a>.</p>',
}
copybutton_exclude = ".linenos, .gp, .go"
html_show_sphinx = False
html_copy_source = False
pygments_dark_style = "github-dark"
highlight_language = "none"
smartquotes_action = "D"  # quotes in messages stay as they are

# Inventories are kept in the tree, so that building needs no network: they tell where a name of another library is documented.
intersphinx_mapping = {
    "python": ("https://docs.python.org/3", "inventories/python.inv"),
    "aiohttp": ("https://docs.aiohttp.org/en/stable", "inventories/aiohttp.inv"),
    "attrs": ("https://www.attrs.org/en/stable", "inventories/attrs.inv"),
    "tenacity": (
        "https://tenacity.readthedocs.io/en/stable",
        "inventories/tenacity.inv",
    ),
}

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
myst_html_meta = {
    "description": "An asynchronous Python client for boards, lists and cards: safe retries, one token renewal, bulk creation."
}

default_role = "code"
autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_class_signature = "mixed"
napoleon_use_ivar = True
napoleon_use_rtype = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 60

MERMAID = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DRAWINGS = Path(__file__).parent / "drawings"
SINCE = {
    name: version
    for version, names in json.loads((Path(__file__).parent / "since.json").read_text(encoding="utf-8")).items()
    for name in names
}
"""The version in which each public name appeared, `next` for one that comes with the next."""

_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_ATTRS_DEFAULT = re.compile(r"attr_dict\['(\w+)'\]\.default")
_JSON_IN_FULL = re.compile(
    r"(bool \| int \| float \| str \| list\[JsonValue\] \| dict\[str, JsonValue\] \| None)"
    r"|dict\[str, Json\] \| list\[Json\] \| str \| int \| float \| bool \| None"
)
_HIDDEN = re.compile(r"\bextra_\w+: .*? = None(, )?")
_PRIVATE_DEFAULT = re.compile(r"= (_[A-Z]\w*)")
_OPTIONS = re.compile(r"(\*\*options): [^[]*Unpack\[[^]]*\]")
_MODULE = re.compile(r"\bboardclient(?:\.\w+)*\.")
_INDEX = re.compile(r"^<!-- index: (.*) -->$", re.MULTILINE)
_BOX = re.compile(r'\["(.*?)"\]')
_VIEW_BOX = re.compile(r'viewBox="\S+ \S+ ([\d.]+)')
_TELEPHONE_PIXELS = 420
"""A drawing that is no wider shrinks to the column of a telephone, where its text has 9 pixels or more. Wider ones scroll."""
_BREAK = re.compile(r"(?<=[^\W_])([._(=/])(?=\w|$)")
_CODE = re.compile(r'(<span class="pre">)([^<]+)')
_FACTOR = re.compile(r"(\d) \(([\d.]+) \u00d7\)")
_NAME = re.compile(r"(?<![`:])`([A-Z]\w*[a-z]\w*(?:\.\w+)*|[a-z]\w*(?:\.\w+)+)(?:\(\))?`(?!`)")
_CALL = re.compile(r"(?:session\.)?(boards|lists|cards|members)\.(\w+)")
_MODULES = ("collections.abc", "contextlib", "datetime", "pathlib", "os", "ssl", "tenacity", "typing")
_LINK = re.compile(r"\[([^\]`]+)\]\((https?://[^)]+)\)")


def drawing_of(block: str) -> Path:
    """Return where `draw.py` puts the drawing of a Mermaid block."""
    return DRAWINGS / f"{hashlib.sha256(block.encode()).hexdigest()[:12]}.svg"


def _with_drawings(app: Any, page: str, source: list[str]) -> None:
    """Show drawings in place of Mermaid blocks, which a browser would draw with a program from another site.

    A number and its factor in a table stay on one line. The words of a comment `index:` lead to the page in a search, before the
    names of the reference.
    """

    def drawn(block: re.Match[str]) -> str:
        path = drawing_of(block[1])
        if not path.exists():
            return f"```text\n{block[1]}```"
        width = _VIEW_BOX.search(path.read_text(encoding="utf-8"))
        # Text is 16 px in the drawing's own size, so it has 12 here. A drawing that is wider than the column scrolls.
        pixels = round(float(width[1]) * 0.75) if width else 600
        boxes = "; ".join(_BOX.findall(block[1])).replace("<br>", ": ")
        image = f"```{{image}} /drawings/{path.name}\n:width: {pixels}px\n:alt: {boxes}\n```"
        fits = " fits" if pixels <= _TELEPHONE_PIXELS else ""
        return f":::{{container}} drawing{fits}\n{image}\n:::"

    def indexed(words: re.Match[str]) -> str:
        return f"```{{index}} ! {words[1].replace(', ', ', ! ')}\n```"

    source[0] = _INDEX.sub(indexed, source[0])
    source[0] = _FACTOR.sub("\\1\N{NO-BREAK SPACE}(\\2\N{NO-BREAK SPACE}\u00d7)", MERMAID.sub(drawn, source[0]))


def _breakable(app: Any, page: str, template: str, context: dict[str, Any], doctree: object) -> None:
    """Mark where a long name may break, which `site.css` makes use of where there is little room."""
    for part in {"body", "toc"} & context.keys():
        context[part] = _CODE.sub(lambda code: code[1] + _BREAK.sub(r"\1<wbr>", code[2]), context[part])


def _from_markdown(app: Any, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Turn the Markdown of docstrings, which editors show, into what autodoc reads."""

    def block(match: re.Match[str]) -> str:
        indent, language, code = match.groups()
        body = "".join(f"   {line}\n" if line.strip() else "\n" for line in code.splitlines())
        return f"{indent}.. code-block:: {language or 'text'}\n\n{body}"

    lines[:] = _LINK.sub(r"`\1 <\2>`__", _FENCE.sub(block, "\n".join(lines) + "\n")).splitlines()
    if what in ("attribute", "data", "property"):
        lines.insert(0, "\\")  # nothing; napoleon takes what is before a colon in the first line for a type


def _linked(app: Any, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Make links of the names in docstrings, and types short. Where no page documents a name, it stays as it is."""
    lines[:] = [
        _json(_MODULE.sub("", line)) if line.startswith(":vartype") else _NAME.sub(r":py:obj:`\1`", line) for line in lines
    ]


def _with_version(app: Any, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Say at the end of a class or function since which version it is there."""
    if name in SINCE:
        lines += ["", f".. versionadded:: {SINCE[name]}", ""]


def _without_fields(app: Any, what: str, name: str, obj: object, skip: bool, options: object) -> bool | None:
    """Leave out the fields of named tuples, which their class describes."""
    return True if str(obj.__doc__).startswith("Alias for field number") else None


def _json(text: str) -> str:
    """Name the recursive type of JSON."""
    while _JSON_IN_FULL.search(text):
        text = _JSON_IN_FULL.sub(lambda match: "JsonValue" if match[1] else "Json", text)
    return text


def _found_by_its_end(app: Any, env: Any, node: Any, contnode: Any) -> Any:
    """Find a name that is written without its module, and the call `cards.create` in the class `Cards`."""
    target = node.get("reftarget", "")
    is_name = node.get("reftype") == "class" or _NAME.fullmatch(f"`{target}`")
    if node.get("refdomain") != "py" or not is_name:
        return None
    objects = env.get_domain("py").objects
    wanted = _CALL.sub(lambda call: f"{call[1].capitalize()}.{call[2]}", target)
    wanted = wanted.replace("session.", "AsyncSession.")
    names = [name for name in objects if name.endswith(f".{wanted}")]
    name = min(names, key=lambda name: (name.count("."), name), default=None)
    if name is not None:
        return make_refnode(app.builder, node["refdoc"], objects[name].docname, objects[name].node_id, contnode, name)
    for module in _MODULES:
        copy = node.deepcopy()
        copy["reftarget"] = f"{module}.{target}"
        if (link := resolve_reference_detect_inventory(env, copy, contnode)) is not None:
            return link
    return None


def _in_short(
    app: Any,
    what: str,
    name: str,
    obj: Any,
    options: object,
    signature: str | None,
    returns: str | None,
) -> Any:
    """Name the defaults of attrs classes, and show no private names."""
    if what == "class" and signature and ("Pipeline" in signature or name == "boardclient.bulk.plan.Plan"):
        signature = ""  # applications get such objects from the package, and make none
    if signature == "(*args, **kwargs)":
        signature = ""  # that of a protocol, of which no objects are made
    if what == "exception" and "__init__" not in vars(obj):
        signature = ""  # that of the class above, which is on the same page

    def default(match: re.Match[str]) -> str:
        if not attrs.has(obj):  # one that keeps its fields to itself
            return "..."
        value = attrs.fields_dict(obj)[match[1]].default
        return "..." if callable(value) else repr(value)

    def public(name: re.Match[str]) -> str:
        return f"= {getattr(sys.modules[obj.__module__], name[1], '...')!r}"

    def short(text: str | None) -> str | None:
        text = text and _ATTRS_DEFAULT.sub(default, text).replace("NOTHING", "...").replace("| _Unset ", "").replace(
            "= UNSET", "= ..."
        )
        text = text and _PRIVATE_DEFAULT.sub(public, _HIDDEN.sub("", text)).replace("_Middleware", "Callable")
        text = text and _OPTIONS.sub(r"\1", text).replace(", *, )", ")").replace(", )", ")")
        return text and _json(text)

    return short(signature), short(returns)


def _markdown_beside_html(app: Any, failure: Exception | None) -> None:
    """Write the source of each page beside it, as agents read it. The reference is made from docstrings, and has none.

    https://llmstxt.org proposes that a page has its Markdown at an address like its own.
    """
    if failure is None:
        for page in app.env.found_docs:
            if not page.startswith("reference/"):
                target = Path(app.outdir, f"{page}.md")
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(Path(app.srcdir, f"{page}.md").read_bytes())


def setup(app: Any) -> None:
    """Let Sphinx call the functions above. Markdown becomes reStructuredText before napoleon reads it."""
    app.connect("source-read", _with_drawings)
    app.connect("autodoc-process-signature", _in_short)
    app.connect("autodoc-skip-member", _without_fields)
    app.connect("autodoc-process-docstring", _from_markdown, priority=400)
    app.connect("autodoc-process-docstring", _linked, priority=600)
    app.connect("autodoc-process-docstring", _with_version, priority=700)
    app.connect("missing-reference", _found_by_its_end)
    app.connect("html-page-context", _breakable)
    app.connect("build-finished", _markdown_beside_html)
