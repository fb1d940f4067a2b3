"""The JSON of questions about DNS and of what answers them (contract 8.1, 10.3).

Owns names, kinds and bounds of members, as models.py does for the rest. What is answered is
smartgw_dns's.
"""

from typing import Annotated, Literal

from pydantic import Field

from smartgw.api.models import Model

MOST_QUERIES = 10
Text = Annotated[str, Field(min_length=1, max_length=1_100)]
_NAME_TEXT = "A domain name in presentation form, absolute with or without the last dot."
_TYPE_TEXT = "A type: `A`, `TXT`, `TYPE65280`, or its number."
Flag = Literal["0", "1", "true", "false"]


class Question(Model):
    """One question about DNS."""

    name: Text = Field(description=_NAME_TEXT, examples=["shop.smart-app.example"])
    type: Annotated[str, Field(min_length=1, max_length=20)] = Field(
        default="A", description=_TYPE_TEXT, examples=["A"]
    )


class ResolveQuery(Question):
    """A question in the address."""

    do: Flag = Field(
        default="0",
        description="Taken, as others take it; our zones are not signed.",
        examples=["0"],
    )
    cd: Flag = Field(
        default="0", description="Taken, as others take it; nothing is verified.", examples=["0"]
    )


class Batch(Model):
    """Several questions, charged and answered together."""

    queries: list[Question] = Field(
        min_length=1,
        max_length=MOST_QUERIES,
        examples=[[{"name": "shop.smart-app.example", "type": "A"}]],
    )


class Asked(Model):
    """The question as it was understood."""

    name: str = Field(examples=["shop.smart-app.example."])
    type: int = Field(ge=0, le=65_535, examples=[1])


class ShownRecord(Model):
    """One record of an answer."""

    name: str = Field(examples=["shop.smart-app.example."])
    type: int = Field(ge=0, le=65_535, examples=[1])
    TTL: int = Field(ge=0, examples=[300])
    data: str = Field(description="The rdata in presentation form.", examples=["192.0.2.10"])


class DnsAnswer(Model):
    """An answer as Google's and Cloudflare's DNS over HTTPS give it in JSON."""

    Status: int = Field(ge=0, le=4_095, description="The response code.", examples=[0])
    AA: bool = Field(description="It is of a zone of ours.", examples=[True])
    TC: bool = Field(examples=[False])
    RD: bool = Field(examples=[True])
    RA: bool = Field(description="Recursion is there for whoever asks.", examples=[False])
    AD: bool = Field(examples=[False])
    CD: bool = Field(examples=[False])
    Question: list[Asked]
    Answer: list[ShownRecord] | None = Field(default=None)
    Authority: list[ShownRecord] | None = Field(default=None, examples=[None])
    Additional: list[ShownRecord] | None = Field(default=None, examples=[None])


class DnsAnswers(Model):
    """An answer to each question, in their order."""

    results: list[DnsAnswer]


class WireQuery(Model):
    """A message in the address (RFC 8484 4.1)."""

    dns: Annotated[str, Field(min_length=1, max_length=87_384, pattern="^[A-Za-z0-9_-]+$")] = Field(
        description="The message in base64url, without padding.",
        examples=["AAABAAABAAAAAAAABHNob3AJc21hcnQtYXBwB2V4YW1wbGUAAAEAAQ"],
    )
