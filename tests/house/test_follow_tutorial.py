"""Goal: the tool that follows the tutorial notices whatever is untrue in it.

Method: pages with one block that fails, prints something else or does not end. The tutorial itself
is followed by `make release-check`, since that needs a wheel and a minute.
"""

from __future__ import annotations

from pathlib import Path

import follow_tutorial
import pytest
from follow_tutorial import PAGE, Step, UntrueError, follow, is_shown, steps_of

ENVIRONMENT = {"PATH": "/usr/bin:/bin"}


def blocks(*pairs: tuple[str, str]) -> list[Step]:
    return steps_of("".join(f"```{language}\n{text}```\n\nand\n\n" for language, text in pairs))


def test_blocks_act_on_one_folder_and_one_shell(tmp_path: Path) -> None:
    page = blocks(
        ("python", "# a.py\nprint(1)\n"),
        ("shell", "cat a.py\nwhat=this\n"),
        ("text", "# a.py\nprint(1)\n"),
        ("shell", "# in a second terminal\nsed -u s/x/xx/ < pipe || sleep 600\n"),
        ("shell", "echo $what and $PATH\n"),
        ("text", "this and ...:/bin\n"),
    )
    (tmp_path / "pipe").touch()
    follow(page, tmp_path, ENVIRONMENT)


@pytest.mark.parametrize(
    ("shell", "text", "told"),
    [
        ("echo 2\n", "1\n", "but printed:\n2"),
        ("echo 1; echo 2\n", "1\n", "but printed:\n1\n2"),
        ("echo one; false\necho two\n", "one\ntwo\n", "failed or did not end"),
        ("exit 0\n", "", "failed or did not end"),
        ("# in a second terminal\necho 2\n", "1\n", "but printed:\n2"),
    ],
)
def test_what_is_untrue_is_told(shell: str, text: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(UntrueError, match=told):
        follow(blocks(("shell", shell), ("text", text)), tmp_path, ENVIRONMENT)


def test_a_block_that_does_not_end_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow_tutorial, "DEADLINE_S", 0.1)
    with pytest.raises(UntrueError, match="did not end"):
        follow(blocks(("shell", "sleep 600\n")), tmp_path, ENVIRONMENT)


def test_three_dots_stand_for_a_part_of_a_line() -> None:
    assert is_shown("a 1 b  \nc\n\n", "a ... b\nc\n")
    assert not is_shown("a 1\n b\n", "a ... b\n")
    assert not is_shown("a.b", "axb")


def test_a_block_that_nobody_follows_is_refused() -> None:
    for language, text in [("yaml", "a: 1\n"), ("python", "print(1)\n"), ("text", "1\n")]:
        with pytest.raises(UntrueError, match="cannot be followed"):
            blocks((language, text))


def test_the_tutorial_can_be_followed() -> None:
    steps = steps_of(PAGE.read_text())
    assert [step.kind for step in steps].count("shell") > 5
    assert all(step.shown for step in steps if step.kind != "file")
