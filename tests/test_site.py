"""The documentation site: built strictly, complete, without network, and its search finds the guides."""

import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from filelock import FileLock

pytest.importorskip("material", reason="the site needs mkdocs-material: pip install 'tammes[docs]'")
from mkdocs.exceptions import PluginError

ROOT = Path(__file__).parents[1]
GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))


def tool(name: str):
    """A module of tools/docs, which is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The built site; whichever worker comes first builds it for all."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = shared / "site"
    with FileLock(shared / "site.lock"):
        if not folder.is_dir():
            command = [
                sys.executable,
                "-m",
                "mkdocs",
                "build",
                "--strict",
                "--quiet",
                "--site-dir",
                str(folder),
            ]
            run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
            assert run.returncode == 0, run.stderr
    return folder


def test_every_public_name_is_documented(site):
    names = {f"{room}.{name}" for room, names in tool("site").documented().items() for name in names}
    assert len(names) > 120
    pages = "".join(path.read_text() for path in (site / "api").rglob("*.html"))
    missing = [name for name in sorted(names) if f'id="{name}"' not in pages]
    assert missing == []


def test_a_public_name_without_a_docstring_fails_the_build(monkeypatch):
    hook = tool("site")
    monkeypatch.setattr(hook, "documented", lambda: {"tammes.losses.catalogue": ["CATALOGUE", "ALIASES"]})
    with pytest.raises(PluginError, match=r"without a docstring: tammes\.losses\.catalogue\.ALIASES\."):
        hook.on_config(None)


def test_every_public_name_has_a_page():
    """Of what users import from `tammes` and its packages."""
    import tammes

    named = {name for names in tool("site").documented().values() for name in names}
    rooms = {"geometry", "heads", "losses", "metrics", "theory"}
    assert set(dir(tammes)) - rooms <= named
    for room in rooms:
        assert set(getattr(tammes, room).__all__) <= named


class Resources(HTMLParser):
    """Everything that a browser would load to show a page; links to click on are something else."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        loads = {"script": "src", "img": "src", "iframe": "src", "source": "src"}
        if tag in loads and given.get(loads[tag]):
            self.found.append(given[loads[tag]])
        if tag == "link" and given.get("rel") not in ("canonical", "next", "prev", "edit"):
            self.found.append(given.get("href") or "")


