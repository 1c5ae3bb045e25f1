"""The site: `make docs` builds it, with every warning an error."""

import sys
from pathlib import Path

from gdws import __version__

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

project = "gdws"
author = "the gdws authors"
copyright = author
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "plain_docstrings"]
exclude_patterns = ["_*"]
html_theme = "furo"
html_title = f"gdws {__version__}"
html_static_path: list[str] = []

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4

autodoc_member_order = "groupwise"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
default_role = "code"
# Annotations name other libraries, whose sites are not asked, and parts of gdws that have no page of their own.
nitpick_ignore_regex = [("py:.*", r"(?!gdws\.(\w+|attacks\.\w+|data\.\w+|models\.\w+|training\.\w+)$).*")]
