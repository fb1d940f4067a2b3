"""11.5: the page about settings says what the settings say."""

import tomllib
from pathlib import Path

from smartgw.cli.settings_doc import page
from smartgw.config_fields import Settings
from smartgw.config_values import Section

REPO = Path(__file__).parents[3]


def test_the_page_is_up_to_date() -> None:
    """docs/configuration.md is what `python -m smartgw.cli.settings_doc` prints now."""
    assert (REPO / "docs/configuration.md").read_text() == page()


def test_every_setting_is_described() -> None:
    """11.5: each setting has a sentence or more, which the page shows."""
    shown = page()
    for field in Settings.model_fields.values():
        kind = field.annotation
        inner = kind if isinstance(kind, type) and issubclass(kind, Section) else None
        for each in inner.model_fields.values() if inner else (field,):
            assert each.description
            assert each.description.endswith(".")
            assert each.description in shown


def test_the_shortest_file_is_right() -> None:
    """11.5: the example at the top of the page is a configuration."""
    example = page().partition("```toml\n")[2].partition("```")[0]
    assert Settings.model_validate(tomllib.loads(example)).cluster == "eu-1"
