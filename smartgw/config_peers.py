"""The settings of the directory of clusters: where it is read, and how long it serves (4.3, 4.4).

Owns these fields alone; the others are in `smartgw.config_fields`.
"""

from typing import Annotated

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from smartgw.config_values import FilePath, Seconds, Section, ValidatorUrl, refuse, unique


class Peers(Section):
    """The directory of clusters; without one this cluster is the only one."""

    file: FilePath | None = Field(
        default=None,
        examples=["/etc/smartgw/clusters.json"],
        description="File with the list of clusters, read again within a second of a change. Give "
        "all gateways of all clusters the same. Either this or peers.validators.",
    )
    validators: Annotated[tuple[ValidatorUrl, ...], AfterValidator(unique)] = Field(
        default=(),
        max_length=16,
        examples=[["https://api.smart-app.example"]],
        description="Where the list is asked for over HTTP: gateways that have the file, or any "
        "web server. The first that gives a valid list counts, lists are never merged; so the "
        "order is the same at all gateways. Whoever can answer here decides who owns what.",
    )
    interval: Seconds = Field(
        default=5.0,
        description="Seconds between two questions to the validators. Shorter spreads a change "
        "sooner and costs them requests: gateways / interval a second.",
    )
    grace: Seconds = Field(
        default=30.0,
        validate_default=True,
        description="Seconds that the last good list serves when none can be had. Then owners are "
        "unknown and each cluster serves what it is asked for. Longer rides out a longer outage, "
        "and keeps a cluster that was taken off the list for as long.",
    )
    tls_ca: FilePath | None = Field(
        default=None,
        examples=["/etc/smartgw/validators-ca.pem"],
        description="PEM file of the authorities trusted for https validators. The system's own "
        "by default.",
    )

    @field_validator("validators")
    @classmethod
    def _one_source(cls, value: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if value and info.data.get("file") is not None:
            refuse("stands beside peers.file", "keep one of the two: lists are never merged")
        return value

    @field_validator("grace")
    @classmethod
    def _longer_than_a_pause(cls, value: float, info: ValidationInfo) -> float:
        interval = info.data.get("interval", 0.0)
        if value <= interval:
            refuse(
                f"{value:g} is not above peers.interval, {interval:g}",
                "write several times the interval, such as 30",
            )
        return value