def test_pages_load_nothing_from_elsewhere(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        reader = Resources()
        reader.feed(page.read_text())
        outside = [url for url in reader.found if re.match(r"(https?:)?//", url)]
        assert outside == [], page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?https?:", sheet.read_text()), sheet


def test_the_page_for_missing_pages_works_where_the_site_is_published(site):
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    root = urlsplit(urls["Documentation"]).path
    reader = Resources()
    reader.feed((site / "404.html").read_text())
    assert reader.found
    assert all(url.startswith(f"{root}/") for url in reader.found), reader.found


def test_names_in_code_link_to_their_api_entry(site):
    guide = (site / "guides" / "several-gpus.html").read_text()
    assert '<a href="../api/heads.html#tammes.heads.ShardedPrototypeHead">' in guide
    links = {
        ((path.parent / page).resolve() if page else path, anchor)
        for path in site.rglob("*.html")
        for page, anchor in re.findall(r'href="([^"#:]*)#(tammes\.[^"]+)"', path.read_text())
    }
    assert len({anchor for _, anchor in links}) > 120
    pages = {page: page.read_text() for page, _ in links}
    assert [link for link in links if f'id="{link[1]}"' not in pages[link[0]]] == []


def test_words_that_are_no_names_stay_as_they_are():
    link_names = tool("site").link_names
    known = {"pack_all": "api/geometry.html#tammes.geometry.pack_all"}
    linked = '<a href="../api/geometry.html#tammes.geometry.pack_all"><code>{}</code></a>'
    for text in ("pack_all", "tammes.geometry.pack_all", "pack_all()"):
        assert link_names(f"<code>{text}</code>", "guides/a.html", known) == linked.format(text)
    for text in ("<code>other.pack_all</code>", "<code>pack</code>", '<a href="x"><code>pack_all</code></a>'):
        assert link_names(text, "guides/a.html", known) == text


def test_formulas_are_drawn_and_docstrings_are_markdown(site):
    errata = (site / "errata.html").read_text()
    losses = (site / "api" / "losses.html").read_text()
    assert errata.count("<math ") > 50
    assert losses.count("<math ") > 20
    for page in (errata, *(path.read_text() for path in (site / "api").glob("*.html"))):
        assert "arithmatex" not in page
        assert ":math:" not in page
        assert ".. math::" not in page
    assert "<blockquote>" not in losses  # a bare doctest would be one


def test_every_tex_command_is_known_to_the_converter(site):
    unknown = {
        (path.name, command)
        for path in site.rglob("*.html")
        for command in re.findall(r"<m[iot][a-z]*>(\\\w+)</m", path.read_text())
    }
    assert unknown == set()


def test_formulas_have_upright_words_and_spaces_after_functions():
    mathml = tool("site").mathml
    assert "<mtext>samp</mtext>" in mathml("m_{samp}", "inline")
    assert "mtext" not in mathml("c_{ij}", "inline")
    assert "<mi>cos</mi><mspace" in mathml(r"\cos x", "inline")
    assert "mspace" not in mathml(r"\cos(x)", "inline")


def test_rows_that_name_a_group_span_the_table(site):
    span = tool("site").span_groups
    assert span("<tr>\n<td><em>a</em></td>\n<td></td>\n<td></td>\n</tr>") == (
        '<tr><td colspan="3"><em>a</em></td></tr>'
    )
    row = "<tr>\n<td><em>a</em></td>\n<td>1</td>\n</tr>"
    assert span(row) == row
    assert '<td colspan="9"><em>Claim 1' in (site / "claims.html").read_text()


def test_docstrings_become_markdown():
    to_markdown = tool("docstrings").to_markdown
    assert to_markdown("The angle :math:`\\theta`.") == "The angle $\\theta$."
    assert to_markdown("Sum:\n\n.. math::\n    a + b\n\nof two") == "Sum:\n\n$$\na + b\n$$\n\nof two"
    assert to_markdown("Sum:\n\n.. math:: a + b\n\nof two") == "Sum:\n\n$$\na + b\n$$\n\nof two"
    assert (
        to_markdown("So:\n\n>>> a = 1\n>>> a\n1\n\nEnd") == "So:\n\n```pycon\n>>> a = 1\n>>> a\n1\n```\n\nEnd"
    )


def title(page: Path) -> str:
    return page.read_text().split("\n", 1)[0].removeprefix("# ")


def test_the_search_finds_every_guide_among_the_first_three_hits(site, show):
    page = show(site / "index.html")
    assert not page.complaints
    box, items = page.locator("input.md-search__input"), ".md-search-result__item"
    for guide in GUIDES:
        page.evaluate("document.querySelector('.md-search-result__list').replaceChildren()")
        box.fill(title(guide))
        box.press("End")  # the theme listens to keys
        page.wait_for_function(f"document.querySelectorAll('{items}').length > 0")
        hits = page.locator(".md-search-result__item > a")
        found = [
            hits.nth(i).get_attribute("href").split("?")[0].split("#")[0] for i in range(min(3, hits.count()))
        ]
        assert any(hit.endswith(f"guides/{guide.stem}.html") for hit in found), (title(guide), found)
    assert all(url.startswith("file:") for url in page.requests if not url.startswith(("data:", "blob:")))


def test_pages_fit_the_screen(site, show):
    """All pages on a phone. Set TAMMES_SCREENSHOTS=FOLDER to keep pictures of them."""
    folder = os.environ.get("TAMMES_SCREENSHOTS")
    page = show(site / "index.html", width=390, phone=True)
    for path in sorted(site.rglob("*.html")):
        if path.name == "404.html":  # its links are those of the published site
            continue
        page.goto(path.as_uri())
        name = "-".join(path.relative_to(site).with_suffix("").parts)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, name
        if folder:
            page.screenshot(path=Path(folder) / f"site-{name}.png")
    assert not page.complaints
    assert show(site / "index.html").evaluate("document.documentElement.scrollWidth") <= 1100
