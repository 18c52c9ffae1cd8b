"""The web application: each worker process has a shared handle for as long as it lives."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel, Field

import afterlog
from afterlog import aio

TOPIC = "reminders"


class Reminder(BaseModel):
    to: str
    text: str
    delay: Annotated[float, Field(ge=0)]
    """Seconds from now."""


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with aio.open(os.environ["REMINDERS_DATA"], shared=True) as store:
        await store.create_topic(TOPIC, partitions=4)
        app.state.store = store
        yield


app = FastAPI(title="Reminders", lifespan=lifespan)


@app.post("/reminders", status_code=201)
async def remind(reminder: Reminder, request: Request) -> dict[str, Any]:
    """Durable when it is answered, and sent when its delay is over."""
    store = request.app.state.store
    value = json.dumps({"to": reminder.to, "text": reminder.text}).encode()
    record = await store.send(TOPIC, value, key=reminder.to.encode(), delay=reminder.delay)
    return {"id": str(record)}


@app.get("/reminders")
async def pending(request: Request, to: str | None = None) -> list[dict[str, Any]]:
    records = await request.app.state.store.pending(TOPIC, key=None if to is None else to.encode())
    return [{"id": str(each.id), "due_ms": each.due} | json.loads(each.value) for each in records]


@app.delete("/reminders/{name}")
async def cancel(name: str, request: Request) -> dict[str, str]:
    try:
        record = afterlog.RecordId.parse(name)
    except afterlog.AfterlogError as error:
        raise HTTPException(404, str(error)) from error
    return {"result": (await request.app.state.store.cancel(record)).name.lower()}
