"""The description of the API: OpenAPI 3.1, made from the operations and their models (10.3).

Owns the form of the document and which answers every operation of a form has besides its own.
"""

from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import version
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from smartgw.api.models import Error
from smartgw.api.operations import MAX_BODY, Access, Operation, Outcome

_REF: Final = "#/components/schemas/{model}"
_TAGS: Final = {
    "health": "Whether the process lives and traffic may come.",
    "discovery": "What anybody may know of clusters and hosts.",
    "apps": "What the platform has decided about apps.",
    "enrolments": "Who may host what.",
    "hosts": "The hosts of this cluster, in full.",
    "dns": "Answers from our own zones.",
    "zones": "What is in our zones.",
    "gateway": "This gateway.",
}
_TEXT: Final = """\
Reading is public, control is for the platform's services: EdDSA tokens of configured issuers, in \
`Authorization: Bearer`. Whoever is no service gets the same 401, whatever was wrong.

Every error is `{"error": {"status", "reason", "message", ...}}`. Lists come in pages. What can be \
replaced has an `ETag`; send it back in `If-Match`, and a change that somebody else made meanwhile \
is 412 instead of lost."""
_SECURITY: Final[Mapping[Access, list[dict[str, list[str]]]]] = {
    Access.OPEN: [],
    Access.SIGNED_IN: [{"session": []}, {"service": []}],
    Access.SERVICE: [{"service": []}],
}
_SCHEMES: Final = {
    "service": "A token of a configured issuer with the role `service`.",
    "session": "A token of a configured issuer with the role `session`.",
}
_PARAMETERS: Final[Mapping[str, dict[str, Any]]] = {
    "app_id": {
        "description": "The app's id, percent-encoded: 1 to 256 bytes of UTF-8.",
        "schema": {"type": "string", "minLength": 1, "maxLength": 256},
        "example": "shop",
    },
    "host_id": {
        "description": "The host's id.",
        "schema": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$"},
        "example": "shop-1",
    },
    "zone": {
        "description": "The zone's name, with or without the last dot.",
        "schema": {"type": "string", "minLength": 1, "maxLength": 1100},
        "example": "example.com",
    },
    "name": {
        "description": "The owner of the records: absolute, with or without the last dot.",
        "schema": {"type": "string", "minLength": 1, "maxLength": 1100},
        "example": "www.example.com",
    },
    "type": {
        "description": "The type of the records: `A`, `TXT`, `TYPE65280`.",
        "schema": {"type": "string", "minLength": 1, "maxLength": 20},
        "example": "A",
    },
    "cluster": {
        "description": "The cluster's id.",
        "schema": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$"},
        "example": "eu-1",
    },
}
_FIELDS: Final = {
    "ETag": "Which state of the resource this is.",
    "Age": "Seconds for which the answer may be out of date, for the bus is away; 0 while it is "
    "there.",
}


def document(operations: Iterable[Operation], *, internal: bool) -> dict[str, Any]:
    """Return the description of these operations; `internal`: of the internal listener."""
    operations = tuple(operations)
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        described = _operation(operation, internal)
        paths.setdefault(operation.path, {})[operation.method.lower()] = described
    used = {operation.tag for operation in operations}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Smart Gateway",
            "version": version("smart-gateway"),
            "description": _TEXT,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "tags": [{"name": n, "description": text} for n, text in _TAGS.items() if n in used],
        "paths": paths,
        "components": {
            "schemas": _schemas(operations),
            "securitySchemes": {
                name: {"type": "http", "scheme": "bearer", "bearerFormat": "JWT", "description": d}
                for name, d in _SCHEMES.items()
            },
        },
    }


def _operation(operation: Operation, internal: bool) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.name,
        "tags": [operation.tag],
        "summary": operation.summary,
        "description": operation.text,
        "security": _SECURITY[operation.access],
        "parameters": [*_path_parameters(operation), *_query_parameters(operation)],
        "responses": {},
    }
    if operation.versioned:
        described["parameters"] += _conditions(operation.method)
    if not described["parameters"]:
        del described["parameters"]
    if operation.body is not None:
        schema = {"$ref": _REF.format(model=operation.body.__name__)}
        content: dict[str, Any] = {"schema": schema}
        if example := _example(operation.body):
            content["example"] = example
        described["requestBody"] = {"required": True, "content": {"application/json": content}}
    elif operation.takes is not None:
        content = {"schema": {"type": "string", "contentMediaType": operation.takes}}
        described["requestBody"] = {"required": True, "content": {operation.takes: content}}
    first = operation.outcomes[0].status
    for outcome in sorted((*operation.outcomes, *_implied(operation, internal)), key=_by_status):
        responses = described["responses"]
        responses.setdefault(str(outcome.status), _response(operation, outcome, first))
    return described


