"""Twenty people at once: everybody gets the right numbers, and memory stays within bounds."""

from __future__ import annotations

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor

import pytest

import dcinterp

SESSIONS = 20
RUNS = 3
MEGABYTES_PER_SESSION = 15
PROMPT = "There are a pear, a car, a car. Which is not car? The"
HEADS = [(layer, head) for layer in range(3) for head in range(8)][:SESSIONS]


def link(layer: int, head: int) -> str:
    from urllib.parse import quote

    return f"prompt=text&text={quote(PROMPT)}&answer=pear&what={quote(f'head {layer}.{head} zero')}"


async def visit(address: str, query: str, runs: int) -> list[str]:
    """Open the page of the interventions as a browser does, run it several times, and return all of its text."""
    import websockets
    from streamlit.proto.BackMsg_pb2 import BackMsg
    from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

    texts: list[str] = []
    place = address.replace("http", "ws") + "/_stcore/stream"
    async with websockets.connect(place, max_size=None, subprotocols=["streamlit"]) as socket:
        for _ in range(runs):
            message = BackMsg()
            message.rerun_script.query_string = query
            message.rerun_script.page_name = "interventions"
            await socket.send(message.SerializeToString())
            while True:
                reply = ForwardMsg()
                reply.ParseFromString(await asyncio.wait_for(socket.recv(), timeout=300))
                kind = reply.WhichOneof("type")
                if kind == "delta" and reply.delta.new_element.HasField("markdown"):
                    texts.append(reply.delta.new_element.markdown.body)
                if kind == "script_finished":
                    break
    return texts


def memory(process_id: int) -> float:
    """Resident megabytes of a process and its children."""
    from pathlib import Path

    total = 0.0
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            fields = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
        except OSError:
            continue
        if int(fields["Pid"]) == process_id or int(fields["PPid"]) == process_id:
            total += int(fields.get("VmRSS", "0 kB").split()[0]) / 1024
    return total


@pytest.mark.slow
def test_twenty_sessions_do_not_disturb_each_other(server, server_process, shipped):
    expected = {}
    top = dcinterp.predict(shipped, PROMPT, "pear")
    foil = next(int(token) for token in top.top_ids if int(token) != top.answer_id)
    for layer, head in HEADS:
        effect = dcinterp.intervene(shipped, PROMPT, f"head {layer}.{head} zero", top.answer_id, foil)
        expected[layer, head] = f"{effect.effect:+.2f}"

    async def everybody() -> list[list[str]]:
        return await asyncio.gather(*(visit(server, link(*head), RUNS) for head in HEADS))

    # In a thread of its own: Playwright, where another test has used it, has a loop running in this one.
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: asyncio.run(visit(server, link(0, 0), 1))).result(timeout=300)
        before = memory(server_process)
        seen = pool.submit(lambda: asyncio.run(everybody())).result(timeout=900)
    grown = memory(server_process) - before
    for head, texts in zip(HEADS, seen, strict=True):
        said = re.findall(r"the effect is \*\*([+-][\d.]+)\*\*", "\n".join(texts))
        assert set(said) == {expected[head]}, head
        assert len(said) >= 1
    assert grown < SESSIONS * MEGABYTES_PER_SESSION, f"{grown:.0f} MB more for {SESSIONS} sessions"
