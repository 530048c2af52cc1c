"""An mkdocs hook for generated pages, links out of docs/, and formulas without scripts.

- The API pages are generated from the imports in each room's `__init__.pyi`: no public name is left out,
  and one without a docstring fails the build.
- Public names in `code` become links to their API entry.
- CONTRIBUTING.md and CHANGELOG.md become pages.
- The pages must also read well on a code host, so they link to `../results/a.png` and `../tests/a.py`.
  Pictures are copied into the site; other files become links to the repository.
- TeX becomes MathML, which browsers render without scripts or remote fonts.
"""

import ast
import html
import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import griffe
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.utils import get_relative_url

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "tammes"
REPOSITORY = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]

ROOMS = {
    "losses": "Losses and regularizers, and the objectives that they add up to.",
    "heads": "The last layer and the loss of a classifier in one module: on one process, sampled, sharded.",
    "geometry": "Angles, margins, bounds and packings.",
    "metrics": "Classification, retrieval, verification, calibration and neural collapse.",
    "theory": "Lower bounds of the losses, and the optima that they tend to.",
}
LABS = ("adapters", "data", "models", "training", "report")
PAGES_OF_FILES = {"CONTRIBUTING.md": "development.md", "CHANGELOG.md": "changelog.md"}

LINK = re.compile(r"(!?\[[^\]]*\]\()([^)\s#]+)(#[^)\s]*)?\)")
IMAGE = re.compile(r'(<img src=")([^"]+)(")')
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
CODE = re.compile(r"(^```.*?^```|`[^`\n]*`)", re.DOTALL | re.MULTILINE)
SUBSCRIPT = re.compile(r"_\{(sm|[a-z]{3,})\}")  # words; two letters are indices, as in c_{ij}
FUNCTION = re.compile(r"(<mi>(?:cos|sin|log|exp)</mi>)(?=<m(?:i|n|sub|sup|frac|sqrt)\b)")
GROUP = re.compile(r"<tr>\s*<td([^>]*)>(<em>.*?</em>)</td>((?:\s*<td[^>]*></td>)+)\s*</tr>")
NAME = re.compile(r"<a\b.*?</a>|<h1.*?</h1>|<code>(?:tammes\.)?((?:\w+\.)*)(\w+)(?:\(\))?</code>", re.DOTALL)


def public_names(stub: Path) -> list[str]:
    """The names that a module imports in order to export them, without submodules."""
    body = ast.parse(stub.read_text(encoding="utf-8")).body
    imports = [node for node in body if isinstance(node, ast.ImportFrom) and node.module != "tammes"]
    return [alias.asname or alias.name for node in imports for alias in node.names]


def documented() -> dict[str, list[str]]:
    """The public names of each package with a page. Names that `tammes` re-exports are listed there."""
    rooms = {f"tammes.{room}": SOURCE / room for room in ROOMS}
    labs = {f"tammes.lab.{room}": SOURCE / "lab" / room for room in LABS}
    names = {name: public_names(folder / "__init__.pyi") for name, folder in (rooms | labs).items()}
    names["tammes.losses.functional"] = public_names(SOURCE / "losses" / "functional.py")
    rest = set(public_names(SOURCE / "__init__.pyi")) - {name for room in names.values() for name in room}
    return names | ({"tammes": sorted(rest)} if rest else {})


def api_pages() -> Iterator[tuple[str, str]]:
    """Path and Markdown of each API page."""
    names = documented()
    lines = [
        "# API reference",
        "",
        "Every public name, by package. `tammes` itself exports the most used ones.",
        "",
    ]
    for room, about in ROOMS.items():
        package = f"tammes.{room}"
        lines += [f"- [`{package}`]({room}.md): {about}", f"  {_index(package, room, names[package])}"]
        more = _entries(f"{package}.functional", names.get(f"{package}.functional", []))
        entries = [*_entries(package, names[package]), *more]
        yield f"api/{room}.md", "\n".join([f"# {package}", "", about, "", *entries])
    lines += [
        "- [`tammes.lab`](lab.md): data sets, networks, training and pages, behind the command line.",
        "",
    ]
    lines += _entries("tammes", names.get("tammes", []))
    yield "api/index.md", "\n".join(lines)
    lab = ["# tammes.lab", "", 'What the command line is made of; `pip install "tammes[lab]"`.', ""]
    for room in LABS:
        lab += _entries(f"tammes.lab.{room}", names[f"tammes.lab.{room}"])
    yield "api/lab.md", "\n".join(lab)


def _index(package: str, page: str, names: list[str]) -> str:
    """The names of a package in one line, each a link to its entry."""
    return ", ".join(f"[{name}]({page}.md#{package}.{name})" for name in sorted(names, key=str.lower))


def _entries(package: str, names: list[str]) -> list[str]:
    return [line for name in sorted(names, key=str.lower) for line in (f"::: {package}.{name}", "")]


def undocumented() -> list[str]:
    """The public names without a docstring."""
    package = griffe.load("tammes", search_paths=[str(SOURCE.parent)], resolve_aliases=True)
    names = [f"{room}.{name}" for room, names in documented().items() for name in names]
    return [name for name in names if not package[name.removeprefix("tammes.")].has_docstring]


