"""The commands of docs/kubernetes.md: which blocks run, how, and what a failure says."""

from __future__ import annotations

import re
import time
from pathlib import Path

import psutil
import pytest

from ottla_e2e import doc_commands
from ottla_e2e.doc_commands import PAGE, Block, blocks
from ottla_e2e.say import Fault

_PAGE = """text

```sh
echo one > "$OUT"
```

<!-- not run: needs Docker -->
```sh
exit 7
```

```yaml
a: b
```

```sh
cat "$OUT"
false | true
```
"""


def test_blocks_run_in_order_and_a_failure_names_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text(_PAGE)
    assert list(blocks(_PAGE)) == [
        Block(4, 'echo one > "$OUT"\n', None),
        Block(9, "exit 7\n", "needs Docker"),
        Block(17, 'cat "$OUT"\nfalse | true\n', None),
    ]
    with pytest.raises(Fault, match=r"page\.md:17 ended with 1"):
        doc_commands.run({"OUT": str(tmp_path / "out")}, page)
    said = capsys.readouterr().out
    assert "page.md:9 is not run: needs Docker" in said and "| one" in said


def test_a_block_that_does_not_end_is_ended_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.md"
    page.write_text('```sh\nsleep 60 &\necho $! > "$OUT"\nwait\n```\n')
    monkeypatch.setattr(doc_commands, "_BLOCK_S", 3)
    out = tmp_path / "out"
    with pytest.raises(Fault, match=r"page\.md:2 did not end in 3 s"):
        doc_commands.run({"OUT": str(out)}, page)
    deadline = time.monotonic() + 10
    while _runs(int(out.read_text())):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _runs(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_the_page_has_complete_commands_only() -> None:
    found = list(blocks(PAGE.read_text()))
    assert len([block for block in found if block.why_not is None]) >= 10
    for block in found:
        assert not re.search(r"…|<[a-z]+>", block.text), f"line {block.line}: nothing to fill in"


def test_the_recipes_install_what_make_images_builds() -> None:
    """The first `helm install` works without a registry: its images are those of the archive."""
    installs = [block.text for block in blocks(PAGE.read_text()) if "helm install" in block.text]
    images = "images.registry=localhost,images.broker.tag=e2e,images.operator.tag=e2e,images.etcd=localhost/etcd:e2e"
    assert images in installs[0] and all(
        "images.registry" in text or "kind load docker" in text for text in installs
    )
