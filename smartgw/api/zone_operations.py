"""The operations on zones and their records: their words, for api/zones.py (contract 8.6, 10.1).

Owns paths, texts and what may be answered. All are for services only.
"""

from smartgw.api import models, models_zones
from smartgw.api.operations import Access, Operation, Outcome

MASTER = "text/dns"
MOST_FILE = 32 << 20
"""Octets of a master file: some 600,000 records."""

_AWAY = Outcome(503, "The zones are not known, or the change cannot be stored now.", models.Error)
_CLASH = Outcome(409, "A rule of zones forbids it, or others changed it at once.", models.Error)
_DONE = Outcome(200, "What it changes; stored, unless it is a dry run.", models_zones.Written)
_RULES = (
    " The answer names every answer that changes, those of other names too, which a wildcard no "
    "longer answers for, or which a delegation hides. In force at every gateway within two seconds."
)

LIST_ZONES = Operation(
    "list_zones",
    "GET",
    "/api/v3/dns/zones",
    "Zones",
    "By name.",
    "zones",
    Access.SERVICE,
    (Outcome(200, "A page of zones.", models_zones.ZoneList), _AWAY),
    query=models.Page,
)
READ_ZONE = Operation(
    "read_zone",
    "GET",
    "/api/v3/dns/zones/{zone}",
    "One zone",
    "Its SOA and name servers, as they are in force at this gateway.",
    "zones",
    Access.SERVICE,
    (Outcome(200, "The zone.", models_zones.Zone), _AWAY),
    versioned=True,
)
PUT_ZONE = Operation(
    "put_zone",
    "PUT",
    "/api/v3/dns/zones/{zone}",
    "Make a zone, or say who serves it",
    "Sets SOA and name servers, and leaves all other records as they are. Safe to repeat." + _RULES,
    "zones",
    Access.SERVICE,
    (_DONE, Outcome(201, "The zone is made.", models_zones.Written), _CLASH, _AWAY),
    query=models_zones.DryRun,
    body=models_zones.ZoneWrite,
    versioned=True,
)
CHANGE_ZONE = Operation(
    "change_zone",
    "PATCH",
    "/api/v3/dns/zones/{zone}",
    "Change several rrsets of a zone at once",
    "All of them or none: so an alias can take the place of addresses." + _RULES,
    "zones",
    Access.SERVICE,
    (_DONE, _CLASH, _AWAY),
    query=models_zones.DryRun,
    body=models_zones.Changes,
    versioned=True,
)
DELETE_ZONE = Operation(
    "delete_zone",
    "DELETE",
    "/api/v3/dns/zones/{zone}",
    "Delete a zone with all its records",
    "Its names are answered by the zone above, if that is ours, and else refused." + _RULES,
    "zones",
    Access.SERVICE,
    (_DONE, _CLASH, _AWAY),
    query=models_zones.DryRun,
    versioned=True,
)
LIST_RRSETS = Operation(
    "list_rrsets",
    "GET",
    "/api/v3/dns/zones/{zone}/rrsets",
    "Records of a zone",
    "By name in canonical order, then by type.",
    "zones",
    Access.SERVICE,
    (Outcome(200, "A page of rrsets.", models_zones.RRsets), _AWAY),
    query=models_zones.RRsetsPage,
)
READ_RRSET = Operation(
    "read_rrset",
    "GET",
    "/api/v3/dns/zones/{zone}/rrsets/{name}/{type}",
    "The records of one type at a name",
    "The ETag is that of the whole zone.",
    "zones",
    Access.SERVICE,
    (Outcome(200, "The records.", models_zones.RRset), _AWAY),
    versioned=True,
)
PUT_RRSET = Operation(
    "put_rrset",
    "PUT",
    "/api/v3/dns/zones/{zone}/rrsets/{name}/{type}",
    "Set the records of one type at a name",
    "In the place of those that are there. Safe to repeat. If-Match takes the ETag of the zone, "
    "If-None-Match: * sets what is not there yet." + _RULES,
    "zones",
    Access.SERVICE,
    (_DONE, Outcome(201, "It was not there.", models_zones.Written), _CLASH, _AWAY),
    query=models_zones.DryRun,
    body=models_zones.RRsetWrite,
    versioned=True,
)
DELETE_RRSET = Operation(
    "delete_rrset",
    "DELETE",
    "/api/v3/dns/zones/{zone}/rrsets/{name}/{type}",
    "Delete the records of one type at a name",
    "If-Match takes the ETag of the zone." + _RULES,
    "zones",
    Access.SERVICE,
    (_DONE, _CLASH, _AWAY),
    query=models_zones.DryRun,
    versioned=True,
)
EXPORT_ZONE = Operation(
    "export_zone",
    "GET",
    "/api/v3/dns/zones/{zone}/file",
    "A zone as a master file",
    "RFC 1035 5; read back it is the same zone.",
    "zones",
    Access.SERVICE,
    (Outcome(200, "The master file."), _AWAY),
    versioned=True,
    media_type=MASTER,
)
IMPORT_ZONE = Operation(
    "import_zone",
    "PUT",
    "/api/v3/dns/zones/{zone}/file",
    "Make a zone of a master file, or replace it by one",
    "All of it or nothing; what is wrong is told with the number of its line. The serial of the "
    "file counts if it is higher than the present one. `$INCLUDE` is refused, `$GENERATE` bounded."
    + _RULES,
    "zones",
    Access.SERVICE,
    (_DONE, Outcome(201, "The zone is made.", models_zones.Written), _CLASH, _AWAY),
    query=models_zones.DryRun,
    versioned=True,
    takes=MASTER,
    most=MOST_FILE,
)
PUT_APP_WILDCARDS = Operation(
    "put_app_wildcards",
    "PUT",
    "/api/v3/dns/app-wildcards",
    "Have every app's hostname lead to the gateways",
    "Sets the wildcard of each base domain to these addresses, in the zone that has it or in one "
    "that is made. Safe to repeat, and to be repeated when the gateways move." + _RULES,
    "zones",
    Access.SERVICE,
    (
        Outcome(200, "What it changes in each zone.", models_zones.WrittenZones),
        _CLASH,
        _AWAY,
    ),
    query=models_zones.DryRun,
    body=models_zones.AppWildcards,
)
