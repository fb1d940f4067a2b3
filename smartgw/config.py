"""From one TOML file and the environment to settings, or to every fault (contract 11.5).

Owns how the two become `Settings` and the sentence for each fault: where, what is wrong, what
would be right. Nothing else of the product reads them. It opens no port and resolves no name,
and shows no value that may be a secret. The fields are in `smartgw.config_fields`.
"""

import difflib
import json
import re
import shlex
import stat
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from smartgw.config_fields import Settings
from smartgw.config_values import REFUSED, shown, split_host_port
from smartgw_hosts import keyfile

__all__ = ["ConfigError", "Problem", "Settings", "load", "split_host_port"]

PREFIX = "SMARTGW_"
FILE_VARIABLE = "SMARTGW_CONFIG"
# Not settings, but names that a gateway may inherit: its file, the gateway that commands ask and
# the token that they show, the programs that demo and tests start, and the options of `smartgw
# host` (all but what may be a misspelt host_networks).
OTHER_VARIABLES = re.compile(
    r"SMARTGW_(CONFIG|ENDPOINT|TOKEN(_FILE)?|NATIVE|NATS_SERVER|VALKEY_SERVER|CHROMIUM|HOST_(?!NET)[A-Z0-9_]+)"
)
MAX_FILE_BYTES = 1 << 20
_SECRETS = (("bus", "nkey_seed_file"), ("store", "password_file"))
# Files and folders that may come later: the gateway makes them, or starts without (11.2).
MADE_BY_US: dict[tuple[str, ...], Callable[[int], bool]] = {
    ("state", "dir"): stat.S_ISDIR,
    ("discovery", "record"): stat.S_ISREG,
    ("peers", "file"): stat.S_ISREG,
}
LISTED = "docs/configuration.md lists the settings"


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault of a configuration: where it stands, what is wrong, what would be right.

    `source` is the file or the environment variable, `key` dotted, `line` counts from 1.
    """

    source: str
    key: str
    line: int | None
    fault: str
    remedy: str

    def __str__(self) -> str:
        """Return `file:line: key: fault; remedy` on one line."""
        place = self.source if self.line is None else f"{self.source}:{self.line}"
        key = f" {self.key}:" if self.key else ""
        text = f"{place}:{key} {self.fault}; {self.remedy}"
        # A key or a file name may hold what a terminal would obey.
        return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


class ConfigError(Exception):
    """A configuration that is refused; `problems` holds every fault that was found."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)


Key = tuple[str, ...]
Place = tuple[str | int, ...]
"""A key with the number, from 0, of each table of a list: ("auth", "issuer", 1, "audience")."""


def load(path: Path | None, env: Mapping[str, str]) -> Settings:
    """Return the settings of a file, overridden by `SMARTGW_*` variables of `env`.

    `None` means the file that SMARTGW_CONFIG names, or none at all. Relative paths in the file
    start at the file's own folder. Raises ConfigError, and nothing else, for any content.
    """
    if path is None and env.get(FILE_VARIABLE):
        path = Path(env[FILE_VARIABLE])
    text = "" if path is None else _text(path)
    values = {} if path is None else _parsed(path, text)
    if path is not None:
        _anchor_paths(values, path.parent)
    origins: dict[Key, str] = {}
    problems = list(_override(values, env, origins))
    settings = None
    try:
        settings = Settings.model_validate(values)
    except ValidationError as error:
        found = error.errors(include_url=False)
    else:
        found = []
    lines = _lines(text)

    def problem(place: Place, fault: str, remedy: str) -> Problem:
        key = _names(place)
        dotted = ".".join(key)
        for length in range(len(key), 0, -1):
            if key[:length] in origins:
                return Problem(origins[key[:length]], dotted, None, fault, remedy)
        heads = (place[:length] for length in range(len(place), 0, -1))
        line = next((lines[head] for head in heads if head in lines), None)
        return Problem(str(path) if path else "environment", dotted, line, fault, remedy)

    for item in found:
        if item["type"] == "too_short" and item["input"]:
            continue  # pydantic counts the valid members only; the others have their own line
        member = item.get("ctx", {}).get("member") if item["type"] == REFUSED else None
        place = _place((*item["loc"], *((member,) if member else ())))
        problems.append(problem(place, *_explain(_names(place), item)))
    for place, fault, remedy in _file_faults(values):
        problems.append(problem(place, fault, remedy))
    if problems or settings is None:
        problems.sort(key=lambda p: (p.line is None, p.line or 0))
        if path is None and not origins:
            fault = f"no --config FILE given, and {FILE_VARIABLE} is not set"
            remedy = "name the file, or set what follows by variables"
            problems.insert(0, Problem("configuration", "", None, fault, remedy))
        raise ConfigError(problems) from None
    return settings