def entries() -> dict[str, str]:
    """API page and anchor of each public name, except those that are also arguments or English words."""
    found = {}
    for room, names in documented().items():
        parts = room.split(".")
        page = f"api/{parts[1] if len(parts) > 1 else 'index'}.html"
        for name in names:
            if name[0].isupper() or "_" in name or room == "tammes.losses.functional":
                found.setdefault(name, f"{page}#{room}.{name}")
    return found


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fail on a public name without a docstring."""
    if missing := undocumented():
        raise PluginError(f"Public names without a docstring: {', '.join(missing)}.")
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path, text in api_pages():
        files.append(File.generated(config, path, content=text))
    for source, page in PAGES_OF_FILES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    for picture in sorted(_pictures(files)):
        files.append(File.generated(config, picture, abs_src_path=str(ROOT / picture)))
    return files


def _pictures(files: Files) -> set[str]:
    """Pictures outside docs/ that pages show, as paths from the root of the checkout."""
    found = set()
    for file in files.documentation_pages():
        for _, target, _ in LINK.findall(file.content_string):
            path = _from_root(file.src_uri, target)
            if path is not None and path.endswith(".png") and not path.startswith("docs/"):
                found.add(path)
    return found


def _from_root(page: str, target: str) -> str | None:
    """Path from the root of the checkout of what a page links to; None for other sites."""
    if re.match(r"[a-z]+:|#", target):
        return None
    origin = {page: source for source, page in PAGES_OF_FILES.items()}.get(page, f"docs/{page}")
    return os.path.normpath(os.path.join(os.path.dirname(origin), target))


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Redirect links that leave docs/."""
    here = page.file.src_uri

    def redirect(match: re.Match[str]) -> str:
        before, target, anchor = match[1], match[2], match[3] or ""
        path = _from_root(here, target)
        return match[0] if path is None else f"{before}{_target(here, path, target)}{anchor})"

    parts = CODE.split(markdown)
    parts[::2] = [LINK.sub(redirect, text) for text in parts[::2]]
    return "".join(parts)


def _target(here: str, path: str, target: str) -> str:
    inside = PAGES_OF_FILES.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None)
    if inside is None and path.endswith(".png"):
        inside = path
    if inside is not None:
        return os.path.relpath(inside, os.path.dirname(here) or ".")
    if not (ROOT / path).exists():
        raise PluginError(f"{here} links to {target}, which does not exist.")
    kind = "tree" if (ROOT / path).is_dir() else "blob"
    return f"{REPOSITORY}/{kind}/main/{path}"


def on_page_content(text: str, page: Any, **_: Any) -> str:
    """Render formulas as MathML, span group rows of tables, and link public names to the API reference."""

    def formula(match: re.Match[str]) -> str:
        return mathml(html.unescape(match[2]).strip(), "block" if match[1] == "div" else "inline")

    return link_names(span_groups(FORMULA.sub(formula, text)), page.url, entries())


def mathml(tex: str, display: str) -> str:
    r"""MathML of a formula, with what the converter leaves out: arg, upright words, spaces after functions.

    >>> mathml(r"\cos x", "inline").count('<mspace width="0.167em" />')
    1
    """
    tex = tex.replace(r"\arg", r"\operatorname{arg}\,")
    tex = SUBSCRIPT.sub(r"_{\\text{\1}}", tex)
    return FUNCTION.sub(r'\1<mspace width="0.167em" />', convert(tex, display=display))


def span_groups(text: str) -> str:
    """Rows of tables that name a group, a cell in italics and empty ones, become one wide cell."""

    def span(match: re.Match[str]) -> str:
        cells = 1 + match[3].count("<td")
        return f'<tr><td colspan="{cells}"{match[1]}>{match[2]}</td></tr>'

    return GROUP.sub(span, text)


def link_names(text: str, here: str, known: dict[str, str]) -> str:
    """
    >>> link_names("<code>pack_all</code>, <code>x</code>", "a/b.html", {"pack_all": "api/g.html#t.pack_all"})
    '<a href="../api/g.html#t.pack_all"><code>pack_all</code></a>, <code>x</code>'
    """

    def link(match: re.Match[str]) -> str:
        entry = known.get(match[2] or "")
        if entry is None or (match[1] and f"tammes.{match[1]}{match[2]}" != entry.split("#")[1]):
            return match[0]
        return f'<a href="{get_relative_url(entry, here)}">{match[0]}</a>'

    return NAME.sub(link, text)


SHIM = "https://unpkg.com/iframe-worker/shim"
"""What the theme would load for the search of pages opened from files; docs/offline-search.js does it."""


def on_post_page(output: str, page: Any, **_: Any) -> str:
    return output.replace(SHIM, get_relative_url("offline-search.js", page.url))


def on_post_template(output: str, config: MkDocsConfig, **_: Any) -> str:
    """Make the links of 404.html absolute, because it is served at any path."""
    return output.replace(SHIM, f"{urlsplit(config.site_url).path}offline-search.js")
