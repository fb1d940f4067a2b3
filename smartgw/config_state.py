"""The settings of what is trusted and of what outlives a restart: every field, its default (11.5).

Owns the tables `trust`, `identity` and `state`. The rules between tables are config_fields.py's.
"""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, ValidationInfo, field_validator

from smartgw.config_values import FilePath, Seconds, Section, refuse

Bucket = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")]


class Trust(Section):
    """Whose announcements count."""

    mode: Literal["enrolment", "first-use"] = Field(
        default="enrolment",
        description='"enrolment" routes only to hosts whose key is enrolled. '
        '"first-use" trusts the first key that shows up for a host id: for development only, '
        "for anyone on the bus can then take an app's traffic.",
    )
    file: FilePath | None = Field(
        default=None,
        validate_default=True,
        examples=["/etc/smartgw/hosts.toml"],
        description="The enrolment file: each host's key, apps and expiry. Read again within "
        "two seconds of a change. Needed with enrolment, unless state.bucket holds enrolments: of "
        "a host that both name, the file's counts. Not allowed with first-use.",
    )

    @field_validator("file")
    @classmethod
    def _as_the_mode_says(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        mode = info.data.get("mode")
        if mode == "first-use" and value is not None:
            refuse(
                'has no meaning with mode = "first-use", which trusts any key',
                'write mode = "enrolment", or remove trust.file',
            )
        return value


class Identity(Section):
    """The cluster's own key, which its gateways share."""

    seed_file: FilePath | None = Field(
        default=None,
        examples=["/etc/smartgw/cluster.seed"],
        description="File with the seed of the cluster's identity, as `smartgw keygen` makes it, "
        "readable by its owner only. It signs what the gateway keeps in state.dir; without it the "
        "gateway makes one there, which no other gateway has.",
    )


class State(Section):
    """What outlives a restart, and what all gateways share."""

    dir: FilePath | None = Field(
        default=None,
        examples=["/var/lib/smartgw"],
        description="Folder for the last good hosts and the last desired state, so that a gateway "
        "that starts while the bus is away can serve by them, each host challenged first. Off by "
        "default: such a gateway then answers 503 until the bus is there. One folder for each "
        "gateway.",
    )
    bucket: Bucket | None = Field(
        default=None,
        examples=["smartgw"],
        description="JetStream key-value bucket with what the platform has decided: apps, their "
        "hostnames and states, enrolments. Gateways with the same bucket share it, of whatever "
        "cluster. It is made when it is missing, by NATS servers that have JetStream. Without it "
        "nothing can be registered, and every app that is announced is served.",
    )
    replicas: Literal[1, 3, 5] = Field(
        default=1,
        description="NATS servers that keep the bucket, when it is made here: 3 of a NATS cluster "
        "of three or more, so that one of them may fail. 1 by default, which is all that a single "
        "server can do.",
    )
    reconcile: Seconds = Field(
        default=300.0,
        description="Seconds between two readings of the whole bucket, by which a change that was "
        "missed is found. Shorter finds it sooner, and reads 40 MB each time where there are "
        "100,000 apps.",
    )
