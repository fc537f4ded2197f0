"""Goal: mypy checks every program of the documentation and the examples. (``make check`` runs it.)

Method: the tool that hands the programs to mypy is given pages; what it makes of the real ones is
compared with their fenced blocks, and the command of ``make check`` is looked at.
"""

from __future__ import annotations

import ast
import re

import documented_programs
import house_rules

PAGE = """# Title

```python
# shop.py
app = 1
```

```text
from shop import app
```

## Using it

```python
print(1)
```

```python
from shop import app
```

# Next

```python
# shop.py
app = 2
```

```python
from shop import app
from other import thing
```
"""


def test_every_line_keeps_its_number_and_its_section() -> None:
    found = documented_programs.modules_of("page", PAGE)
    assert list(found) == ["page_1.shop", "page_2.program", "page_3.shop", "page_3.program"]
    page = PAGE.splitlines()
    for name, code in [("page_1.shop", "app = 1"), ("page_2.program", "print(1)")]:
        lines = found[name].splitlines()
        assert lines.index(code) == page.index(code)
        assert len(lines) == len(page)
    assert "app = 2" in found["page_3.shop"]
    assert "app = 2" not in found["page_1.shop"]


def test_modules_of_a_section_are_imported_from_it_and_others_from_where_they_are() -> None:
    found = documented_programs.modules_of("page", PAGE)
    assert "from documented.page_3.shop import app\n" in found["page_3.program"]
    assert "from other import thing\n" in found["page_3.program"]
    assert "from shop import app\n" in found["page_2.program"]


def test_every_block_of_every_page_is_a_program() -> None:
    for page, text in documented_programs.pages():
        blocks = re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)
        written = documented_programs.modules_of(page, text).values()
        assert sum(len(block.split()) for block in blocks) == sum(len(w.split()) for w in written)
        for program in written:
            ast.parse(program)


def test_the_type_check_reads_programs_examples_and_the_files_of_the_tests() -> None:
    makefile = (house_rules.ROOT / "Makefile").read_text()
    command = re.search(r"^check-types:.*?\n\n", makefile, re.M | re.S)
    assert command
    for needed in ("tools/documented_programs.py", "-p documented", "-p examples"):
        assert needed in command[0]
    for path in (house_rules.ROOT / "tests" / "typing").glob("*.py"):
        assert f"-m {path.stem}" in command[0]
