"""The shape of the package: which way imports point, where heavy libraries may be, what the door opens on."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import specsim
from specsim.runs.schema import RUN_FIELDS

ROOT = Path(specsim.__file__).parent
REPO = Path(__file__).parents[2]

# From the bottom up: a module may import what stands in a line above its own, or in its own package.
LAYERS = (
    {"errors"},
    {"methods"},
    {"quantities"},
    {"acceptance", "cost", "metrics", "uncertainty"},
    {"runs"},
    {"fitting", "prediction", "grid", "flags"},
    {"breakeven", "evaluation", "recipes"},
    {"questions", "expected"},
    {"sweep", "next_run", "live", "simulation"},
    {"report"},
    {"cli"},
)
CONFINED = {
    "matplotlib": {"report.comm_plots", "report.maps", "report.plots", "report.simulate_plots"},
    "pydantic": {"cost.model_file", "runs.files", "runs.formats", "runs.schema"},
    "scipy": {"fitting.acceptance", "fitting.least_squares", "uncertainty"},
    "aiohttp": {"live.check", "live.load", "live.session"},
    "click": {"cli"},
    "httpx": {"live"},
    "prettytable": {"report.tables"},
}


def modules() -> dict[str, Path]:
    paths = {".".join(p.relative_to(ROOT).with_suffix("").parts): p for p in ROOT.rglob("*.py")}
    return {
        name.removesuffix(".__init__"): path
        for name, path in paths.items()
        if name not in ("__init__", "data.__init__")
    }


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module)
    return found


@pytest.mark.parametrize("name", sorted(modules()))
def test_imports_point_one_way(name):
    home = name.split(".")[0]
    height = next(level for level, names in enumerate(LAYERS) if home in names)
    below = set().union(*LAYERS[:height])
    for imported in imports(modules()[name]):
        top, _, rest = imported.partition(".")
        if top != "specsim":
            continue
        assert {home, rest.split(".")[0]} != {"cost", "acceptance"}, (
            f"{name}: a step's price knows nothing of acceptance"
        )
        assert rest, f"{name} imports the root, which nothing inside may"
        assert rest.split(".")[0] in below | {home}, f"{name} imports {imported}, which is not below it"


@pytest.mark.parametrize("library", sorted(CONFINED))
def test_libraries_stay_where_they_belong(library):
    users = {name for name, path in modules().items() if library in {i.split(".")[0] for i in imports(path)}}
    allowed = CONFINED[library]
    assert all(any(user == home or user.startswith(f"{home}.") for home in allowed) for user in users), users
    assert users, f"{library} is not used at all"


def test_nothing_here_knows_the_calibration_harness():
    assert not any(
        name.split(".")[0] in ("calibration", "torch") for path in modules().values() for name in imports(path)
    )


def test_every_module_has_its_layer():
    assert {name.split(".")[0] for name in modules()} == set().union(*LAYERS)


def test_the_door_opens_on_what_it_lists():
    assert sorted(specsim.__all__) == specsim.__all__
    for name in specsim.__all__:
        assert inspect.getdoc(getattr(specsim, name)), name
    assert dir(specsim) == specsim.__all__
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        getattr(specsim, "nothing")  # noqa: B009 (the attribute is meant to be missing)


def loaded(argument: str, libraries: set[str]) -> str:
    """Which of the libraries a fresh `specsim <argument>` has imported when it ends, as it prints them."""
    code = (
        "import sys, specsim, specsim.cli.main as m\n"
        f"try: m.main([{argument!r}])\n"
        "except SystemExit: pass\n"
        f"print(sorted({libraries} & sys.modules.keys()))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    return out.splitlines()[-1]


def test_help_and_the_door_load_no_numerics():
    assert loaded("--help", {"numpy", "scipy", "pydantic", "matplotlib"}) == "[]"


def test_a_small_break_even_loads_neither_scipy_nor_matplotlib():
    assert loaded("break-even", {"numpy", "scipy", "matplotlib"}) == "['numpy']"


# -- the glossary is law ---------------------------------------------------------------------------------------------


def glossary() -> set[str]:
    text = (REPO / "docs" / "glossary.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| ((?:`[a-z_0-9]+`(?:, )?)+) \|", text, flags=re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`([a-z_0-9]+)`", cell)}


def public_names() -> set[str]:
    names = set(RUN_FIELDS)
    for name in specsim.__all__:
        thing = getattr(specsim, name)
        if dataclasses.is_dataclass(thing):
            names |= {field.name for field in dataclasses.fields(thing) if not field.name.startswith("_")}
        elif inspect.isfunction(thing):
            names |= set(inspect.signature(thing).parameters)
    return names


def test_public_names_are_the_glossarys():
    assert public_names() - glossary() == set()


def test_the_glossary_names_nothing_that_is_gone():
    code = "\n".join(path.read_text(encoding="utf-8") for path in ROOT.rglob("*.py"))
    assert {name for name in glossary() if not re.search(rf"\b{name}\b", code)} == set()


def test_equation_numbers_of_docstrings_are_in_the_model_document():
    known = set(re.findall(r"^\((\d+)\)", (REPO / "docs" / "model.md").read_text(encoding="utf-8"), flags=re.MULTILINE))
    cited = {
        number
        for path in ROOT.rglob("*.py")
        for group in re.findall(r"eq\. ([\d, –-]+)", path.read_text(encoding="utf-8"))
        for number in re.findall(r"\d+", group)
    }
    assert cited
    assert cited <= known


def test_functions_are_short():
    """1% of them may be over 40 lines; a longer one needs a reason, and there is none yet."""
    long = []
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                body = node.body[1:] if ast.get_docstring(node) else node.body
                size = node.end_lineno - body[0].lineno + 1 if body else 0
                if size > 40:
                    long.append((path.name, node.name, size))
    assert long == []
