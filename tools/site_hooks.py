"""What the documentation site needs beyond Markdown: formulas as MathML, and pages made from files outside docs/.

Formulas are written as on GitHub: ``$...$`` in a line, a fenced block called ``math`` on lines of its own. Browsers
draw MathML themselves, so that no script is needed.
"""

import ast
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from markdown import Markdown
from markdown.extensions import Extension
from markdown.inlinepatterns import InlineProcessor
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
MEASUREMENTS = ROOT / "bench" / "docs"
# Links that are right in the repository, and where they lead on the site.
MOVED = {
    r"\]\((?:\.\./)*CHANGELOG\.md": "](changelog.md",
    r"\]\((?:\.\./)*CONTRIBUTING\.md": "](contributing.md",
    r"\]\((?:\.\./)*README\.md": "](index.md",
    r"\]\((?:\.\./)*examples/?\)": "](examples.md)",
    r"\]\((?:\.\./)*examples/(\w+)\.py\)": r"](examples.md#\1py)",
    r"\]\((?:\.\./)*(?:bench/)?docs/": "](",
}
UNIT = r"(?<=\d) (?=(?:s|min|GB|MB|kB|m|%)(?:\W|$))"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the two ways to write formulas."""
    config.markdown_extensions.append(Formulas())  # pyright: ignore[reportArgumentType]
    fence = {"name": "math", "class": "math", "format": display_formula}
    config.mdx_configs.setdefault("pymdownx.superfences", {})["custom_fences"] = [fence]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages whose text is elsewhere in the repository, and the folder with measurements."""
    pages = {
        "changelog.md": (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"),
        "contributing.md": (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"),
        "examples.md": examples_page(),
    }
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    for path in sorted(MEASUREMENTS.rglob("*.*")):
        name = path.relative_to(MEASUREMENTS).as_posix()
        files.append(File(name, str(MEASUREMENTS), config.site_dir, config.use_directory_urls))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Lead links to where things are on the site, and keep numbers in tables beside their units."""
    for pattern, place in MOVED.items():
        markdown = re.sub(pattern, place, markdown)
    lines = markdown.split("\n")
    return "\n".join(re.sub(UNIT, "\N{NO-BREAK SPACE}", line) if line.startswith("|") else line for line in lines)


def examples_page() -> str:
    """Every script in examples/, under its name; its docstring says what it shows."""
    parts = ["# Examples\n\nScripts that run in seconds, as they are; the demo takes a minute."]
    for path in sorted((ROOT / "examples").glob("*.py")):
        source = path.read_text(encoding="utf-8")
        words = ast.get_docstring(ast.parse(source)) or ""
        code = source.split('"""', 2)[2].strip()
        parts.append(f"## {path.name}\n\n{words}\n\n```python\n{code}\n```")
    return "\n\n".join(parts) + "\n"


def display_formula(source: str, *_: Any, **__: Any) -> str:
    """A formula on lines of its own."""
    return f'<div class="formula">{convert(source.strip(), display="block")}</div>'


class InlineFormula(InlineProcessor):
    """``$...$``, but not after a backslash or a dollar, and with no space just inside."""

    def handleMatch(self, m: re.Match[str], data: str) -> tuple[str, int, int]:
        return self.md.htmlStash.store(convert(m[1])), m.start(0), m.end(0)


class Formulas(Extension):
    """Formulas within lines; earlier than escapes and emphasis, later than code."""

    def extendMarkdown(self, md: Markdown) -> None:
        md.inlinePatterns.register(InlineFormula(r"(?<![\\$])\$(?![\s$])([^$]+?)(?<!\s)\$", md), "formula", 185)
