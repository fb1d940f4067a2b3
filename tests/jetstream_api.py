"""JetStream's own API, asked from tests that have no event loop.

Owns backup and restore as `nats stream backup` and `restore` do them. Decides nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from typing import Any

import nats
from nats.aio.client import Client

from smartgw.state import jetstream
from tests.servers import Nats
from tests.stores import BUCKET

Backup = tuple[Any, list[bytes]]


def ask(server: Nats, subject: str, question: bytes = b"") -> Any:
    """One question, on a connection of its own."""

    async def asked() -> Any:
        client = await nats.connect(server.url, allow_reconnect=False)
        try:
            return json.loads((await client.request(subject, question, timeout=10)).data)
        finally:
            await client.close()

    return asyncio.run(asked())


def messages(server: Nats) -> int:
    """How many messages the bucket has, deleted keys and earlier versions included."""
    return int(ask(server, jetstream.bucket_question(BUCKET))["state"]["messages"])


async def back_up(client: Client, bucket: str) -> Backup:
    """Take a backup of a bucket."""
    inbox = client.new_inbox()
    chunks = await client.subscribe(inbox)
    question = json.dumps({"deliver_subject": inbox}).encode()
    subject = f"$JS.API.STREAM.SNAPSHOT.{jetstream.stream(bucket)}"
    begun = json.loads((await client.request(subject, question, timeout=10)).data)
    found: list[bytes] = []
    while True:
        message = await chunks.next_msg(10)
        if not message.data:
            return {"config": begun["config"], "state": begun["state"]}, found
        found.append(message.data)
        if message.reply:
            await client.publish(message.reply, b"")


async def put_back(client: Client, bucket: str, backup: Backup) -> None:
    """Delete the bucket, and restore it from a backup."""
    stream = jetstream.stream(bucket)
    await client.request(f"$JS.API.STREAM.DELETE.{stream}", b"", timeout=10)
    question = json.dumps(backup[0]).encode()
    answer = await client.request(f"$JS.API.STREAM.RESTORE.{stream}", question, timeout=10)
    begun = json.loads(answer.data)
    for chunk in (*backup[1], b""):
        answer = await client.request(begun["deliver_subject"], chunk, timeout=30)
    assert "error" not in json.loads(answer.data or b"{}")


@contextlib.contextmanager
def restored_from_backup(server: Nats, bucket: str) -> Iterator[None]:
    """Take a backup now, and put it back at the end."""

    async def taking() -> Backup:
        client = await nats.connect(server.url, allow_reconnect=False)
        try:
            return await back_up(client, bucket)
        finally:
            await client.close()

    async def putting(backup: Backup) -> None:
        client = await nats.connect(server.url, allow_reconnect=False)
        try:
            await put_back(client, bucket, backup)
        finally:
            await client.close()

    backup = asyncio.run(taking())
    yield
    asyncio.run(putting(backup))
