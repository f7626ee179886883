"""Text that somebody will send: what terminals, browsers, spreadsheets and databases take for something else."""

import json

_TOOL_CALL = json.dumps({"name": "f", "arguments": {"a": "é"}}, ensure_ascii=False)

TEXTS: dict[str, str] = {
    "empty": "",
    "NUL": "a\0b",
    "a high surrogate": "\ud800",
    "a low surrogate": "a\udfffb",
    "surrogates turned round": "\ude00\ud83d",
    "BOM": "\ufeffa",
    "right to left override": "\u202egnp.exe",
    "isolates": "\u2066\u2067\u2069",
    "zero width": "a\u200bb\u200d\u2060c",
    "noncharacters": "\ufffe\uffff\U0010ffff",
    "carriage returns": "a\rb\r",
    "no line break": "x" * 10_000,
    "line separators": "a\u2028b\u2029c\x85d\x0b\x0c",
    "control characters": "".join(map(chr, range(1, 32))) + "\x7f\x80\x9b",
    "colours of a terminal": "\x1b[31mred\x1b[0m\x1b[2J\x1b]0;title\x07",
    "a link of a terminal": "\x1b]8;;https://example.org\x1b\\click\x1b]8;;\x1b\\",
    "script": "<script>alert(1)</script>",
    "an image that fails": "<img src=x onerror=alert(1)>",
    "a script as a link": "[x](javascript:alert(1))",
    "an image of data": "![x](data:image/svg+xml;base64,PHN2Zz4=)",
    "HTML in Markdown": "**a** <iframe srcdoc='<script>'></iframe>",
    "SVG": "<svg><script href='data:,alert(1)'/></svg>",
    "MathML": "<math><mtext><table><mglyph><style><img src=x onerror=alert(1)></style></mglyph></table></mtext></math>",
    "the end of CDATA": "]]>",
    "an entity": "&lt;&#0;&#xD800;",
    "braces of templates": "{{ x }}{% load y %}${z}#{w}<%= v %>",
    "a formula": '=HYPERLINK("http://example.org","x")',
    "a command of a spreadsheet": "+cmd|' /C calc'!A0",
    "a function of a spreadsheet": "@SUM(1+1)*cmd",
    "a cell that a tab leads": "\t=1+1",
    "a cell that a line break leads": "\r=1+1",
    "a family": "👩‍👩‍👧‍👦🏳️‍🌈👍🏿",
    "decomposed": "e\u0301\u0323" + "o" + "\u0308" * 200,
    "ligatures": "\ufdfa\ufb01İıſß",
    "format directives": "%s%n%x{0}{0.__class__}%(a)s",
    "quotes of SQL": "'; DROP TABLE rollouts_run; --",
    "a path": "../../etc/passwd\\..\\con",
    "a broken tool call": "\n".join(_TOOL_CALL[:end] for end in range(len(_TOOL_CALL))),
}
UNSAYABLE = ("a high surrogate", "a low surrogate", "surrogates turned round")
"""Python can hold them, UTF-8 cannot: JSON can escape them."""
NAMELESS = {
    "BOM",
    "zero width",
    "right to left override",
    "isolates",
    "carriage returns",
    "line separators",
    "control characters",
    "colours of a terminal",
    "a link of a terminal",
    "a cell that a tab leads",
    "a cell that a line break leads",
    "a broken tool call",
}
"""Text that may say something, and name nothing: it hides, or turns, what it stands beside."""