def _by_status(outcome: Outcome) -> int:
    return outcome.status


def _implied(operation: Operation, internal: bool) -> Iterable[Outcome]:
    """Return the errors that follow of an operation's form."""
    yield Outcome(400, "A parameter, or the body, is not one of this operation.", Error)
    if operation.access is not Access.OPEN:
        yield Outcome(401, "Not the credential that this needs.", Error)
        yield Outcome(429, "Too many requests; see Retry-After.", Error)
    if internal:
        yield Outcome(403, "From a web page, or under a foreign name.", Error)
    if operation.parameters:
        yield Outcome(404, "There is no such thing.", Error)
    if operation.versioned:
        if operation.method == "GET":
            yield Outcome(304, "It is still as If-None-Match names it.")
        else:
            yield Outcome(412, "It is not as If-Match or If-None-Match wants it.", Error)
    if operation.body is not None or operation.takes is not None:
        most = operation.most if operation.takes else MAX_BODY
        yield Outcome(413, f"The body is larger than {most} bytes.", Error)
        yield Outcome(415, f"The body is not {operation.takes or 'application/json'}.", Error)


def _response(operation: Operation, outcome: Outcome, first: int) -> dict[str, Any]:
    described: dict[str, Any] = {"description": outcome.text}
    fields = []
    if outcome.model is not None:
        schema = {"$ref": _REF.format(model=outcome.model.__name__)}
        described["content"] = {"application/json": {"schema": schema}}
        example = _example(outcome.model)
        if example and outcome.model is not Error:
            described["content"]["application/json"]["example"] = example
    elif operation.media_type != "application/json" and outcome.status == first:
        described["content"] = {operation.media_type: {"schema": {"type": "string"}}}
    if operation.versioned and outcome.status in (200, 201, 304):
        fields.append("ETag")
    if fields:
        described["headers"] = {
            name: {"description": _FIELDS[name], "schema": {"type": "string"}} for name in fields
        }
    return described


def _path_parameters(operation: Operation) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, **_PARAMETERS[name]}
        for name in operation.parameters
    ]


def _query_parameters(operation: Operation) -> list[dict[str, Any]]:
    if operation.query is None:
        return []
    schema = operation.query.model_json_schema(ref_template=_REF)
    found = []
    for name, member in schema["properties"].items():
        member = {key: value for key, value in member.items() if key != "title"}
        text = member.pop("description", name)
        examples = member.pop("examples", None)
        described = {
            "name": name,
            "in": "query",
            "required": name in schema.get("required", ()),
            "description": text,
            "schema": member,
        }
        if examples:
            described["example"] = examples[0]
        found.append(described)
    return found


def _conditions(method: str) -> list[dict[str, Any]]:
    none_match = {
        "name": "If-None-Match",
        "in": "header",
        "description": "An ETag that is known already; answered 304 while it is still that."
        if method == "GET"
        else "`*`: only where there is nothing yet.",
        "schema": {"type": "string"},
    }
    if method == "GET":
        return [none_match]
    match = {
        "name": "If-Match",
        "in": "header",
        "description": "The ETag of what is to be changed; `*`: whatever there is.",
        "schema": {"type": "string"},
    }
    return [match, none_match] if method == "PUT" else [match]


@cache
def _example(model: type[BaseModel]) -> Any:
    """Return an example made of the members' own, None when one of them has none."""
    schema = model.model_json_schema(ref_template=_REF)
    return _made(schema, schema.get("$defs", {}))


def _made(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Any:
    if "examples" in schema:
        return schema["examples"][0]
    if "$ref" in schema:
        return _made(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    if "const" in schema:
        return schema["const"]
    if "default" in schema:
        return schema["default"]
    if "anyOf" in schema:
        return _made(schema["anyOf"][0], definitions)
    kind = schema.get("type")
    if kind == "object" and "properties" in schema:
        return {name: _made(member, definitions) for name, member in schema["properties"].items()}
    if kind == "array":
        return [_made(schema["items"], definitions)]
    plain: dict[Any, Any] = {"boolean": True, "integer": 1, "number": 1.0, "string": ""}
    return plain.get(kind, {})


def _schemas(operations: Iterable[Operation]) -> dict[str, Any]:
    models: set[type[BaseModel]] = {Error}
    for operation in operations:
        models.update(outcome.model for outcome in operation.outcomes if outcome.model)
        if operation.body is not None:
            models.add(operation.body)
    ordered = sorted(models, key=lambda model: model.__name__)
    _, schema = models_json_schema([(model, "validation") for model in ordered], ref_template=_REF)
    found: dict[str, Any] = schema["$defs"]
    return found
