"""Write docs/configuration.md: `python -m smartgw.cli.settings_doc > docs/configuration.md`.

Owns the page's form. Every sentence about a setting comes from `smartgw.config_fields`, where
the setting is declared.
"""

import json
from collections.abc import Iterator
from typing import Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from smartgw.config_fields import Settings

INTRODUCTION = """\
# Configuration

One TOML file, named with `--config FILE` or `SMARTGW_CONFIG`, and environment variables over it:
`SMARTGW_` and the key, with `__` between table and key, so `SMARTGW_DEADLINES__HEAD=5` is `head`
under `[deadlines]`. Lists in a variable are written `a,b,c` or as JSON. Relative paths in the
file start at the file's folder. Times are in seconds.

`smartgw check --config FILE` tells every fault with its line and what would be right; `smartgw
serve` refuses to start with one. No setting holds a secret, only paths to files that do.

This page is made by `python -m smartgw.cli.settings_doc`.

## The shortest file

```toml
cluster = "eu-1"
base_domains = ["smart-app.example"]
host_networks = ["10.0.0.0/8"]

[trust]
file = "/etc/smartgw/hosts.toml"
```
"""


def page() -> str:
    """Return the whole page, Markdown."""
    return "\n".join([INTRODUCTION, *_sections()])


def _sections() -> Iterator[str]:
    yield "## At the top of the file\n"
    tables: list[tuple[str, type[BaseModel]]] = []
    for name, field in Settings.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            tables.append((name, kind))
        else:
            yield _setting(name, name, field)
    for name, kind in tables:
        yield f"## [{name}]\n\n{(kind.__doc__ or '').strip()}\n"
        for key, field in kind.model_fields.items():
            yield _setting(key, f"{name}__{key}", field)
            for inner in get_args(field.annotation)[:1]:
                if isinstance(inner, type) and issubclass(inner, BaseModel):
                    yield f"## [[{name}.{key}]]\n\n{(inner.__doc__ or '').strip()}\n"
                    for below, each in inner.model_fields.items():
                        yield _setting(below, "", each)


def _setting(key: str, variable: str, field: FieldInfo) -> str:
    """`variable` is empty for a setting of a table of which there may be several."""
    facts = [_default(field)]
    if get_origin(field.annotation) is Literal:
        facts.append(
            "one of " + ", ".join(f"`{json.dumps(c)}`" for c in get_args(field.annotation))
        )
    if field.examples:
        facts.append(f"example `{json.dumps(field.examples[0])}`")
    if variable:
        facts.append(f"`SMARTGW_{variable.upper()}`")
    return f"### {key}\n\n{'; '.join(facts)}\n\n{field.description}\n"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if field.default_factory is not None:
        return "default: made at start"
    value = field.get_default()
    if value is None or value is PydanticUndefined:
        return "default: none"
    return f"default `{json.dumps(value)}`"


if __name__ == "__main__":
    print(page(), end="")
