"""The JSON of zones and their records (contract 8.6, 10.3).

Owns names, kinds and bounds of members, as models.py does for the rest. What may stand in a zone is
smartgw_dns's to say.
"""

from typing import Annotated

from pydantic import Field

from smartgw.api.models import Model, NextCursor, Page, Time
from smartgw.api.models_dns import Flag
from smartgw_dns.changes import Effect

MOST_RECORDS = 1_000
MOST_CHANGES = 1_000

Name = Annotated[str, Field(min_length=1, max_length=1_100)]
TypeName = Annotated[str, Field(min_length=1, max_length=20)]
Seconds = Annotated[int, Field(ge=0, le=2_147_483_647)]
Rdata = Annotated[str, Field(max_length=60_000)]
_NAME_TEXT = "The owner, absolute: `www.example.com.`"
_RDATA_TEXT = "The rdata of each record in presentation form, names absolute."
_SERVERS = ["ns1.example.com.", "ns2.example.com."]
_ETAG_TEXT = "As in the field ETag, unquoted; of the whole zone."


class DryRun(Model):
    """Whether to store what is sent."""

    dry_run: Flag = Field(
        default="false",
        description="`true` stores nothing and tells what would change.",
        examples=["true"],
    )


class ZoneBrief(Model):
    """A zone in a list."""

    zone: str = Field(examples=["example.com."])
    serial: int = Field(ge=0, examples=[1_800_000_000])
    records: int = Field(ge=0, examples=[42])
    etag: str = Field(examples=["5-18f0a1b2c3d"], description=_ETAG_TEXT)
    updated_at: Time


class ZoneList(Model):
    """A page of zones, by name."""

    zones: list[ZoneBrief]
    next_cursor: NextCursor
    age_seconds: float = Field(
        examples=[0.0], description="For how long this may be out of date; 0 while it is followed."
    )


class ZoneWrite(Model):
    """Who serves a zone, and what its SOA says. The serial rises by itself."""

    nameservers: list[Name] = Field(
        min_length=1,
        max_length=16,
        examples=[_SERVERS],
        description="Its name servers, absolute; the first is the SOA's.",
    )
    contact: Name | None = Field(
        default=None,
        examples=["hostmaster@example.com"],
        description="Who is responsible; null: hostmaster at the zone.",
    )
    ttl: Seconds = Field(default=3_600, description="Of the SOA and of the name servers.")
    refresh: Seconds = Field(default=7_200, description="For secondaries, as the next two.")
    retry: Seconds = Field(default=900)
    expire: Seconds = Field(default=1_209_600)
    minimum: Seconds = Field(
        default=300, description="For how long it may be kept that a name is not there."
    )


class Zone(ZoneBrief):
    """A zone, as it is in force at this gateway."""

    nameservers: list[str] = Field(examples=[_SERVERS])
    contact: str = Field(examples=["hostmaster.example.com."])
    ttl: int = Field(examples=[3_600])
    refresh: int = Field(examples=[7_200])
    retry: int = Field(examples=[900])
    expire: int = Field(examples=[1_209_600])
    minimum: int = Field(examples=[300])


class RRset(Model):
    """The records of one type at a name."""

    name: str = Field(examples=["www.example.com."])
    type: str = Field(examples=["A"])
    ttl: int = Field(examples=[300])
    rdata: list[str] = Field(examples=[["192.0.2.10"]])


class RRsetsPage(Page):
    """Which rrsets of a zone, in the canonical order of names."""

    name: Name | None = Field(
        default=None, description="Only those at this name.", examples=["www.example.com."]
    )
    type: TypeName | None = Field(
        default=None, description="Only those of this type.", examples=["A"]
    )


class RRsets(Model):
    """A page of rrsets."""

    rrsets: list[RRset]
    next_cursor: NextCursor
    serial: int = Field(examples=[1_800_000_000])
    etag: str = Field(examples=["5-18f0a1b2c3d"], description=_ETAG_TEXT)


class RRsetWrite(Model):
    """The records of one type at a name, in the place of those that are there."""

    ttl: Seconds = Field(examples=[300])
    rdata: list[Rdata] = Field(
        min_length=1, max_length=MOST_RECORDS, examples=[["192.0.2.10"]], description=_RDATA_TEXT
    )


class Change(Model):
    """One rrset set, or deleted where `rdata` is null."""

    name: Name = Field(examples=["www.example.com."], description=_NAME_TEXT)
    type: TypeName = Field(examples=["A"])
    ttl: Seconds | None = Field(
        default=None, examples=[300], description="Seconds; needed with `rdata`."
    )
    rdata: Annotated[list[Rdata], Field(min_length=1, max_length=MOST_RECORDS)] | None = Field(
        examples=[["192.0.2.10"]], description=_RDATA_TEXT
    )


class Changes(Model):
    """Changes to a zone that are made together or not at all."""

    changes: list[Change] = Field(min_length=1, max_length=MOST_CHANGES)


class AppWildcards(Model):
    """Where the apps of all base domains are: at the gateways."""

    addresses: list[Annotated[str, Field(max_length=45)]] = Field(
        min_length=1,
        max_length=100,
        examples=[["192.0.2.10", "2001:db8::10"]],
        description="IPv4 and IPv6 addresses of the gateways.",
    )
    ttl: Seconds = Field(default=300, description="Of these records.")
    nameservers: Annotated[list[Name], Field(min_length=1, max_length=16)] | None = Field(
        default=None,
        examples=[_SERVERS],
        description="Name servers of zones that are made for it; null: `ns.` and the base domain, "
        "at the same addresses. A zone that has a base domain already keeps its own.",
    )


class AnswerBrief(Model):
    """The answer to one question."""

    status: str = Field(examples=["NOERROR"])
    records: list[str] = Field(examples=[["www.example.com. 300 A 192.0.2.10"]])


class AnswerChange(Model):
    """One question whose answer is another after a write."""

    name: str = Field(
        examples=["www.example.com."], description="`*.x` stands for all names that do not exist."
    )
    type: str = Field(examples=["A"])
    effect: Effect | None = Field(
        examples=[None], description="Why it changes; null where the write sets it."
    )
    by: str | None = Field(
        examples=[None], description="The wildcard, cut, DNAME or zone that it is due to."
    )
    message: str = Field(examples=["www.example.com. A is what the write sets"])
    before: AnswerBrief
    after: AnswerBrief


class Advice(Model):
    """What is allowed in a zone, and likely not what somebody meant."""

    advice: str = Field(examples=["leads_nowhere"])
    name: str = Field(examples=["www.example.com."])
    message: str = Field(examples=["www.example.com. leads to x.example.com., which is not there"])


class Written(Model):
    """What a write changes: the answers that it sets, and those of others."""

    zone: str = Field(examples=["example.com."])
    serial: int | None = Field(
        examples=[1_800_000_001], description="After the write; null where the zone is gone."
    )
    records: int = Field(examples=[43])
    etag: str | None = Field(
        examples=["6-18f0a1b2c4e"], description="After the write; null where nothing is stored."
    )
    dry_run: bool = Field(examples=[False])
    changed: bool = Field(examples=[True], description="False: it was so already.")
    own: list[AnswerChange] = Field(description="Answers that the write sets.")
    others: list[AnswerChange] = Field(
        examples=[[]], description="Answers of other names, or of other types at its names."
    )
    complete: bool = Field(examples=[True], description="False: there are more than are listed.")
    advice: list[Advice] = Field(
        default=[], examples=[[]], description="After an import, at most a hundred."
    )


class WrittenZones(Model):
    """What a write changes in several zones."""

    zones: list[Written]
