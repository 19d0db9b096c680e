"""The repository's own linter: sizes, tags, purity, banned calls. Each rule has a reason beside it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grimp

import compile as compiling
from ottla_core import compiled
from portable_stubs import portable

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {
    "ottla_core": ROOT / "core",
    "ottla_broker": ROOT / "broker",
    "ottla_client": ROOT / "client",
    "ottla_cli": ROOT / "cli",
    "ottla_operator": ROOT / "operator",
    "pyspark_ottla": ROOT / "spark",
}
LINES_MAX = 800  # Every file that people complain about in other code bases is longer than 2,000.
FUNCTION_LINES_MAX = 70  # What fits on a screen.
TAG = re.compile(r"\[([PSA])\]")

#: What a pure module must not reach, not even through another module of ours.
IMPURE = frozenset(
    [
        "asyncio",
        "concurrent",
        "grpc",
        "logging",
        "os",
        "pathlib",
        "random",
        "selectors",
        "shutil",
        "signal",
        "socket",
        "structlog",
        "subprocess",
        "tempfile",
        "threading",
        "time",
        "uvloop",
    ]
)


def _sources() -> list[Path]:
    found = [p for name, top in PACKAGES.items() for p in sorted((top / name).rglob("*.py"))]
    return [p for p in found if "pb" not in p.relative_to(ROOT).parts]


def _module(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = _sources()


def test_files_are_small_and_say_what_they_are() -> None:
    """One test for all files of all packages: a test for each of them took longer to collect than to run."""
    assert len(SOURCES) > 200, "the files are not being found"
    assert [complaint for path in SOURCES for complaint in _complaints(path)] == []


def _complaints(path: Path) -> Iterator[str]:
    where, text = path.relative_to(ROOT), path.read_text()
    if len(text.splitlines()) > LINES_MAX:
        yield f"{where} has more than {LINES_MAX} lines: split it"
    tree = ast.parse(text)
    if path.name not in ("__init__.py", "__main__.py", "ids.py") and "ports" not in path.parts:
        docstring = ast.get_docstring(tree)
        if not docstring:
            yield f"{where} needs a docstring that says what it owns"
        elif not TAG.search(docstring):
            yield f"{where}: tag its docstring [P] pure, [S] shell or [A] adapter"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = _body_lines(node)
            if lines > FUNCTION_LINES_MAX:
                yield f"{where}: {node.name}() has {lines} lines"


def _body_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Without signature and docstring: a command line's options are its documentation, not its logic."""
    body = node.body[1:] if ast.get_docstring(node) else node.body
    return (node.end_lineno or 0) - body[0].lineno + 1 if body else 0


def test_no_package_marker_directly_in_a_top_level_folder() -> None:
    """`operator/__init__.py` would replace the standard library's `operator` for everybody."""
    assert [str(p) for p in ROOT.glob("*/__init__.py")] == []


def test_pure_modules_reach_nothing_impure() -> None:
    graph = grimp.build_graph(*PACKAGES, include_external_packages=True)
    pure = [_module(p) for p in SOURCES if "[P]" in (ast.get_docstring(ast.parse(p.read_text())) or "")]
    assert len(pure) > 10, "the tags are not being found"
    leaks = []
    for module in pure:
        for impure in IMPURE & graph.modules:
            chain = graph.find_shortest_chain(importer=module, imported=impure)
            if chain:
                leaks.append(" -> ".join(chain))
    assert leaks == []


BANNED = [
    # (pattern, where it is allowed, why)
    (re.compile(r"\basyncio\.sleep\("), ("core/ottla_core/real/clock.py",), "sleep through the Clock port"),
    (
        re.compile(r"\btime\.(time|monotonic|sleep)\("),
        ("core/ottla_core/real/", "cli/", "client/"),
        "use the Clock port",
    ),
    (re.compile(r"except (Base)?Exception:\s*\n\s*pass\b"), (), "an error is never swallowed"),
    (re.compile(r"^\s*assert ", re.M), (), "python -O strips assert; use invariant()"),
    (re.compile(r"^\s*print\(", re.M), ("cli/",), "a library does not print"),
]


def test_no_banned_calls() -> None:
    assert [complaint for path in SOURCES for complaint in _banned_calls(path)] == []


def _banned_calls(path: Path) -> Iterator[str]:
    where, text = str(path.relative_to(ROOT)), path.read_text()
    for pattern, allowed, why in BANNED:
        if not where.startswith(allowed or ("/",)):
            for found in pattern.finditer(text):
                yield f"{where}:{text[: found.start()].count(chr(10)) + 1}: {why}"