def _text(path: Path) -> str:
    """Return the file's text, or raise the ConfigError that says why there is none."""

    def refused(fault: str, remedy: str) -> ConfigError:
        return ConfigError([Problem(str(path), "", None, fault, remedy)])

    try:
        if path.is_dir():
            raise refused("is a directory", f"name a file: {path / 'smartgw.toml'}")
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise refused("does not exist", "name an existing file with --config") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "its name holds a NUL"
        raise refused(f"cannot be read: {reason}", "make it readable for this user") from None
    if len(data) > MAX_FILE_BYTES:
        raise refused("is larger than 1 MiB", "name the configuration file, not another")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            [Problem(str(path), "", line, "is not UTF-8", "save the file as UTF-8 text")]
        ) from None


def _parsed(path: Path, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except RecursionError:
        fault, line = "is nested too deeply", None
    except ValueError as error:
        match = re.search(r" \(at (?:line (\d+), column \d+|end of document)\)$", str(error))
        fault = str(error)[: match.start()] if match else "holds a number that is too long"
        line = int(match[1]) if match and match[1] else None
        if match and line is None:
            line = text.count("\n") + 1
        # The parser's words name a kind of character or a key, never a value.
        fault = f"is not TOML: {fault}"
    remedy = 'write [section] and key = value lines, text in "quotes", each key once'
    raise ConfigError([Problem(str(path), "", line, fault, remedy)])


def _anchor_paths(values: dict[str, Any], folder: Path) -> None:
    """Make relative paths of the file start at its folder, wherever the gateway was started."""
    for place, table in _paths(values):
        name = str(place[-1])
        if table[name] and not _is_seed(table[name]):
            table[name] = str(folder / table[name])


def _override(
    values: dict[str, Any], env: Mapping[str, str], origins: dict[Key, str]
) -> Iterator[Problem]:
    """Put the variables of `env` into `values`, note their keys in `origins`, yield misnomers."""
    known = {PREFIX + "__".join(key).upper(): key for key in _keys()}
    for name in sorted(env):
        if not name.startswith(PREFIX) or OTHER_VARIABLES.fullmatch(name):
            continue
        key = known.get(name.upper())
        if key is None:
            near = difflib.get_close_matches(name.upper(), known, 1, 0.7)
            remedy = f"did you mean {near[0]}? else unset it" if near else f"unset it; {LISTED}"
            yield Problem(name, "", None, "is no setting", remedy)
            continue
        table = values
        for part in key[:-1]:
            table = table.setdefault(part, {})
        if isinstance(table, dict):
            table[key[-1]] = _from_variable(key, env[name])
            origins[key] = name


def _from_variable(key: Key, text: str) -> object:
    """Return a variable's value: a number where one is due, a list from JSON or from a,b,c."""
    field = _field(key)
    if field is not None and field.annotation in (int, float):
        try:
            return float(text) if field.annotation is float else int(text)
        except ValueError:
            return text
    if field is not None and str(field.annotation).startswith("tuple"):
        if text.lstrip().startswith("["):
            try:
                return json.loads(text)
            except (ValueError, RecursionError):
                return text
        return [part.strip() for part in text.split(",") if part.strip()]
    return text


def _file_faults(values: Mapping[str, Any]) -> Iterator[tuple[Place, str, str]]:
    """Yield what is wrong with the files that the settings name, also when other keys are."""
    for place, table in _paths(values):
        key, value = _names(place), table[str(place[-1])]
        if not value or "\0" in value:
            continue
        if _is_seed(value):
            yield place, "holds a seed itself", "put the seed into a file and write the file's path"
            continue
        if key in MADE_BY_US:
            yield from ((place, *fault) for fault in _place_faults(key, Path(value)))
            continue
        try:
            mode = Path(value).stat().st_mode
        except OSError as error:
            remedy = "write the path of an existing file"
            if key == ("trust", "file") and isinstance(error, FileNotFoundError):
                remedy = "create it, an empty one will do; add what `smartgw keygen` prints"
            yield place, f"{shown(value)}: {error.strerror}", remedy
            continue
        if not stat.S_ISREG(mode):
            yield place, f"{shown(value)} is not a file", "write the path of an existing file"
        elif key in _SECRETS and mode & 0o077:
            remedy = f"run: chmod 600 {shlex.quote(value)}"
            yield place, f"{shown(value)} is open to others", remedy
        elif key == ("bus", "nkey_seed_file"):
            if not _holds_a_seed(Path(value)):
                remedy = "write the one line that `nk -gen user` prints, beginning with SU"
                yield place, f"{shown(value)} does not hold the seed of a NATS user", remedy
        elif key == ("auth", "issuer", "jwks_file"):
            yield from ((place, *fault) for fault in _key_set_faults(Path(value)))
        elif key == ("identity", "seed_file"):
            try:
                keyfile.load(value)
            except keyfile.KeyFileError as error:
                yield place, str(error), "write the path of a file that `smartgw keygen` made"


def _place_faults(key: Key, path: Path) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with where the gateway is to make a file or folder."""
    kind = "folder" if MADE_BY_US[key] is stat.S_ISDIR else "file"
    try:
        if not MADE_BY_US[key](path.stat().st_mode):
            yield f"{shown(str(path))} is not a {kind}", f"write the path of a {kind}, or a new one"
    except FileNotFoundError:
        if not path.parent.is_dir():
            fault = f"{shown(str(path.parent))}: no such folder"
            yield fault, f"run: mkdir -p {shlex.quote(str(path.parent))}"
    except OSError as error:
        yield f"{shown(str(path))}: {error.strerror}", f"write the path of a {kind} of ours"


def _holds_a_seed(path: Path) -> bool:
    try:
        content = path.read_bytes()[:200]
    except OSError:
        return False
    return re.fullmatch(rb"SU[A-Z2-7]{56}", content.strip()) is not None


def _key_set_faults(path: Path) -> Iterator[tuple[str, str]]:
    # Imported late: workers read settings too, and verify no tokens.
    from smartgw.api.tokens import MAX_JWKS_BYTES, KeysRefused, parse_keys

    try:
        with path.open("rb") as file:
            parse_keys(file.read(MAX_JWKS_BYTES + 1))
    except KeysRefused as error:
        yield f"{shown(str(path))} {error}", "write the path of a JWK set with Ed25519 public keys"
    except OSError as error:
        yield f"{shown(str(path))}: {error.strerror}", "make it readable for this user"


def _is_seed(value: str) -> bool:
    return re.fullmatch(r"S[A-Z2-7]{40,}|smartgw-seed:.*", value.strip(), re.DOTALL) is not None


# Keys and their fields.


def _keys() -> list[Key]:
    """Return the dotted keys of all settings, in order."""
    found: list[Key] = []
    for name, field in Settings.model_fields.items():
        section = _section(field)
        found += [(name, sub) for sub in section.model_fields] if section else [(name,)]
    return found


def _table_keys() -> list[Key]:
    """Return the keys of the tables of lists, `[[auth.issuer]]`, in order."""
    tables = ((key, _table(field)) for key in _keys() if (field := _field(key)))
    return [(*key, name) for key, table in tables if table for name in table.model_fields]


def _paths(values: Mapping[str, Any]) -> list[tuple[Place, dict[str, Any]]]:
    """Return each path that `values` has as text: its place and the table that it stands in."""
    found: list[tuple[Place, dict[str, Any]]] = []
    for key in (*_keys(), *_table_keys()):
        field = _field(key)
        if field is None or "Path" not in str(field.annotation):
            continue
        tables: list[tuple[Place, Any]] = [((), values)]
        for part in key[:-1]:
            inner = ((where, t.get(part)) for where, t in tables if isinstance(t, dict))
            tables = []
            for where, each in inner:
                several = enumerate(each) if isinstance(each, list) else ()
                tables += [((*where, part, number), one) for number, one in several]
                tables += [] if isinstance(each, list) else [((*where, part), each)]
        for where, table in tables:
            if isinstance(table, dict) and isinstance(table.get(key[-1]), str):
                found.append(((*where, key[-1]), table))
    return found


def _section(field: FieldInfo) -> type[BaseModel] | None:
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _table(field: FieldInfo) -> type[BaseModel] | None:
    """Return the model of the tables of a list."""
    kinds = get_args(field.annotation)
    inner = kinds[0] if kinds else None
    return inner if isinstance(inner, type) and issubclass(inner, BaseModel) else None


def _field(key: Key) -> FieldInfo | None:
    model: type[BaseModel] | None = Settings
    field: FieldInfo | None = None
    for part in key:
        field = model.model_fields.get(part) if model else None
        model = (_section(field) or _table(field)) if field else None
    return field


def _place(location: Sequence[int | str]) -> Place:
    """Return the part of a pydantic location that leads to a key, without places in its list."""
    place = tuple(location)
    for end, part in enumerate(place):
        if isinstance(part, int) and not isinstance(next(iter(place[end + 1 :]), None), str):
            return place[:end]
    return place


def _names(place: Place) -> Key:
    return tuple(part for part in place if isinstance(part, str))


def _lines(text: str) -> dict[Place, int]:
    """Return the line of each key and table, as far as a look at single lines can tell."""
    found: dict[Place, int] = {}
    table: Place = ()
    key: Place
    counts: dict[Key, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if match := re.match(r"\s*\[\[([^\]]+)\]\]", line):
            name = _split(match[1])
            key = table = (*name, counts.setdefault(name, 0))
            counts[name] += 1
            found.setdefault(name, number)
        elif match := re.match(r"\s*\[([^\]]+)\]", line):
            key = table = _split(match[1])
        elif match := re.match(r"\s*((?:[\w-]+|\"[^\"]*\"|'[^']*'|\s*\.\s*)+?)\s*=", line):
            key = (*table, *_split(match[1]))
        else:
            continue
        found.setdefault(key, number)
    return found


def _split(dotted: str) -> Key:
    return tuple(part.strip(" \t\"'") for part in dotted.split("."))


# Sentences.

# What pydantic expected, by the beginning of its error type.
EXPECTED = {
    "string": "text",
    "tuple": "a list",
    "float": "a number",
    "int": "a whole number",
    "finite": "a number",
    "path": "a path",
    "model": "a table",
}


def _explain(key: Key, error: ErrorDetails) -> tuple[str, str]:
    """Return fault and remedy for one error of pydantic."""
    kind, value, context = error["type"], error["input"], error.get("ctx", {})
    if kind == REFUSED:
        return context["fault"], context["remedy"]
    if kind == "extra_forbidden":
        return "is no setting", _nearest(key)
    field = _field(key)
    right = f"write {_example(key, field)}"
    hidden = key[0] in ("bus", "store")  # a URL may hold a password
    value_shown = "the value" if hidden else shown(value)
    if kind == "missing":
        return "is missing", right
    if kind == "too_short":
        return "is empty", right
    if kind == "literal_error":
        return (
            f"{value_shown} is not known",
            f"write {context['expected'].replace(chr(39), chr(34))}",
        )
    if kind == "greater_than":
        return f"{value_shown} is not above {context['gt']:g}", right
    if kind == "greater_than_equal":
        return f"{value_shown} is below {context['ge']:g}", right
    if kind == "less_than_equal":
        return f"{value_shown} is too large", f"write at most {context['le']}"
    expected = EXPECTED.get(kind.partition("_")[0], "a value of the right kind")
    return f"{value_shown} is not {expected}", right


def _nearest(key: Key) -> str:
    """Return the remedy for an unknown key: the known one that was likely meant."""
    known = [*_keys(), *_table_keys(), *((name,) for name in Settings.model_fields)]
    siblings = [k[-1] for k in known if k[:-1] == key[:-1]]
    near = [(*key[:-1], name) for name in difflib.get_close_matches(key[-1], siblings, 1, 0.6)]
    # Else the right name in the wrong table.
    near = near or [k for k in known if k[-1] == key[-1]]
    if not near:
        return f"remove it; {LISTED}"
    return f"did you mean {'.'.join(near[0])}? else remove it"


def _example(key: Key, field: FieldInfo | None) -> str:
    """Return a line of TOML that would be right for a key."""
    if field is None:
        return f"another value; {LISTED}"
    if _section(field):
        return f"[{key[-1]}] with its keys below it"
    if _table(field):
        return f"[[{'.'.join(key)}]] with its keys below it, once for each"
    value = field.examples[0] if field.examples else field.get_default()
    return f"{key[-1]} = {json.dumps(value)}"