def test_log_events_have_their_values_as_fields() -> None:
    """A text with values in it cannot be counted, searched or limited by event. For processes: the client and the Spark
    source are libraries, which log as their users' programs do."""
    bridge = ROOT / "broker/ottla_broker/logs.py"  # It passes on what libraries log.
    processes = [
        p for p in _sources() if _module(p).startswith(("ottla_broker", "ottla_operator")) and p != bridge
    ]
    levels = {"debug", "info", "warning", "error", "exception", "critical", "log"}
    found = []
    for path in processes:
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            logger = ast.unparse(node.func.value)
            if node.func.attr not in levels or logger.rpartition(".")[2].lstrip("_") not in ("log", "logger"):
                continue
            first = node.args[0] if len(node.args) == 1 else None
            if not (isinstance(first, ast.Constant) and isinstance(first.value, str)):
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)[:80]}")
    assert not found


def test_generated_code_is_current(tmp_path: Path) -> None:
    """Committed stubs equal what the proto gives, so that nobody edits one without the other."""
    subprocess.run(
        [
            sys.executable, "-m", "grpc_tools.protoc", "-Iottla_core/pb=proto/ottla/v1", f"--python_out={tmp_path}",
            f"--pyi_out={tmp_path}", f"--grpc_python_out={tmp_path}",
            *(f"ottla_core/pb/{p.name}" for p in sorted((ROOT / "proto/ottla/v1").glob("*.proto"))),
        ],
        cwd=ROOT, check=True,
    )  # fmt: skip
    for made in (tmp_path / "ottla_core/pb").iterdir():
        committed = ROOT / "core/ottla_core/pb" / made.name
        # The plugin writes its own version into the file; what matters is the interface.
        ours, fresh = (
            [line for line in portable(p.read_text()).splitlines() if "Protobuf Python Version" not in line]
            for p in (committed, made)
        )
        assert ours == fresh, f"{made.name} is stale: run `make gen`"


def test_compiled_modules_are_those_of_the_sources() -> None:
    """Imports take the sources if anything differs; then a run that should test compiled modules does not.

    Only a machine that cannot compile may test the sources alone.
    """
    found = compiled.usable(compiled.FOLDER, {})
    if isinstance(found, str):
        assert found == "not compiled" and compiling.lacking() is not None, f"{found}: run scripts/compile.py"


def test_everything_text_speaks_only_of_itself() -> None:
    """No home directories, no private hosts: the project must make sense to a stranger."""
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    banned = re.compile(r"/(root|work)/|/home/[a-z]")
    offenders = []
    for name in listed:
        path = ROOT / name
        is_text = (
            path.suffix in {".py", ".md", ".sh", ".toml", ".yaml", ".proto"} and path.name != "test_tidy.py"
        )
        if is_text and path.exists() and banned.search(path.read_text(errors="replace")):
            offenders.append(name)
    assert offenders == []


def test_files_that_the_architecture_page_names_are_there() -> None:
    """It is the first page that a newcomer reads, and the last that somebody who moves a file thinks of."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    there = [f"/{name}" for name in listed]
    named = re.findall(r"`([\w/.]+\.(?:py|proto))`", (ROOT / "ARCHITECTURE.md").read_text())
    assert len(named) > 60
    assert [name for name in named if not any(path.endswith(f"/{name}") for path in there)] == []


def test_roles_of_a_partition_write_their_own_fields_only() -> None:
    """Two writers of a high watermark once disagreed on who wakes readers. Counters of metrics may be added to."""
    for name in ("partition", "leading", "following"):
        path = ROOT / f"broker/ottla_broker/partition/{name}.py"
        for node in ast.walk(ast.parse(path.read_text())):
            targets = node.targets if isinstance(node, ast.Assign) else ()
            targets = (node.target,) if isinstance(node, ast.AnnAssign) else targets
            for target in [part for each in targets for part in ast.walk(each)]:
                if isinstance(target, ast.Attribute) and isinstance(target.ctx, ast.Store):
                    own = isinstance(target.value, ast.Name) and target.value.id == "self"
                    assert own, f"{path.name}:{target.lineno} writes a field of another object"


def test_a_kind_of_metadata_with_its_call_takes_few_files() -> None:
    """Cordons are the example on the architecture page: those that define, store, guard and serve them."""
    has_part = re.compile(
        r'class CordonBroker\b|^    cordons: |def cordon(_broker)?\(|"CordonBroker"|/CordonBroker"|rpc CordonBroker',
        re.MULTILINE,
    )
    named = (ROOT / "ARCHITECTURE.md").read_text()
    found = []
    for top in ("broker/ottla_broker", "proto"):
        for path in sorted((ROOT / top).rglob("*")):
            if path.suffix not in (".py", ".proto") or "cordon" not in (text := path.read_text()).lower():
                continue
            if path.name == "cordons.py" or has_part.search(text):
                found.append(path.relative_to(ROOT).as_posix().removeprefix("broker/ottla_broker/"))
    assert len(found) <= 8, found
    assert [name for name in found if f"`{name}`" not in named] == []
